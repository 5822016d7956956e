"""ConFREE (Zheng et al., AAAI 2025): updates without conflicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from feddrm.errors import SettingError
from feddrm.methods.fedrep import FedRep
from feddrm.methods.method import Tensors, check_variant

EPSILON = 1e-8
ITERATIONS = 200


@dataclass(frozen=True)
class ConFREE(FedRep):
    """FedRep whose server removes conflicting parts from the clients' updates before averaging

    ``variant="paper"``: for every pair of updates with a negative product, each loses its component
    along the other, over the whole body at once; averaged by sample counts. ``variant="original"``:
    for each tensor a projected guidance vector, then the update within ``radius`` of it that is best for
    the worst client; clients have equal weight. Here the order of projections is fixed and projections
    are normalised; the original's code draws the order and leaves the normalisation out.
    """

    name: ClassVar[str] = "confree"
    variant: str = "paper"
    radius: float = 0.5

    def check(self, rounds: int) -> None:
        super().check(rounds)
        check_variant(self.name, self.variant)
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
            best = worst_client_best(torch.stack(list(grams.values())), self.radius)
            shares = dict(zip(grams, best, strict=True))
        # Both variants give a linear combination of the clients' moves.
        return {leaf: shared[leaf] + (shares[leaf] @ move).view_as(shared[leaf]) for leaf, move in moves.items()}


def without_conflicts(gram: Tensor, weights: Tensor) -> Tensor:
    """Weights of the moves after all pairwise projections, computed from the products before them."""
    along = gram.clamp(max=0) / (gram.diagonal() + EPSILON)  # [i, j]: what i loses along j; zero on the diagonal
    return weights - along.T @ weights


def worst_client_best(grams: Tensor, radius: float) -> Tensor:
    """Weights of the moves [..., m] in a conflict-averse step around a guidance vector, for products [..., m, m].

    All vectors are coefficients of the moves, and products are relative to the moves' size: late in a run moves are
    so small that a fixed number added to their products would outweigh them.
    """
    m = grams.shape[-1]
    size = grams.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    grams = grams / size.clamp_min(torch.finfo(grams.dtype).tiny)
    rows = torch.eye(m, dtype=grams.dtype, device=grams.device)
    projected = []
    for i in range(m):
        g = rows[i].expand(grams.shape[:-1])
        for j in range(m):
            if j != i:
                product = (grams[..., j, :] * g).sum(-1, keepdim=True)
                g = g - product.clamp(max=0) / (grams[..., j, j, None] + EPSILON) * rows[j]
        projected.append(g)
    guide = torch.stack(projected).mean(0)

    pull = (grams @ guide[..., None])[..., 0]
    ball = radius * (guide * pull).sum(-1, keepdim=True).clamp_min(0).sqrt()

    def evaluate(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The length of g_w, the gradient at w, and the objective <g_w, guide> + ball * |g_w|."""
        image = (grams @ w[..., None])[..., 0]
        length = (w * image).sum(-1, keepdim=True).clamp_min(EPSILON**2).sqrt()
        return length, pull + ball * image / length, (w * pull).sum(-1, keepdim=True) + ball * length

    # Exponentiated gradient on the simplex. A step without gain is not taken, and the next one is shorter. The
    # choice is made by values, not by a branch, so that a CUDA graph can record it.
    w, rate = torch.full_like(guide, 1 / m), torch.ones_like(ball)
    length, slope, value = evaluate(w)
    for _ in range(ITERATIONS):
        trial = torch.softmax(w.clamp_min(1e-30).log() - rate * slope, dim=-1)
        result = evaluate(trial)
        gains = result[2] < value
        w, rate = torch.where(gains, trial, w), torch.where(gains, 2 * rate, rate / 4)
        length, slope, value = (
            torch.where(gains, new, old) for new, old in zip(result, (length, slope, value), strict=True)
        )
    return (guide + ball / length * w) / (1 + radius**2)
