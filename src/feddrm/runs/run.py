"""Training a federation into a run folder, and opening one again."""

from __future__ import annotations

import datetime
import math
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddrm._version import __version__
from feddrm.data import Dataset, Federation, Pool, load
from feddrm.data.summary import DatasetSummary
from feddrm.engine import (
    Plan,
    RoundResult,
    RoundSchedule,
    State,
    arithmetic,
    engine_for,
    federate,
    first_state,
    functional,
)
from feddrm.engine.kernels import CPU_QUERIES as CPU_QUERIES
from feddrm.engine.kernels import GPU_QUERIES as GPU_QUERIES
from feddrm.engine.kernels import cpu_kernels as cpu_kernels
from feddrm.engine.kernels import largest_product as largest_product
from feddrm.errors import FeddrmError
from feddrm.evaluation import (
    RULES,
    Execution,
    Predictions,
    Replay,
    confusion,
    evaluate,
    per_client,
    pooled_queries,
    predict,
    route,
    summarise,
    votes,
)
from feddrm.methods import Method
from feddrm.models import Model, Net
from feddrm.router import Router, load_router
from feddrm.runs.config import Config, known_fields, read_config, resolve
from feddrm.runs.folder import RunFolder
from feddrm.runs.listeners import OnRound, shown, tracked
from feddrm.threads import intra_op_threads

CHECKPOINT_SECONDS = 20.0  # between checkpoints: what a crash may cost
CHECKPOINT_SHARE = 0.05  # of the time at most: where a checkpoint is hundreds of megabytes, a crash may cost more


@dataclass(frozen=True)
class Run:
    """A finished or interrupted run: its folder, configuration and, once finished, its summary."""

    path: Path
    config: Mapping[str, Any]

    @property
    def summary(self) -> dict[str, Any] | None:
        """What ``summary.json`` says now, a router fitted meanwhile included; None until the run is finished."""
        found: dict[str, Any] | None = RunFolder(self.path).read_json("summary.json")
        return found

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """A run that was trained before."""
        folder = RunFolder(path)
        if not folder.config_file.exists():
            raise FeddrmError(f"{path} is no run (it has no config.yaml): give a folder made by 'feddrm train'")
        config = read_config(folder.config_file)
        for part in ("data", "method", "model", "evaluation"):
            if not isinstance(config.get(part, {}), dict):  # a deployed run says nothing of evaluation
                raise FeddrmError(f"{folder.config_file} has no settings under '{part}': put it back as it was")
        return cls(folder.path, config)

    def __repr__(self) -> str:
        names = {part: self.config.get(part, {}).get("name") for part in ("data", "method", "model")}
        told = ", ".join(f"{part}={name!r}" for part, name in names.items())
        return f"Run({str(self.path)!r}, {told}, {self._state()})"

    def _state(self) -> str:
        if (summary := self.summary) is None:
            lines = self.metrics()
            return f"unfinished: round {lines[-1]['round'] if lines else 0} of {self.config.get('rounds')}"
        router = "router" if summary.get("router") else "no router"
        return f"{summary['rounds']} rounds, {router}, average accuracy {summary['average_accuracy']['mean']:.1%}"

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per evaluated round."""
        return RunFolder(self.path).metrics()

    def fit_router(self, federation: Federation | None = None, **settings: Any) -> Router:
        """Fit the exact router into the run's folder; settings as for :func:`feddrm.runs.run_router.fit_run_router`."""
        from feddrm.runs.run_router import fit_run_router

        return fit_run_router(self, federation, **settings)

    def router(self, device: str = "cpu") -> Router:
        """The router that was fitted before."""
        return load_router(self.path / "router", device)


