"""The interface of methods: which leaves train under which loss, which travel, and how uploads combine.

A round is a short sequence of SGD phases over named slots of tensors, each with a fresh optimiser
and a fresh shuffle. A method keeps everything it remembers in the slots and nothing in the object, so
the same method runs one client after another, all clients at once, or over a network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from feddrm.data import Batch
from feddrm.errors import FeddrmError, SettingError
from feddrm.models import Outputs, is_head
from feddrm.registry import Named

Tensors = dict[str, Tensor]
Slots = dict[str, Tensors]
Forward = Callable[[Tensors, Tensor], Outputs]


@dataclass(frozen=True)
class Stage:
    """What a method may know about the current round: its local steps, whether clients only tune, its number and rate.

    ``round`` counts from 1 to ``rounds``; ``lr`` is the round's learning rate. Stages that differ in these alone are
    equal: a CUDA graph is captured once per stage. The rounds of a method that reads ``round`` or ``lr`` are played
    without a graph.
    """

    steps: int
    tuning: bool = False
    round: int = field(default=1, compare=False)
    rounds: int = field(default=1, compare=False)
    lr: float = field(default=0.0, compare=False)

    @property
    def name(self) -> str:
        """What files call it: ``tune`` while clients only tune, else ``train``."""
        return "tune" if self.tuning else "train"


@dataclass(frozen=True, eq=False)
class Sgd:
    """Momentum SGD as in PyTorch. ``lr`` is a tensor, so that a captured graph can read another rate every round.

    A gradient whose norm over all trained leaves exceeds ``clip`` is scaled down to it; 0 leaves gradients alone.
    """

    momentum: float
    weight_decay: float
    lr: Tensor
    clip: float = 0.0

    def changed(self, changes: Mapping[str, float]) -> Sgd:
        """The same settings with some replaced by numbers."""
        values: dict[str, Any] = dict(changes)
        if "lr" in changes:
            values["lr"] = torch.full_like(self.lr, changes["lr"])
        return replace(self, **values)


def everything(leaf: str) -> bool:
    """Every leaf."""
    return True


def body(leaf: str) -> bool:
    """Every leaf except the class head."""
    return not is_head(leaf)


def unchanged(slots: Slots) -> Slots:
    """The slots as they are."""
    return slots


@dataclass(frozen=True)
class Phase:
    """``steps`` of SGD on those leaves of one slot that ``train`` selects; ``enter`` prepares the slots.

    The training loss of a round is the mean of its ``logged`` phases' mean losses. ``sgd`` holds the
    settings of :class:`Sgd` that differ from the run's in this phase, such as ``{"weight_decay": 0.0}``.
    """

    steps: int
    loss: Callable[[Forward, Slots, Batch], Tensor]
    slot: str = "model"
    train: Callable[[str], bool] = everything
    enter: Callable[[Slots], Slots] = unchanged
    sam_radius: float = 0.0
    clamp: tuple[float, float] | None = None
    sgd: Mapping[str, float] = field(default_factory=dict)
    logged: bool = True


@dataclass(frozen=True)
class Statistics:
    """Statistics of ``steps`` batches, without training: the results of ``measure`` are summed into a slot.

    ``measure`` runs without gradients. If it needs some, it asks for them: the loss is computed under
    ``torch.enable_grad()``, from leaves made by ``value.detach().requires_grad_()``, as in ``fedas.py``.
    """

    steps: int
    measure: Callable[[Forward, Slots, Batch], Tensors]
    slot: str


@dataclass(frozen=True)
class Method(Named, ABC):
    """Both halves of a federated method, client and server, in one object without state.

    A client has the slots ``model`` (what it trains), ``shared`` (what it received, during a round), and
    those that the method keeps between rounds. docs/extending.md writes one in a file of its own.

    Example:
        >>> feddrm.Method.make("feddrm", lam=0.9)
        FedDRM(lam=0.9)
    """

    client_branch: ClassVar[bool] = False
    closed_form: ClassVar[bool] = False  # whether it has no rounds: see methods/closed_form.py

    @property
    def device_aggregate(self) -> bool:
        """Whether ``aggregate`` consists of tensor arithmetic alone, so that a CUDA graph can record it."""
        return True

    @property
    def averages(self) -> bool:
        """Whether ``aggregate`` needs the weighted mean of the uploads only: secure aggregation shows nothing else."""
        return type(self).aggregate is Method.aggregate

    @property
    def needs_classes(self) -> bool:
        """Whether it looks at labels as classes, beyond the task's loss."""
        return self.closed_form

    def check(self, rounds: int) -> None:
        """Refuse impossible hyper-parameters before anything is loaded."""
        if not 0 <= self.tuning_rounds(rounds) <= rounds:
            raise SettingError(
                f"{self.name}: {self.tuning_rounds(rounds)} fine-tuning rounds do not fit into {rounds} rounds: "
                f"ask for more rounds or less tuning"
            )

    def check_phases(self, stage: Stage) -> None:
        """Refuse a round that is no sequence of phases with whole numbers of steps, or in which nothing is trained."""
        phases: Any = self.phases(stage)
        if not isinstance(phases, tuple | list) or not all(isinstance(p, Phase | Statistics) for p in phases):
            raise FeddrmError(f"{self.name}: phases() must return a tuple of Phase and Statistics, as (Phase(...),)")
        for phase in phases:
            if not isinstance(phase.steps, int) or phase.steps < 0:
                raise FeddrmError(f"{self.name}: a phase has steps={phase.steps!r}: give a whole number, 0 or more")
        if not self.closed_form and not any(isinstance(p, Phase) for p in phases):
            raise FeddrmError(f"{self.name}: phases() has no Phase, so nothing would be trained: give one")

    @abstractmethod
    def phases(self, stage: Stage) -> tuple[Phase | Statistics, ...]:
        """The client's work in one round, in order."""

    def tuning_rounds(self, rounds: int) -> int:
        """How many of the last rounds only tune: clients train, and nothing travels."""
        return 0

    def shares(self, leaf: str, stage: Stage) -> bool:
        """Whether a leaf of the model travels to the server. Nothing else travels, except ``extras``."""
        return not stage.tuning

    def extras(self) -> tuple[str, ...]:
        """Names of statistics that travel with the leaves; most methods have none."""
        return ()

    def keeps(self, leaf: str, stage: Stage) -> bool:
        """Whether a leaf of the model stays with the client between rounds."""
        return not self.shares(leaf, stage)

    def start(self, leaves: Tensors) -> tuple[Tensors, Slots]:
        """The shared leaves and a client's private slots before round 1; all clients start from one model."""
        first = Stage(steps=1)
        shared = {leaf: value for leaf, value in leaves.items() if self.shares(leaf, first)}
        return shared, {"model": {leaf: value for leaf, value in leaves.items() if leaf not in shared}}

    def send(self, shared: Tensors, client: int) -> Tensors:
        """The leaves that the server sends to one client: the same to all, unless the method personalises them."""
        return shared

    def begin(self, received: Tensors, private: Slots) -> Slots:
        """The slots at the start of a client's round."""
        return {**private, "model": {**received, **private.get("model", {})}, "shared": received}

    def finish(self, slots: Slots, stage: Stage) -> tuple[Tensors, Slots]:
        """The upload, and the private slots, at the end of a client's round."""
        model = slots["model"]
        private = {name: slot for name, slot in slots.items() if name not in ("model", "shared")}
        private["model"] = {leaf: value for leaf, value in model.items() if self.keeps(leaf, stage)}
        return {leaf: value for leaf, value in model.items() if self.shares(leaf, stage)}, private

    def aggregate(self, shared: Tensors, uploads: Sequence[Tensors], weights: Tensor) -> Tensors:
        """The shared leaves after the server's step; the ``weights`` of the uploads sum to one."""
        return {**shared, **weighted_mean(uploads, weights)}

    def serve(self, received: Tensors, private: Slots) -> Tensors:
        """The model that a client answers queries with, from what the server sends and what the client keeps."""
        return {**received, **private.get("model", {})}

    def global_model(self, shared: Tensors) -> Tensors | None:
        """The one model without any private part; None if the method has none."""
        return shared if any(is_head(leaf) for leaf in shared) else None


