"""The configuration of a run: everything that decides its numbers, as one frozen value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from feddrm.data import Dataset, Federation
from feddrm.engine import Plan, RoundSchedule, arithmetic, engine_for
from feddrm.engine.recipes import fill_in
from feddrm.errors import SettingError
from feddrm.evaluation import TIES
from feddrm.methods import Method
from feddrm.models import Model, Net
from feddrm.plugins import used_plugins
from feddrm.registry import known_fields
from feddrm.tasks import require_classes
from feddrm.typed_settings import typed, typed_arguments

MANY = 100  # clients, up to which every evaluation is of all of them
SMALL_SIDE = 32  # smaller images, and tables, get the perceptron


@dataclass(frozen=True)
class Evaluation:
    """When and how to evaluate: every round of the last ``window``, every ``every`` rounds before.

    ``also`` is the first and the last of further rounds that are all evaluated, for example the rounds before
    tuning starts, in which a method's clients still share one global model. ``views`` are averaged for every answer.
    With ``participants``, a round in between has the figures of its participants alone.
    """

    window: int = 50
    every: int = 40
    test_crop: bool = True
    ties: str = "smallest"
    also: tuple[int, int] | None = None
    views: int = 1
    participants: bool = False

    def check(self) -> None:
        """Refuse impossible values."""
        if self.window < 1 or self.every < 1:
            raise SettingError(f"window={self.window}, every={self.every}: give at least 1")
        if self.ties not in TIES:
            raise SettingError(f"ties='{self.ties}': choose {' or '.join(TIES)}")
        if self.views < 1:
            raise SettingError(f"views={self.views}: give at least 1")
        if self.also is not None and not 1 <= self.also[0] <= self.also[-1]:
            raise SettingError(f"also={self.also}: give the first and the last round, as in [651, 700]")

    def as_dict(self) -> dict[str, Any]:
        """Plain values. Views and participants stand there only if they are used, so that older runs can be resumed."""
        unused = {"views": 1, "participants": False}
        return {key: value for key, value in asdict(self).items() if key not in unused or value != unused[key]}

    def due(self, round: int, rounds: int) -> bool:
        """Whether a round is evaluated, with all clients."""
        further = self.also is not None and self.also[0] <= round <= self.also[-1]
        return further or round > rounds - self.window or round % self.every == 0


@dataclass(frozen=True)
class Machine:
    """Where and how to compute; no part of the plan. ``threads`` None means as many as suit the data."""

    device: str = "cpu"
    engine: str = "auto"
    precision: str = "auto"
    threads: int | None = None


@dataclass(frozen=True)
class Config:
    """A run's settings, all filled in: enough to run it again."""

    data: Mapping[str, Any]
    method: Method
    model: Model
    plan: Plan = field(default_factory=Plan)
    evaluation: Evaluation = field(default_factory=Evaluation)
    device: str = "cpu"
    engine: str = "sequential"
    precision: str = "auto"
    threads: int = 1

    def check(self) -> None:
        """Refuse impossible settings before anything is trained."""
        self.plan.check(least_rounds=0 if self.method.closed_form else 1)
        self.evaluation.check()
        self.method.check(self.plan.rounds)
        if self.method.closed_form != self.model.frozen:
            raise SettingError(
                f"method '{self.method.name}' needs frozen features: give --model identity, or onnx with its file"
                if self.method.closed_form
                else f"model '{self.model.name}' is frozen and cannot be trained: use 'feddrm fit', or another model"
            )
        for round in {1, self.plan.rounds}:  # some methods need two local steps
            self.method.check_phases(RoundSchedule(self.method, self.plan, 1).stage(round))
        engine_for(self.engine, self.device)
        arithmetic(self.precision, self.device)
        if self.threads < 1:
            raise SettingError(f"threads={self.threads}: give at least 1")

    def as_dict(self) -> dict[str, Any]:
        """The plain values that ``config.yaml`` holds."""
        plugins = used_plugins(type(self.method), type(self.model), Dataset.family.get(self.data["name"]))
        return {
            "data": _plain(self.data),
            "method": {"name": self.method.name, **_plain(asdict(self.method))},
            "model": {"name": self.model.name, **_plain(asdict(self.model))},
            **_plain(self.plan.as_dict()),
            "evaluation": _plain(self.evaluation.as_dict()),
            "device": self.device,
            "engine": self.engine,
            "precision": self.precision,
            "threads": self.threads,
            **({"plugins": plugins} if plugins else {}),
        }

    def build_net(self, federation: Federation) -> Net:
        """The network before training, on the configured device."""
        clients = len(federation) if self.method.client_branch else None
        net = self.model.build(federation.shape, len(federation.classes), clients, self.plan.seed)
        net.task = federation.task
        return net.to(self.device)


