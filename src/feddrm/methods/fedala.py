"""FedALA (Zhang et al., AAAI 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from feddrm.data import Batch
from feddrm.errors import SettingError
from feddrm.methods.losses import classify
from feddrm.methods.method import Forward, Method, Phase, Slots, Stage, Tensors, check_variant, split_steps

UNDECAYED = {"weight_decay": 0.0}  # decay would pull the mixing weights towards the client's own model


@dataclass(frozen=True)
class FedALA(Method):
    """Every client learns, parameter by parameter, how much of the global model replaces its own

    ``variant="paper"``: mixing weights for the whole model; half of the local steps learn them, half train the
    mixture; a client answers with its model as trained, before aggregation. ``learn_mix=False`` is what the
    paper's released code computes: its mixing weights get no gradient and stay one.
    ``variant="original"``: mixing weights for the last ``layers`` tensors only, all others are those of the
    global model; rate 1 without momentum or decay; a client answers with the mixture.
    """

    name: ClassVar[str] = "fedala"
    learn_mix: bool = True
    variant: str = "paper"
    layers: int = 2

    def check(self, rounds: int) -> None:
        super().check(rounds)
        check_variant(self.name, self.variant)
        if self.layers < 1:
            raise SettingError(f"layers={self.layers}: at least one tensor must be mixed (the original: 2)")

    def phases(self, stage: Stage) -> tuple[Phase, ...]:
        mixing, training = split_steps(stage.steps)
        sgd = {**UNDECAYED, "momentum": 0.0, "lr": 1.0} if self.variant == "original" else UNDECAYED
        learn = Phase(mixing, _mixed_loss, slot="mix", clamp=(0.0, 1.0), sgd=sgd, logged=False)
        train = Phase(training, classify, enter=_take_mix)
        return (learn, train) if self.learn_mix else (train,)

    def start(self, leaves: Tensors) -> tuple[Tensors, Slots]:
        mixed = list(leaves)[-self.layers :] if self.variant == "original" else list(leaves)
        return leaves, {"personal": leaves, "mix": {leaf: torch.ones_like(leaves[leaf]) for leaf in mixed}}

    def finish(self, slots: Slots, stage: Stage) -> tuple[Tensors, Slots]:
        return slots["model"], {"personal": slots["model"], "mix": slots["mix"]}

    def serve(self, received: Tensors, private: Slots) -> Tensors:
        return mix({**private, "shared": received}) if self.variant == "original" else private["personal"]


def mix(slots: Slots) -> Tensors:
    """personal + (shared - personal) * W for leaves with mixing weights W, the shared leaf for all others."""
    own, theirs = slots["personal"], slots["shared"]
    return {**theirs, **{leaf: own[leaf] + (theirs[leaf] - own[leaf]) * w for leaf, w in slots["mix"].items()}}


def _mixed_loss(net: Forward, slots: Slots, batch: Batch) -> Tensor:
    return classify(net, {"model": mix(slots)}, batch)


def _take_mix(slots: Slots) -> Slots:
    return {**slots, "model": mix(slots)}
