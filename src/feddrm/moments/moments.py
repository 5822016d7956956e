"""Moments of features: counts and sums by client and class, and the Gram matrix about the mean. They add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from feddrm.errors import FeddrmError
from feddrm.io.tensors import tensor_bytes

MomentTarget = Literal["client", "class"]  # what a head tells apart
BLOCK = 4096  # rows that are converted to float64 at once
STRIP = 512  # columns of the Gram matrix that are computed at once
CONSTANT = 1e-20  # variance over squared mean, below which a feature varies by rounding alone
SAME = 1e-12  # how far from 1 the correlation of equal features may be
SEND_AGAIN = "let the client send them again"


@dataclass(frozen=True, eq=False)
class Moments:
    """What one message of a client holds, in float64, and the sum of several such messages.

    ``a + b`` are the moments of both sets of samples, so a result does not depend on how samples are divided. The
    Gram matrix is about the mean of its own samples: about zero, features far from zero would lose digits. Sums are
    kept by client and by class, not by both: no head needs those, and many clients of many classes would fill memory.
    """

    counts: Tensor  # [clients, classes]
    client_sums: Tensor  # [clients, d]
    class_sums: Tensor  # [classes, d]
    scatter: Tensor  # [d, d], the Gram matrix of the centred features

    @classmethod
    def of(cls, x: Tensor, y: Tensor, client: int, clients: int, classes: int) -> Self:
        """Moments of one client's features [n, d] and classes [n]."""
        zeros = partial(torch.zeros, dtype=torch.float64, device=x.device)
        counts, gram = zeros(clients, classes), zeros(*2 * x.shape[1:])
        client_sums, class_sums = zeros(clients, x.shape[1]), zeros(classes, x.shape[1])
        counts[client] = torch.bincount(y, minlength=classes).double()
        for rows, labels in zip(torch.split(x, BLOCK), torch.split(y, BLOCK), strict=True):
            class_sums.index_add_(0, labels, rows.double())
        client_sums[client] = class_sums.sum(0)
        mean = client_sums[client] / max(len(x), 1)
        for rows in torch.split(x, BLOCK):
            centred = rows - mean
            for start in range(0, x.shape[1], STRIP):  # the upper triangle alone, at half the cost
                strip = slice(start, start + STRIP)
                gram[strip, start:].addmm_(centred[:, strip].T, centred[:, start:])
        return cls(counts, client_sums, class_sums, _mirrored(gram))

    @classmethod
    def joined(cls, clients: Iterable[Sequence[Moments]]) -> list[Moments]:
        """The moments of all clients, part by part, from every client's parts as of the only client.

        Clients are taken one after another. To add moments that have a place for every client would take time by the
        square of their number.
        """
        totals: list[Moments] = []
        counts: list[list[Tensor]] = []
        sums: list[list[Tensor]] = []
        for own in clients:
            totals = [a + b for a, b in zip(totals, own, strict=True)] if totals else list(own)
            counts.append([part.counts for part in own])
            sums.append([part.client_sums for part in own])
        each = zip(totals, zip(*counts, strict=True), zip(*sums, strict=True), strict=True)
        return [cls(torch.cat(c), torch.cat(s), total.class_sums, total.scatter) for total, c, s in each]

    @property
    def width(self) -> int:
        """The number of features."""
        return len(self.scatter)

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers of clients, classes and features."""
        return (*self.counts.shape, self.width)

    @cached_property
    def count(self) -> float:
        """The number of samples."""
        return float(self.counts.sum())

    @cached_property
    def mean(self) -> Tensor:
        """The features' means [d]; zero without any sample."""
        return self.client_sums.sum(0) / max(self.count, 1.0)

    @cached_property
    def constant(self) -> Tensor:
        """Which features have one value only [d]."""
        return self.scatter.diagonal() / max(self.count, 1.0) <= CONSTANT * self.mean.square()

    @cached_property
    def scale(self) -> Tensor:
        """The features' standard deviations [d]; 1 for a constant feature."""
        variance = self.scatter.diagonal() / max(self.count, 1.0)
        return torch.where(self.constant, 1.0, variance.clamp(min=0).sqrt())

    def duplicates(self) -> list[tuple[int, int]]:
        """Pairs of features of which one follows from the other: x and a x + b. A feature is named once."""
        correlation = self.standardised(self.mean, self.scale).scatter / max(self.count, 1.0)
        same = torch.triu(correlation.abs() >= 1 - SAME, diagonal=1)
        first = {second: first for first, second in reversed(same.nonzero().tolist())}
        return [(first[second], second) for second in sorted(first)]

    def by(self, target: MomentTarget) -> tuple[Tensor, Tensor]:
        """Counts [outputs] and sums [outputs, d] by client or by class."""
        return (self.counts.sum(1), self.client_sums) if target == "client" else (self.counts.sum(0), self.class_sums)

    def __add__(self, other: Moments) -> Moments:
        """The moments of both sets of samples (Chan, Golub and LeVeque, 1983)."""
        if self.shape != other.shape:
            shapes = f"{self.shape} and {other.shape}"
            raise FeddrmError(f"moments of {shapes} (clients, classes, features) do not add up: use the same features")
        between = self.count * other.count / max(self.count + other.count, 1.0)
        apart = self.mean - other.mean
        scatter = self.scatter + other.scatter
        scatter.addr_(apart, apart, alpha=between)
        client_sums, class_sums = self.client_sums + other.client_sums, self.class_sums + other.class_sums
        return Moments(self.counts + other.counts, client_sums, class_sums, scatter)

    def columns(self, index: Tensor) -> Moments:
        """The moments of some of the features; the same object for all of them."""
        if torch.equal(index, torch.arange(self.width, device=index.device)):
            return self
        client_sums, class_sums = self.client_sums[:, index], self.class_sums[:, index]
        return Moments(self.counts, client_sums, class_sums, self.scatter[index[:, None], index])

    def standardised(self, mean: Tensor, scale: Tensor) -> Moments:
        """The moments of (x - mean) / scale."""
        client_sums, class_sums = (
            (sums - counts[:, None] * mean) / scale for counts, sums in (self.by("client"), self.by("class"))
        )
        return Moments(self.counts, client_sums, class_sums, (self.scatter / scale[:, None]).div_(scale))

    def tensors(self, *, half: bool = False) -> dict[str, Tensor]:
        """For a message: only clients and classes that have samples, and the upper triangle of the Gram matrix.

        With ``half`` the Gram matrix is sent as deviations and correlations, the latter in float16.
        """
        cells = self.counts.nonzero()
        pairs = tuple(cells.T)
        plain = {
            "shape": torch.tensor(self.counts.shape),
            "cells": cells,
            "counts": self.counts[pairs],
            "client_sums": self.client_sums[self.counts.sum(1) != 0],
            "class_sums": self.class_sums[self.counts.sum(0) != 0],
        }
        if not half:
            return {**plain, "scatter": _triangle(self.scatter)}
        deviation = self.scatter.diagonal().clamp(min=0).sqrt()
        divisor = torch.where(deviation > 0, deviation, 1.0)
        correlation = (self.scatter / divisor[:, None]).div_(divisor)
        return {**plain, "deviation": deviation, "correlation": _triangle(correlation).half()}

    @classmethod
    def load(cls, tensors: Mapping[str, Tensor]) -> Moments:
        """The inverse of :meth:`tensors`; what are no moments is refused."""
        try:
            width, pairs = tensors["class_sums"].shape[1], tuple(tensors["cells"].T)
            zeros = partial(torch.zeros, dtype=torch.float64, device=tensors["class_sums"].device)
            counts, scatter = zeros(*tensors["shape"].tolist()), zeros(width, width)
            counts[pairs] = tensors["counts"]
            client_sums, class_sums = (zeros(len(axis), width) for axis in (counts, counts.T))
            client_sums[counts.sum(1) != 0] = tensors["client_sums"]
            class_sums[counts.sum(0) != 0] = tensors["class_sums"]
            triangle = tensors["correlation"].double() if "correlation" in tensors else tensors["scatter"]
            if len(triangle) != width * (width + 1) // 2:
                raise IndexError(f"{len(triangle)} entries of a triangle of {width} rows")
            for i, (row, part) in enumerate(
                zip(scatter, torch.split(triangle, list(range(width, 0, -1))), strict=True)
            ):
                row[i:] = part
            _mirrored(scatter)
            if "correlation" in tensors:
                scatter.mul_(tensors["deviation"][:, None]).mul_(tensors["deviation"])
        except (KeyError, IndexError, RuntimeError, TypeError) as error:
            raise FeddrmError(f"these are no moments ({error}): {SEND_AGAIN}") from error
        if not all(bool(t.isfinite().all()) for t in (counts, client_sums, class_sums, triangle, scatter.diagonal())):
            raise FeddrmError(f"moments with a number that is not finite: {SEND_AGAIN}")
        if bool((counts < 0).any()) or bool((scatter.diagonal() < 0).any()):
            raise FeddrmError(f"moments with a negative count or square: {SEND_AGAIN}")
        return cls(counts, client_sums, class_sums, scatter)

    def to_bytes(self, *, half: bool = False) -> bytes:
        """The bytes of a safetensors file."""
        return tensor_bytes(self.tensors(half=half))

    @classmethod
    def from_bytes(cls, content: bytes) -> Moments:
        """The inverse of :meth:`to_bytes`."""
        try:
            return cls.load(load(content))
        except SafetensorError as error:
            raise FeddrmError(f"these are no moments ({error}): {SEND_AGAIN}") from error


def _triangle(square: Tensor) -> Tensor:
    """The upper triangle of a square matrix, row by row."""
    return torch.cat([row[i:] for i, row in enumerate(square)])


def _mirrored(square: Tensor) -> Tensor:
    """The same matrix, its upper triangle copied into the lower one; by strips, because columns lie far apart."""
    for start in range(0, len(square), STRIP):
        stop = start + STRIP
        corner = square[start:stop, start:stop]
        corner.copy_(corner.triu() + corner.triu(1).T)
        square[stop:, start:stop] = square[start:stop, stop:].T
    return square