@typed_arguments
def resolve(
    federation: Federation,
    *,
    data: Mapping[str, Any] | None = None,
    method: str | Method = "feddrm",
    model: str | Model | Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    **settings: Any,
) -> Config:
    """Fill in the settings that were not given, by a recipe (see :mod:`feddrm.engine.recipes`).

    ``model`` may be settings: without a ``name`` among them, they go to the model that suits the data. ``settings``
    are the fields of :class:`feddrm.engine.Plan` and of :class:`Machine`.
    """
    given, machine_settings = training_settings(settings)
    machine = Machine(**machine_settings)
    small = is_small(federation)
    method = as_method(method)
    if not isinstance(model, str | Model):
        suitable = "mlp" if small else "resnet18_retina" if federation.name == "retina" else "resnet18"
        given_model = {"name": "identity" if method.closed_form else suitable, **(model or {})}
        model = Model.make(given_model.pop("name"), **given_model)
    model = Model.make(model) if isinstance(model, str) else model.retyped()
    plan = fill_in(given, small, recipe)
    when = fill_in_evaluation(known_fields(Evaluation, evaluation or {}, "evaluation"), plan.rounds, len(federation))
    config = Config(
        data={"name": federation.name, **(data if data is not None else federation.dataset or federation.settings)},
        method=method,
        model=model.resolved(federation.shape),
        plan=plan,
        evaluation=Evaluation(**when),
        device=machine.device,
        engine=engine_for(machine.engine, machine.device),
        precision=machine.precision,
        threads=machine.threads if machine.threads is not None else threads_for(small, machine.device),
    )
    config.check()
    if method.needs_classes:
        require_classes(federation.task, f"method '{method.name}' as it is set", "choose another method")
    federation.query_views.take(config.evaluation.views)
    return config


def as_method(given: str | Method) -> Method:
    """The method with this name, or the one that was given itself."""
    return Method.make(given) if isinstance(given, str) else given.retyped()


def fill_in_evaluation(given: Mapping[str, Any], rounds: int, clients: int) -> dict[str, Any]:
    """The given settings of :class:`Evaluation`, with those that suit the federation for the others.

    Every model predicts every sample, so an evaluation costs clients times samples. With more than ``MANY`` clients, a
    run has at most five, and figures of the participants in between. The settings of an older run are whole.
    """
    many = clients > MANY and not {"window", "every"} <= given.keys()
    window = given.get("window", 1 if many else max(1, min(rounds, max(5, min(50, rounds // 16)))))
    every = max(1, -(-rounds // 5) if many else (rounds - window) // 20)  # closed forms have no rounds
    return {"window": window, "every": every, **({"participants": True} if many else {}), **given}


def is_small(federation: Federation) -> bool:
    """Whether samples are rows of a table or images too small for a convolutional network."""
    return len(federation.shape) != 3 or min(federation.shape[1:]) < SMALL_SIDE


def training_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings divided into fields of the plan and of the machine, typed; one that neither has is refused."""
    names = {f.name for f in fields(Machine)}
    plan = {key: value for key, value in settings.items() if key not in names}
    machine = {key: value for key, value in settings.items() if key in names}
    return known_fields(Plan, plan, "training"), typed(Machine, machine)


def threads_for(small: bool, device: str) -> int:
    """How many clients train side by side on CPU, each on one thread.

    One if the network is small: then most of the time is spent in Python, which only one thread can run; see
    docs/decisions/0001-threads.md. One on a GPU as well, which runs clients in parallel itself.
    """
    return 1 if small or device != "cpu" else max(1, os.cpu_count() or 1)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
