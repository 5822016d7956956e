"""FedAS (Yang et al., CVPR 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from feddrm.data import Batch
from feddrm.methods.losses import class_means, class_sums, classify, distance_to_means, masked_mean
from feddrm.methods.method import (
    Forward,
    Method,
    Phase,
    Slots,
    Stage,
    Statistics,
    Tensors,
    check_variant,
    split_steps,
    weighted_mean,
)
from feddrm.models import is_head, is_trunk

FISHER = "fisher"


@dataclass(frozen=True)
class FedAS(Method):
    """The received body is first aligned with the client's previous model, then trained with its head

    ``variant="paper"``: a fifth of the steps align the features of each sample; the server averages by
    sample counts. ``variant="original"``: features are aligned with the class means of the previous
    model's features; the server weights clients by the trace of their Fisher information, measured on the
    last batches.
    """

    name: ClassVar[str] = "fedas"
    variant: str = "paper"

    @property
    def averages(self) -> bool:
        return self.variant == "paper"

    @property
    def needs_classes(self) -> bool:
        return self.variant == "original"

    def check(self, rounds: int) -> None:
        super().check(rounds)
        check_variant(self.name, self.variant)

    def phases(self, stage: Stage) -> tuple[Phase | Statistics, ...]:
        align, rest = split_steps(stage.steps, one_in=5)
        joint = Phase(rest, classify)
        if self.variant == "paper":
            return Phase(align, _features_stay, train=is_trunk, logged=False), joint
        return (
            Statistics(align, lambda net, slots, batch: class_sums(net, slots["prev"], batch), "means"),
            Phase(align, _class_means_stay, train=is_trunk, logged=False),
            joint,
            Statistics(align, _fisher_trace, FISHER),
        )

    def shares(self, leaf: str, stage: Stage) -> bool:
        return not is_head(leaf)

    def extras(self) -> tuple[str, ...]:
        return (FISHER,) if self.variant == "original" else ()

    def start(self, leaves: Tensors) -> tuple[Tensors, Slots]:
        shared, private = super().start(leaves)
        return shared, {**private, "prev": leaves}

    def finish(self, slots: Slots, stage: Stage) -> tuple[Tensors, Slots]:
        upload, private = super().finish(slots, stage)
        if self.variant == "original":
            upload = {**upload, FISHER: slots[FISHER][FISHER]}
        return upload, {"model": private["model"], "prev": slots["model"]}

    def aggregate(self, shared: Tensors, uploads: Sequence[Tensors], weights: Tensor) -> Tensors:
        if self.variant == "original" and uploads:
            traces = torch.stack([upload[FISHER] for upload in uploads])
            total = traces.sum()  # zero if every client fits its batches perfectly; then sample counts decide
            shares = traces / total.clamp_min(torch.finfo(traces.dtype).tiny)
            weights = torch.where(total > 0, shares, weights.to(traces))
            uploads = [{leaf: v for leaf, v in upload.items() if leaf != FISHER} for upload in uploads]
        return {**shared, **weighted_mean(uploads, weights)}


def _features_stay(net: Forward, slots: Slots, batch: Batch) -> Tensor:
    before = net(slots["prev"], batch.x).features.detach()
    return masked_mean((net(slots["model"], batch.x).features - before).square().mean(1), batch.mask)


def _class_means_stay(net: Forward, slots: Slots, batch: Batch) -> Tensor:
    return distance_to_means(net(slots["model"], batch.x).features, class_means(**slots["means"]), batch)


def _fisher_trace(net: Forward, slots: Slots, batch: Batch) -> Tensors:
    """Squared norm of the batch's gradient; its sum over batches is the trace of the empirical Fisher information."""
    with torch.enable_grad():
        model = {leaf: value.detach().requires_grad_() for leaf, value in slots["model"].items()}
        loss = classify(net, {"model": model}, batch)
    gradient = torch.autograd.grad(loss, list(model.values()), allow_unused=True, materialize_grads=True)
    return {FISHER: sum((g.square().sum() for g in gradient), start=batch.x.new_zeros(()))}
