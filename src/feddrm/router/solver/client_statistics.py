"""The client's half of the exact fit: the sums over its own samples that a client sends.

Sums and second moments of the features are sent once, loss and gradient in every round. Nothing else leaves a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feddrm.threads import intra_op_threads, thread_map

ClientSums = dict[str, Tensor]
BLOCK = {"cpu": 2**19, "cuda": 2**27}  # probabilities [rows, outputs] computed at once; on a CPU they fit a cache
STRIPES = 16  # parts of all blocks that threads share


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
class BlockDiagonal:
    """Clients that do not share outputs: the samples of the i-th client have the i-th block of outputs only."""

    parts: tuple[Sample, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def x(self) -> Tensor:
        """The first client's features, for their precision and device."""
        return self.parts[0].x

    def blocks(self, point: Tensor) -> Iterator[tuple[Sample, Tensor]]:
        """Every client's samples with its block of the point."""
        return zip(self.parts, point.chunk(len(self.parts)), strict=True)


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
        own = [client_gradient(part, block) for part, block in sample.blocks(point)]
        return {**_sums(own, "count", "loss"), "gradient": torch.cat([message["gradient"] for message in own])}
    return _streamed(_gradient, sample, point)


def client_scores(sample: Sample | BlockDiagonal, point: Tensor) -> ClientSums:
    """For validation: loss and number of correct answers, summed over held-out samples."""
    if isinstance(sample, BlockDiagonal):
        return _sums([client_scores(part, block) for part, block in sample.blocks(point)], "count", "loss", "correct")
    return _streamed(_scores, sample, point)


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


def _gradient(sample: Sample, point: Tensor, precision: torch.dtype) -> ClientSums:
    log_p, chosen = _log_likelihood(sample, point, precision)
    residual = log_p.exp_()
    places = _places(sample, residual.shape[1])
    residual.scatter_add_(1, places, residual.new_full((), -1.0).expand_as(places))
    gradient = (residual.to(sample.x.dtype).T @ sample.x).double()
    return {
        "count": torch.tensor(float(sample.y.numel()), dtype=torch.float64, device=point.device),
        "loss": -chosen.sum(),
        "gradient": torch.cat([gradient, residual.sum(0, dtype=torch.float64)[:, None]], dim=1),
    }


def _scores(sample: Sample, point: Tensor, precision: torch.dtype) -> ClientSums:
    log_p, chosen = _log_likelihood(sample, point, precision)
    return {
        "count": torch.tensor(float(sample.y.numel()), dtype=torch.float64, device=point.device),
        "loss": -chosen.sum(),
        "correct": (_by_question(log_p, sample).argmax(-1) == _questions(sample)).sum().double(),
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
    return y + torch.arange(0, outputs, outputs // y.shape[1], device=y.device)


def _sums(messages: Sequence[ClientSums], *keys: str) -> ClientSums:
    return {key: torch.stack([message[key] for message in messages]).sum() for key in keys}
