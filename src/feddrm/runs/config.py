"""Everything that decides a run's numbers, as one frozen value that can be written to YAML and read back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from feddrm.data import Federation
from feddrm.engine import Plan, RoundSchedule, arithmetic, engine_for
from feddrm.errors import SettingError
from feddrm.io.text import read_yaml
from feddrm.methods import Method
from feddrm.models import Model
from feddrm.registry import nearest
from feddrm.typed_settings import typed

SMALL_SIDE = 32  # images below this, and tables, are the perceptron's
TIES = ("smallest", "cuda")


@dataclass(frozen=True)
class Evaluation:
    """When and how to evaluate: every round of the last ``window``, every ``every`` rounds before.

    ``also`` names the first and the last of further rounds to evaluate, all of them: the window before
    tuning starts, where a method's clients still hold one global model.
    """

    window: int = 50
    every: int = 40
    test_crop: bool = True
    ties: str = "smallest"
    also: tuple[int, int] | None = None

    def check(self) -> None:
        """Refuse what cannot be."""
        if self.window < 1 or self.every < 1:
            raise SettingError(f"window={self.window}, every={self.every}: give at least 1")
        if self.ties not in TIES:
            raise SettingError(f"ties='{self.ties}': choose {' or '.join(TIES)}")
        if self.also is not None and not 1 <= self.also[0] <= self.also[-1]:
            raise SettingError(f"also={self.also}: give the first and the last round, as in [651, 700]")

    def due(self, round: int, rounds: int) -> bool:
        """Whether a round is evaluated."""
        further = self.also is not None and self.also[0] <= round <= self.also[-1]
        return further or round > rounds - self.window or round % self.every == 0


@dataclass(frozen=True)
class Config:
    """A run, resolved: enough to run it again."""

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
        self.plan.check()
        self.evaluation.check()
        self.method.check(self.plan.rounds)
        self.method.phases(RoundSchedule(self.method, self.plan, 1).stage(1))  # some need two steps
        engine_for(self.engine, self.device)
        arithmetic(self.precision, self.device)
        if self.threads < 1:
            raise SettingError(f"threads={self.threads}: give at least 1")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in ``config.yaml``."""
        return {
            "data": _plain(self.data),
            "method": {"name": self.method.name, **_plain(asdict(self.method))},
            "model": {"name": self.model.name, **_plain(asdict(self.model))},
            **_plain(asdict(self.plan)),
            "evaluation": _plain(asdict(self.evaluation)),
            "device": self.device,
            "engine": self.engine,
            "precision": self.precision,
            "threads": self.threads,
        }

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.as_dict(), sort_keys=False, allow_unicode=True)


def resolve(
    federation: Federation,
    *,
    data: Mapping[str, Any] | None = None,
    method: str | Method = "feddrm",
    model: str | Model | Mapping[str, Any] | None = None,
    device: str = "cpu",
    engine: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    evaluation: Mapping[str, Any] | None = None,
    **plan: Any,
) -> Config:
    """Fill in what was not said: the paper's settings for photographs, quicker ones for small samples.

    ``model`` may be settings alone: they are those of the model that suits the data.
    """
    small = len(federation.shape) != 3 or min(federation.shape[1:]) < SMALL_SIDE
    suggested = Plan(rounds=40, batch_size=32, lr=0.05) if small else Plan()
    if not isinstance(model, str | Model):
        suited = "mlp" if small else "resnet18_retina" if federation.name == "retina" else "resnet18"
        model = Model.make(suited, **(model or {}))
    chosen = replace(suggested, **known_fields(Plan, plan, "training"))
    seen = known_fields(Evaluation, evaluation or {}, "evaluation")
    window = seen.setdefault("window", min(chosen.rounds, max(5, min(50, chosen.rounds // 16))))
    seen.setdefault("every", max(1, (chosen.rounds - window) // 20))
    resolved = Config(
        data={"name": federation.name, **(data if data is not None else federation.settings)},
        method=Method.make(method) if isinstance(method, str) else method,
        model=Model.make(model) if isinstance(model, str) else model,
        plan=chosen,
        evaluation=Evaluation(**seen),
        device=device,
        engine=engine_for(engine, device),
        precision=precision,
        threads=threads if threads is not None else threads_for(small, device),
    )
    resolved.check()
    return resolved


def threads_for(small: bool, device: str) -> int:
    """How many clients train side by side on CPU, each on one thread.

    One where the network is so small that Python, which only one thread can run, takes most of the
    time; see docs/decisions/0001-threads.md. On a GPU the device does the spreading.
    """
    return 1 if small or device != "cpu" else max(1, os.cpu_count() or 1)


def read_config(path: Path) -> dict[str, Any]:
    """A YAML file as plain settings: the form of ``config.yaml``."""
    return read_yaml(path, "give an existing YAML file of 'key: value' lines")


def known_fields(kind: type[Any], given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The given settings as the fields of ``kind`` want them; one it lacks is refused with the nearest name."""
    names = {f.name for f in fields(kind)}
    for key in given:
        if key not in names:
            raise SettingError(
                f"no {what} setting '{key}'{nearest(str(key), names)} (there are: {', '.join(sorted(names))})"
            )
    return typed(kind, given)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
