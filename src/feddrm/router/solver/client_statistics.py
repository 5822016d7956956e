"""The client's half of the exact fit: the sums over its own samples that a client sends.

Sums and second moments of the features are sent once, loss and gradient in every round. Nothing else leaves a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from feddrm.threads import intra_op_threads, thread_map

ClientSums = dict[str, Tensor]
Key = TypeVar("Key")
Group = TypeVar("Group")
BLOCK = {"cpu": 2**19, "cuda": 2**27}  # probabilities [rows, outputs] computed at once; on a CPU they fit a cache
STRIPES = 16  # parts of all blocks that threads share
MARGIN = 32  # samples; clients that are no longer than twice the shortest and these are padded to one length
TOGETHER = 1024  # outputs of several points in one product
ALONE = 1024  # samples, from which a client is computed by itself: nothing is gained by padding


@dataclass(frozen=True, eq=False)
class Sample:
    """A client's samples: standardised features [n, d], labels [n], and fixed logits [n, outputs] or None.

    Labels [n, g] are those of g questions about the same samples: each has its own share of the outputs.
    """

    x: Tensor
    y: Tensor
    offset: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, index: Tensor) -> Sample:
        """Some of the samples, by index or mask."""
        return Sample(self.x[index], self.y[index], None if self.offset is None else self.offset[index])

    def slice(self, start: int, end: int) -> Sample:
        """Consecutive samples, not copied."""
        return Sample(self.x[start:end], self.y[start:end], None if self.offset is None else self.offset[start:end])

    def double(self) -> Sample:
        """The same in float64."""
        return Sample(self.x.double(), self.y, self.offset)


@dataclass(frozen=True, eq=False)
class PaddedClients:
    """Some clients' samples, padded to one length and computed at once.

    A thousand clients with a few samples each would take a thousand times the start of every operation.
    """

    clients: Tensor  # [m], their numbers
    x: Tensor  # [m, n, d]
    y: Tensor  # [m, n]
    offset: Tensor  # [m, n, outputs of a client]
    seen: Tensor  # [m, n], bool: False where padded

    @classmethod
    def of(cls, clients: Sequence[int], samples: Sequence[Sample]) -> PaddedClients:
        """Of these clients; ``samples`` are everybody's, with offsets."""
        own = [samples[client] for client in clients]
        offsets = [sample.offset for sample in own if sample.offset is not None]
        parts = [[s.x for s in own], [s.y for s in own], offsets, [torch.ones_like(s.y, dtype=torch.bool) for s in own]]
        # A client alone is not copied: its features may take as much memory as all others'.
        padded = (pad_sequence(each, batch_first=True) if len(own) > 1 else each[0][None] for each in parts)
        return cls(torch.tensor(clients, device=own[0].x.device), *padded)

    def sums(self, blocks: Tensor, with_gradient: bool) -> ClientSums:
        """Loss, correct answers and, where asked, gradients of blocks [m, outputs of a client, d + 1]."""
        z = (self.x @ blocks[:, :, :-1].to(self.x.dtype).transpose(1, 2)).double()
        log_p, y = z.add_(blocks[:, None, :, -1]).add_(self.offset).log_softmax(2), self.y[:, :, None]
        sums = {
            "count": self.seen.sum().double(),
            "loss": -(log_p.gather(2, y)[:, :, 0] * self.seen).sum(),
            "correct": ((log_p.argmax(2) == self.y) & self.seen).sum().double(),
        }
        if with_gradient:
            residual = log_p.exp_().scatter_add_(2, y, log_p.new_full((), -1.0).expand_as(y))
            residual = residual.mul_(self.seen[:, :, None]).transpose(1, 2)
            body = (residual.to(self.x.dtype) @ self.x).double()
            sums["gradient"] = torch.cat([body, residual.sum(2, keepdim=True)], dim=2)
        return sums


