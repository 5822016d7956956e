"""ConFREE (Zheng et al., AAAI 2025): conflict-free updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from feddrm.errors import SettingError
from feddrm.methods.fedrep import FedRep
from feddrm.methods.method import Tensors
from feddrm.methods.variants import check_variant

EPSILON = 1e-8
ITERATIONS = 200


@dataclass(frozen=True)
class ConFREE(FedRep):
    """FedRep whose server takes conflicting parts out of the clients' updates before averaging

    ``variant="paper"``: for every pair of updates with a negative product, each loses its component
    along the other, over the whole body at once; averaged by sample counts. ``variant="original"``:
    tensor by tensor, a projected guidance vector and then the update that serves the worst client
    best within ``radius`` of it, clients weighted equally (in a fixed order, and with the
    normalisation that projections need; the original's code draws the order and leaves that out).
    """

    name: ClassVar[str] = "confree"
    variant: str = "paper"
    radius: float = 0.5

    def check(self, rounds: int) -> None:
        super().check(rounds)
        check_variant(self)
        if not 0 <= self.radius < 1:
            raise SettingError(f"radius={self.radius}: it must lie in [0, 1)")

    def aggregate(self, shared: Tensors, uploads: Sequence[Tensors], weights: Tensor) -> Tensors:
        if not uploads:
            return shared
        moves = {
            leaf: torch.stack([upload[leaf] - shared[leaf] for upload in uploads]).flatten(1) for leaf in uploads[0]
        }
        grams = {leaf: move @ move.T for leaf, move in moves.items()}
        if self.variant == "paper":
            whole = torch.stack(list(grams.values())).sum(0)
            shares = dict.fromkeys(moves, without_conflicts(whole, weights.to(whole)))
        else:
            shares = {leaf: worst_client_best(gram, self.radius) for leaf, gram in grams.items()}
        # Every rule ends in a linear combination of the clients' own moves.
        return {leaf: shared[leaf] + (shares[leaf] @ move).view_as(shared[leaf]) for leaf, move in moves.items()}


def without_conflicts(gram: Tensor, weights: Tensor) -> Tensor:
    """Weights of the original moves after all pairwise projections, taken from the original products."""
    along = gram.clamp(max=0) / (gram.diagonal() + EPSILON)  # [i, j]: what i loses along j; the diagonal is >= 0
    return weights - along.T @ weights


def worst_client_best(gram: Tensor, radius: float) -> Tensor:
    """Weights of the moves: a conflict-averse step around a guidance vector, in coefficients throughout."""
    m = len(gram)
    rows = torch.eye(m, dtype=gram.dtype, device=gram.device)
    projected = []
    for i in range(m):
        g = rows[i]
        for j in range(m):
            if j != i:
                g = g - (gram[j] @ g).clamp(max=0) / (gram[j, j] + EPSILON) * rows[j]
        projected.append(g)
    guide = torch.stack(projected).mean(0)
    ball = radius * (guide @ gram @ guide).clamp_min(0).sqrt()
    w = torch.full_like(guide, 1 / m)
    pull = gram @ guide
    # Exponentiated gradient on the simplex: minimise <g_w, guide> + ball * |g_w|.
    for _ in range(ITERATIONS):
        length = (w @ gram @ w).clamp_min(EPSILON**2).sqrt()
        slope = pull + ball * (gram @ w) / length
        w = torch.softmax(w.clamp_min(1e-30).log() - slope / (slope.abs().max() + EPSILON), dim=0)
    length = (w @ gram @ w).clamp_min(EPSILON**2).sqrt()
    return (guide + ball / length * w) / (1 + radius**2)