def train(
    data: str | Federation,
    method: str | Method = "feddrm",
    *,
    out: str | Path,
    model: str | Model | Mapping[str, Any] | None = None,
    data_settings: Mapping[str, Any] | None = None,
    on_round: OnRound | None = None,
    progress: bool = False,
    track: bool = False,
    **settings: Any,
) -> Run:
    """Train and evaluate; an interrupted run in ``out`` is resumed, another one and any other folder refused.

    ``settings`` are those of :class:`feddrm.engine.Plan` (rounds, lr, seed, ...) and of
    :func:`feddrm.runs.config.resolve` (device, engine, precision, threads, evaluation). Nothing is printed but,
    with ``progress``, a bar on standard error; ``on_round(played, metrics, rounds)`` is called after every round,
    ``metrics`` None unless it was evaluated.
    """
    _check_early(data, method, model, settings)
    if data_settings and not isinstance(data, str):
        raise FeddrmError("data_settings are for data given by name: this federation is made already, leave them out")
    names = (given if isinstance(given, str) else given.name for given in (data, method))
    with shown(", ".join(names), progress) as showing:
        again = None  # how to load the data again, where that can be said
        if isinstance(data, str):
            dataset = Dataset.make(data, **(data_settings or {}))
            again = {"name": dataset.name, **dataset.settings()}
        federation = load(data, **(data_settings or {})) if isinstance(data, str) else data
        config = resolve(federation, data=again, method=method, model=model, **settings)
        folder = RunFolder(out)
        with folder.alone():
            state = folder.open(config, federation)
            if folder.summary_file.exists():
                return Run.open(out)
            with (
                intra_op_threads(1),
                arithmetic(config.precision, config.device).set(),
                tracked(folder.path, track) as tracking,
            ):
                training = _Training(config, federation.to(config.device), folder)
                with cpu_kernels(training.net, config.plan.batch_size):
                    training.go(state, [on_round, showing, tracking])
            return Run.open(out)


def _check_early(data: str | Federation, method: str | Method, model: object, settings: Any) -> None:
    """Names and values that could never work are refused before any data is read."""
    if isinstance(data, str):
        Dataset.find(data)
    chosen = Method.make(method) if isinstance(method, str) else method
    if isinstance(model, str):
        Model.find(model)
    others = ("device", "engine", "precision", "threads", "evaluation", "data")
    plan = {k: v for k, v in settings.items() if k not in others}
    early = Plan(**known_fields(Plan, plan, "training"))
    early.check()
    if "rounds" in plan:
        chosen.check(early.rounds)
    device = str(settings.get("device", "cpu"))
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise FeddrmError("device 'cuda' was asked for, but torch sees no GPU here: use --device cpu")
    engine_for(settings.get("engine", "auto"), device)
    arithmetic(settings.get("precision", "auto"), device)