@dataclass(frozen=True, eq=False)
class BlockDiagonal:
    """Clients that do not share outputs: the samples of the i-th client have the i-th block of outputs only.

    A group has clients of similar length, or one with many samples.
    """

    groups: tuple[PaddedClients, ...]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> BlockDiagonal:
        """From every client's samples, which have offsets."""
        groups: list[list[int]] = []
        for client in sorted(range(len(samples)), key=lambda i: len(samples[i])):
            size = len(samples[client])
            if not groups or size > min(2 * len(samples[groups[-1][0]]) + MARGIN, ALONE):
                groups.append([])
            groups[-1].append(client)
        return cls(tuple(PaddedClients.of(sorted(group), samples) for group in groups))

    def __len__(self) -> int:
        return sum(int(group.seen.sum()) for group in self.groups)

    @property
    def x(self) -> Tensor:
        """Features of some clients, for their precision and device."""
        return self.groups[0].x

    def sums(self, point: Tensor, with_gradient: bool) -> ClientSums:
        """The sums of all clients' blocks."""
        blocks = point.view(sum(len(group.clients) for group in self.groups), -1, point.shape[1])
        parts = [group.sums(blocks[group.clients], with_gradient) for group in self.groups]
        sums = {key: torch.stack([p[key] for p in parts]).sum() for key in ("count", "loss", "correct")}
        if with_gradient:
            gradient = torch.empty_like(blocks)
            for group, part in zip(self.groups, parts, strict=True):
                gradient[group.clients] = part["gradient"]
            sums["gradient"] = gradient.view_as(point)
        return sums


def client_sums(x: Tensor) -> ClientSums:
    """For standardisation: the number of samples, and the sum and the sum of squares of every feature."""
    wide = [part.double() for part in torch.split(x, 4096)]
    return {
        "count": torch.tensor(float(len(x)), dtype=torch.float64, device=x.device),
        "sum": torch.stack([part.sum(0) for part in wide]).sum(0),
        "square": torch.stack([part.square().sum(0) for part in wide]).sum(0),
    }


def client_moments(x: Tensor) -> ClientSums:
    """For whitening: the sum of x x' over the samples (features standardised)."""
    return {
        "count": torch.tensor(float(len(x)), dtype=torch.float64, device=x.device),
        "moments": (x.T @ x).double(),
    }


def client_gradient(sample: Sample | BlockDiagonal, point: Tensor) -> ClientSums:
    """In every round: loss and gradient at the point [outputs, d + 1], summed over the client's samples."""
    if isinstance(sample, BlockDiagonal):
        sums = sample.sums(point, with_gradient=True)
        return {key: sums[key] for key in ("count", "loss", "gradient")}
    return _streamed(_gradient, sample, point)


def client_scores(sample: Sample | BlockDiagonal, point: Tensor) -> ClientSums:
    """For validation: loss and number of correct answers, summed over held-out samples."""
    if isinstance(sample, BlockDiagonal):
        return sample.sums(point, with_gradient=False)
    return _streamed(_scores, sample, point)


def client_gradients(sample: Sample, points: Sequence[Tensor]) -> list[ClientSums]:
    """:func:`client_gradient` at several points of one size: one large product takes less time than many small ones."""
    return _together(partial(_gradient, apart=True), sample, points)


def client_scores_at(sample: Sample, points: Sequence[Tensor]) -> list[ClientSums]:
    """:func:`client_scores` at several points of one size."""
    return _together(partial(_scores, apart=True), sample, points)