@dataclass(frozen=True)
class TunedMethod(Method, ABC):
    """A method whose last rounds only fine-tune: ``tuning`` rounds, by default an eighth (the paper: 100 of 800)."""

    one_in: ClassVar[int] = 8  # rounds tunes
    tuning: int | None = None

    def tuning_rounds(self, rounds: int) -> int:
        """One in ``one_in`` of all rounds, at least one of two or more, unless ``tuning`` says how many.

        A short run without any would have the name of a fine-tuned method and the figures of another one.
        """
        if self.tuning is not None:
            return self.tuning
        return max(round(rounds / self.one_in), 1 if rounds > 1 else 0)


def checked_parts(method: Method, where: str, returned: Any) -> tuple[Tensors, Slots]:
    """What a method's ``start`` or ``finish`` returned; an error unless it is leaves and private slots."""
    match returned:
        case (Mapping() as leaves, Mapping() as private) if all(map(_are_tensors, (leaves, *private.values()))):
            parts: tuple[Tensors, Slots] = returned
            return parts
    raise FeddrmError(
        f"{method.name}: {where}() must return two dicts: the leaves that travel, and the private slots, "
        "each slot a dict of tensors"
    )


def _are_tensors(values: Any) -> bool:
    return isinstance(values, Mapping) and all(isinstance(value, Tensor) for value in values.values())


def weighted_mean(uploads: Sequence[Tensors], weights: Tensor) -> Tensors:
    """The weighted mean of every leaf; empty if nothing was uploaded."""
    if not uploads:
        return {}
    out: Tensors = {}
    for leaf, first in uploads[0].items():
        stacked = torch.stack([upload[leaf] for upload in uploads])
        out[leaf] = torch.tensordot(weights.to(first), stacked, dims=1)
    return out


def split_steps(steps: int, one_in: int = 2) -> tuple[int, int]:
    """The steps of two phases: one in ``one_in`` for the first, rounded down, and at least one for each."""
    if steps < 2:
        raise SettingError(f"local_steps={steps}: this method divides its steps between two phases: give at least 2")
    first = max(1, steps // one_in)
    return first, steps - first


def check_variant(name: str, variant: str) -> None:
    """Refuse a variant of a method that is neither as in the paper's experiments nor as first published."""
    if variant not in ("paper", "original"):
        raise SettingError(f"{name}: unknown variant '{variant}': choose 'paper' (as in its experiments) or 'original'")
