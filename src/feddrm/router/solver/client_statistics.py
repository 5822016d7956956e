"""The client's half of the exact fit: the sums over its own samples that a client sends.

Sums and second moments of the features are sent once, loss and gradient in every round. Nothing else leaves a client.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ClientSums = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Sample:
    """A client's samples: standardised features [n, d], labels [n], and fixed logits [n, outputs] or None."""

    x: Tensor
    y: Tensor
    offset: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, index: Tensor) -> Sample:
        """Some of the samples, by index or mask."""
        return Sample(self.x[index], self.y[index], None if self.offset is None else self.offset[index])

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
    log_p, chosen = _log_likelihood(sample, point)
    residual = log_p.exp()
    residual[torch.arange(len(sample), device=residual.device), sample.y] -= 1
    gradient = (residual.to(sample.x.dtype).T @ sample.x).double()
    return {
        "count": torch.tensor(float(len(sample)), dtype=torch.float64, device=point.device),
        "loss": -chosen.sum(),
        "gradient": torch.cat([gradient, residual.sum(0)[:, None]], dim=1),
    }


def client_scores(sample: Sample | BlockDiagonal, point: Tensor) -> ClientSums:
    """For validation: loss and number of correct answers, summed over held-out samples."""
    if isinstance(sample, BlockDiagonal):
        return _sums([client_scores(part, block) for part, block in sample.blocks(point)], "count", "loss", "correct")
    log_p, chosen = _log_likelihood(sample, point)
    right = (log_p.argmax(1) == sample.y).sum().double()
    return {
        "count": torch.tensor(float(len(sample)), dtype=torch.float64, device=point.device),
        "loss": -chosen.sum(),
        "correct": right,
    }


def logits_at(x: Tensor, point: Tensor, offset: Tensor | None = None) -> Tensor:
    """W x + b (+ offset) in float64, for a point [outputs, d + 1]; the product itself in the precision of x."""
    z = (x @ point[:, :-1].to(x.dtype).T).double() + point[:, -1]
    return z if offset is None else z + offset


def _log_likelihood(sample: Sample, point: Tensor) -> tuple[Tensor, Tensor]:
    log_p = logits_at(sample.x, point, sample.offset).log_softmax(1)
    return log_p, log_p.gather(1, sample.y[:, None])[:, 0]


def _sums(messages: Sequence[ClientSums], *keys: str) -> ClientSums:
    return {key: torch.stack([message[key] for message in messages]).sum() for key in keys}
