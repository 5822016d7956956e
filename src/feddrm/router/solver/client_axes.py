"""The principal axes of every client's own samples, for fits whose outputs the clients do not share.

A client with fewer samples than features moves its head only in the span of its samples. On the axes of this span a fit
has as many weights per output as the client has samples, and knows every client's own second moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feddrm.router.solver.client_statistics import Sample
from feddrm.router.solver.problem import Whitening


@dataclass(frozen=True, eq=False)
class OwnAxes:
    """Every client on the axes of its own samples."""

    each: Sequence[Sample]
    coordinates: Tensor  # [clients, n, n] of padded samples
    values: Tensor  # [clients, n] second moments, each client's share of those of all samples
    vectors: Tensor  # [clients, d, n]

    @classmethod
    def of(cls, each: Sequence[Sample]) -> OwnAxes:
        x = torch.nn.utils.rnn.pad_sequence([sample.x for sample in each], batch_first=True).double()
        squares, left = torch.linalg.eigh(x @ x.transpose(1, 2))
        roots = squares.clamp(min=0).sqrt()
        # Directions of rounding only: no sample varies there.
        inverse = torch.where(roots > 1e-6 * roots.amax(1, keepdim=True), 1 / roots, 0.0)
        vectors = x.transpose(1, 2) @ (left * inverse[:, None])
        like, total = each[0].x, sum(map(len, each))
        return cls(each, (left * roots[:, None]).to(like), squares.clamp(min=0) / total, vectors)

    @property
    def width(self) -> int:
        """The number of axes."""
        return self.values.shape[1]

    def whitening(self, outputs: int) -> Whitening:
        """The second moments of every output; a client has so many of them."""
        return Whitening(self.values.repeat_interleave(outputs, dim=0), None)

    def samples(self) -> list[Sample]:
        """Every client's samples on its axes."""
        rows = zip(self.each, self.coordinates, strict=True)
        return [Sample(own[: len(sample)], sample.y, sample.offset) for sample, own in rows]

    def turn(self, point: Tensor, back: bool = False) -> Tensor:
        """A point of all clients on the features as one on their axes, or back."""
        blocks = point.view(len(self.values), -1, point.shape[1])
        vectors = self.vectors.transpose(1, 2) if back else self.vectors
        return torch.cat([blocks[:, :, :-1] @ vectors, blocks[:, :, -1:]], dim=2).flatten(0, 1)