def _together(
    sums: Callable[[Sample, Tensor, torch.dtype], ClientSums], sample: Sample, points: Sequence[Tensor]
) -> list[ClientSums]:
    """One question asked at several points, as that many questions whose outputs lie side by side."""
    outputs, each = len(points[0]), []
    for start in range(0, len(points), most := max(1, TOGETHER // outputs)):
        some = torch.cat(list(points[start : start + most]))
        times = len(some) // outputs
        offset = None if sample.offset is None else sample.offset.repeat(1, times)
        total = _streamed(sums, Sample(sample.x, sample.y[:, None].expand(-1, times), offset), some)
        for i in range(times):
            own = {key: value[i] for key, value in total.items() if key in ("loss", "correct")}
            if "gradient" in total:
                own["gradient"] = total["gradient"][i * outputs : (i + 1) * outputs]
            each.append({"count": total["count"] / times, **own})
    return each


def grouped(values: Mapping[Key, Group]) -> dict[Group, list[Key]]:
    """By value, the keys that have it."""
    groups: dict[Group, list[Key]] = {}
    for key, value in values.items():
        groups.setdefault(value, []).append(key)
    return groups


def logits_at(x: Tensor, point: Tensor, offset: Tensor | None = None, precision: torch.dtype = torch.float64) -> Tensor:
    """W x + b (+ offset) for a point [outputs, d + 1]; the product itself in the precision of x."""
    z = (x @ point[:, :-1].to(x.dtype).T).to(precision) + point[:, -1].to(precision)
    return z if offset is None else z + offset.to(precision)


def _streamed(sums: Callable[[Sample, Tensor, torch.dtype], ClientSums], sample: Sample, point: Tensor) -> ClientSums:
    """The sums over all samples, block by block of rows, added in an order that no number of cores changes.

    The matrix of probabilities [samples, outputs] may be larger than the memory, and takes longer to write and read
    than to compute. So it is never made as a whole. Several blocks are computed in the precision of x: rounding in
    single samples hardly changes a sum over so many, which is float64 in any case.
    """
    rows = max(1, BLOCK[sample.x.device.type] // len(point))
    if len(sample) <= rows:
        return sums(sample, point, torch.float64)
    starts = range(0, len(sample), rows)

    def stripe(number: int) -> ClientSums:
        """Neighbouring blocks, a share of all."""
        own = starts[number * len(starts) // STRIPES : (number + 1) * len(starts) // STRIPES]
        return _total(sums(sample.slice(start, start + rows), point, sample.x.dtype) for start in own)

    threads = 1 if sample.x.is_cuda else torch.get_num_threads()
    with intra_op_threads(1), thread_map(threads) as spread:
        return _total(spread(stripe, range(STRIPES)))


def _total(parts: Iterable[ClientSums]) -> ClientSums:
    """The sum of all parts that are not empty, in their order; only one of them is kept in memory."""
    total: ClientSums = {}
    for part in parts:
        total = {key: total[key].add_(value) for key, value in part.items()} if total and part else total or part
    return total


def _gradient(sample: Sample, point: Tensor, precision: torch.dtype, apart: bool = False) -> ClientSums:
    """``apart``: the loss of every question by itself."""
    log_p, chosen = _log_likelihood(sample, point, precision)
    residual = log_p.exp_()
    places = _places(sample, residual.shape[1])
    residual.scatter_add_(1, places, residual.new_full((), -1.0).expand_as(places))
    gradient = (residual.to(sample.x.dtype).T @ sample.x).double()
    return {
        "count": torch.tensor(float(sample.y.numel()), dtype=torch.float64, device=point.device),
        "loss": -(chosen.sum(0) if apart else chosen.sum()),
        "gradient": torch.cat([gradient, residual.sum(0, dtype=torch.float64)[:, None]], dim=1),
    }


def _scores(sample: Sample, point: Tensor, precision: torch.dtype, apart: bool = False) -> ClientSums:
    """``apart``: loss and correct answers of every question by itself."""
    log_p, chosen = _log_likelihood(sample, point, precision)
    right = _by_question(log_p, sample).argmax(-1) == _questions(sample)
    return {
        "count": torch.tensor(float(sample.y.numel()), dtype=torch.float64, device=point.device),
        "loss": -(chosen.sum(0) if apart else chosen.sum()),
        "correct": (right.sum(0) if apart else right.sum()).double(),
    }


def _log_likelihood(sample: Sample, point: Tensor, precision: torch.dtype) -> tuple[Tensor, Tensor]:
    """Log-probabilities [n, outputs] in this precision, and in float64 those of the labels."""
    logits = logits_at(sample.x, point, sample.offset, precision)
    log_p = _by_question(logits, sample).log_softmax(-1).view_as(logits)
    return log_p, log_p.gather(1, _places(sample, len(point))).double()


def _questions(sample: Sample) -> Tensor:
    """The labels as [n, questions]."""
    return sample.y if sample.y.ndim == 2 else sample.y[:, None]


def _by_question(values: Tensor, sample: Sample) -> Tensor:
    """Values [n, outputs] as [n, questions, outputs of each]."""
    questions = _questions(sample).shape[1]
    return values.view(len(sample), questions, values.shape[1] // questions)


def _places(sample: Sample, outputs: int) -> Tensor:
    """The outputs [n, questions] that the labels name."""
    y = _questions(sample)
    if y.shape[1] == 1:
        return y.long()
    return y + torch.arange(0, outputs, outputs // y.shape[1], device=y.device)