class _Training:
    """The loop around :func:`federate`: evaluate, write down, save."""

    def __init__(self, config: Config, federation: Federation, folder: RunFolder) -> None:
        self.config, self.federation, self.folder = config, federation, folder
        clients = len(federation) if config.method.client_branch else None
        self.net: Net = config.model.build(federation.shape, len(federation.classes), clients, config.plan.seed)
        self.net = self.net.to(config.device)
        self.arithmetic = arithmetic(config.precision, config.device)
        self.on_gpu = torch.device(config.device).type == "cuda"
        self.tests = Pool.of(federation, "test") if self.on_gpu else None
        self.replay = Replay() if engine_for(config.engine, config.device) == "graph" else None
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self.seconds = folder.read_json("checkpoint/seconds.json") or {"train": 0.0, "evaluate": 0.0}
        self.next_save = time.monotonic() + CHECKPOINT_SECONDS

    def go(self, state: State | None, listeners: list[OnRound | None]) -> None:
        if state is None:
            DatasetSummary.of(self.federation).write(self.folder.path)
            leaves = {leaf: value.detach() for leaf, value in self.net.named_parameters()}
            state = first_state(self.config.method, leaves, len(self.federation))
        last, answers = state, None
        began = time.perf_counter()
        try:
            for played in federate(
                RoundSchedule(self.config.method, self.config.plan, len(self.federation)),
                functional(self.net, self.arithmetic),
                self.federation,
                state,
                workers=self.config.threads,
                engine=self.config.engine,
            ):
                self.seconds["train"] += time.perf_counter() - began
                metrics = None
                if self.diverged(played):
                    self.save(last)
                    raise FeddrmError(
                        f"the loss is not finite after round {played.state.round}: lower --lr (it is "
                        f"{self.config.plan.lr:g}) or scale the data, and choose another --out"
                    )
                if self.config.evaluation.due(played.state.round, self.config.plan.rounds):
                    answers, metrics = self.evaluate(played)
                    self.folder.add_metrics(metrics)
                last = played.state  # only now: Ctrl-C saves it, and a saved round is never evaluated again
                if time.monotonic() > self.next_save:
                    self.save(last)
                for listen in listeners:
                    if listen is not None:
                        listen(played, metrics, self.config.plan.rounds)
                began = time.perf_counter()
        except KeyboardInterrupt:
            self.save(last)  # whole rounds only: the one that was cut short is played again
            raise
        self.save(last)
        self.finish(last, answers)

    def diverged(self, played: RoundResult) -> bool:
        """Whether the loss, or after the last round a parameter, is no number: nothing that follows would be one."""
        if played.loss is not None and not math.isfinite(played.loss):
            return True
        if played.state.round < self.config.plan.rounds:
            return False  # the next round's loss will tell
        parts = [played.state.shared, *(leaves for slots in played.state.private for leaves in slots.values())]
        return not all(bool(value.isfinite().all()) for leaves in parts for value in leaves.values())

    def save(self, state: State) -> None:
        began = time.monotonic()
        self.folder.save(state)
        self.folder.write_json("checkpoint/seconds.json", self.seconds)
        ended = time.monotonic()
        self.next_save = ended + max(CHECKPOINT_SECONDS, (ended - began) / CHECKPOINT_SHARE)

    def answers(self, state: State) -> Predictions:
        """What every client's model says about the pooled test set after this round."""
        config, method = self.config, self.config.method
        test = pooled_queries(
            self.federation,
            crop=config.evaluation.test_crop,
            seed=config.plan.seed,
            round=state.round,
            workers=config.threads,
            pool=self.tests,
        )
        models = [method.serve(method.send(state.shared, i), p) for i, p in enumerate(state.private)]
        return predict(
            self.net,
            models,
            test,
            client_branch=state.shared if method.client_branch else None,
            global_model=method.global_model(state.shared),
            execution=Execution(
                arithmetic=self.arithmetic,
                batch_size=GPU_QUERIES if self.on_gpu else CPU_QUERIES,
                workers=config.threads,
                replay=self.replay,
            ),
        )

    def evaluate(self, played: RoundResult) -> tuple[Predictions, dict[str, Any]]:
        began = time.perf_counter()
        answers = self.answers(played.state)
        found = evaluate(answers, self.federation.weights, self.config.evaluation.ties)
        self.seconds["evaluate"] += time.perf_counter() - began
        names = self.federation.names
        return answers, {
            "round": played.state.round,
            "stage": "tune" if played.stage.tuning else "train",
            "lr": played.lr,
            "loss": played.loss,
            "answered": [names[i] for i in played.answered],
            **found,
        }

    def finish(self, state: State, answers: Predictions | None) -> None:
        """The last round in detail, the private parts apart from the shared ones, and the summary last of all."""
        weights, names = self.federation.weights, self.federation.names
        answers = answers or self.answers(state)
        routes = {}
        if answers.client_logits is not None:
            for rule in RULES:
                chosen = route(answers.client_logits, weights, rule)
                routes[f"head_{rule}"] = confusion(chosen, answers.origin, len(names)).tolist()
        rows = per_client(answers, names, weights, self.config.evaluation.ties)
        for row, client in zip(rows, self.federation.clients, strict=True):
            row["train"] = len(client.train)
        detail = {"round": state.round, "per_client": rows, "confusion": routes, "votes": votes(answers)}
        self.folder.write_json("evaluation.json", detail)
        private = {
            name: {f"{slot}/{leaf}": value for slot, leaves in slots.items() for leaf, value in leaves.items()}
            for name, slots in zip(names, state.private, strict=True)
        }
        self.folder.publish(state.shared, private)
        self.folder.write_json("summary.json", self.summary(state))

    def summary(self, state: State) -> dict[str, Any]:
        window = self.config.evaluation.window
        entries = self.folder.metrics()[-window:]
        # Models before and after tuning are two things: a mean over both would be of neither.
        entries = [entry for entry in entries if entry["stage"] == entries[-1]["stage"]]
        numbers = summarise(
            [{k: e[k] for k in e if k.endswith("_accuracy")} for e in entries],
            window,
        )
        return {
            **numbers,
            "window": len(entries),
            "rounds": state.round,
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
            **({"peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30} if self.on_gpu else {}),
            "hardware": hardware(self.config.device),
            "versions": versions(),
            "date": datetime.date.today().isoformat(),
        }


def hardware(device: str) -> str:
    """What the numbers were measured on."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} of {torch.multiprocessing.cpu_count()} threads"


def versions() -> dict[str, str]:
    """What the numbers were measured with."""
    return {
        "feddrm": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
