"""``feddrm.train`` and ``feddrm.train_seeds``: from a federation and a method to a run folder, or one per seed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from feddrm.data import Dataset, Federation, load
from feddrm.engine import Plan, arithmetic, engine_for, require_gpu
from feddrm.engine.recipes import check_recipe
from feddrm.errors import FeddrmError, SettingError
from feddrm.methods import Method
from feddrm.models import Model, ResNet18
from feddrm.models.lenet import SIDE
from feddrm.runs.client_predictions import training_kernels
from feddrm.runs.config import Config, Machine, as_method, resolve, training_settings
from feddrm.runs.folder import RunFolder
from feddrm.runs.listeners import OnRound, progress_listener, require_tensorboard, tensorboard_listener
from feddrm.runs.run import Run
from feddrm.runs.training_session import TrainingSession
from feddrm.typed_settings import typed_arguments

MOSTLY_EMPTY = 10  # times the samples of the largest client
LARGE_BATCH = 1024  # smaller ones take little time, however empty they are
log = logging.getLogger("feddrm.runs")


@typed_arguments
def train(  # noqa: PLR0913 (the public signature)
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
    """Train and evaluate into the folder ``out``. An interrupted run in it is resumed; anything else is refused.

    ``settings`` are the plan (rounds, local_steps, batch_size, lr, momentum, weight_decay, participation, dropout,
    seed, clip, warmup), device, engine, precision, threads, ``evaluation`` (a mapping of window, every, test_crop,
    ties, also, views, participants), and ``recipe`` (``"tuned"`` or ``"paper"``), which fills in what is not given.
    ``on_round(result, metrics, rounds)`` is called after every round; ``metrics`` is None if the round was not
    evaluated. Nothing is printed unless ``progress`` asks for a bar on standard error. ``track`` writes TensorBoard
    scalars.

    Example:
        >>> run = feddrm.train("digits", "fedavg", rounds=2, out="runs/fedavg", data_settings={"clients": 3})
        >>> run.summary["rounds"]
        2
    """
    _check_early(data, method, model, settings)
    if track:
        require_tensorboard()
    names = [given if isinstance(given, str) else given.name for given in (data, method)]
    title = ", ".join([*names, f"seed {settings['seed']}"] if "seed" in settings else names)
    with progress_listener(title, progress) as show:
        federation, reload_settings = load_data(data, data_settings)
        config = resolve(federation, data=reload_settings, method=method, model=model, **settings)
        chosen = isinstance(model, str | Model) or "name" in (model or {})
        slow = [] if chosen else _slow_network(config, federation)
        for warning in (*federation.warnings(), *_empty_places(config, federation), *slow):
            log.warning("%s", warning)
        folder = RunFolder(out)
        # Nothing is written before all checks have passed: building the network is one of them.
        session = TrainingSession(config, federation, folder)
        with folder.exclusive() as used_before:
            state = folder.open(config, federation, used_before)
            if not folder.summary_file.exists():
                with (
                    training_kernels(config, session.net),
                    tensorboard_listener(folder.tensorboard, track) as record,
                ):
                    session.train(state, [listen for listen in (on_round, show, record) if listen is not None])
            return replace(Run.open(out), federation=federation)


def _empty_places(config: Config, federation: Federation) -> list[str]:
    """A warning of batches that are mostly empty. They are computed in full, and look like a training that hangs."""
    batch_size, largest = config.plan.batch_size, int(federation.sizes.max())
    if batch_size < max(LARGE_BATCH, MOSTLY_EMPTY * largest):
        return []
    return [
        f"{federation.name}: batches of {batch_size:,} for clients with at most {largest:,} samples are mostly empty "
        f"and slow: give --batch-size {largest}"
    ]


def _slow_network(config: Config, federation: Federation) -> list[str]:
    """A warning of a network for GPUs that nobody asked for: its first round on a CPU may take minutes."""
    if config.device != "cpu" or not isinstance(config.model, ResNet18):
        return []
    return [
        f"{federation.name}: {config.model.name} is slow on a CPU: give --model lenet (pictures of {SIDE}x{SIDE} "
        "pixels), or --device cuda"
    ]


def load_data(
    data: str | Federation, data_settings: Mapping[str, Any] | None
) -> tuple[Federation, dict[str, Any] | None]:
    """The federation, and how data given by name are loaded again; None for a federation that was given itself."""
    if isinstance(data, str):
        dataset = Dataset.make(data, **(data_settings or {}))
        return load(data, **(data_settings or {})), {"name": dataset.name, **dataset.settings()}
    if data_settings:
        raise FeddrmError("data_settings are for data given by name: this federation is made already, leave them out")
    return data, None


@typed_arguments
def train_seeds(
    data: str | Federation,
    method: str | Method = "feddrm",
    *,
    seeds: Sequence[int],
    out: str | Path,
    data_settings: Mapping[str, Any] | None = None,
    **settings: Any,
) -> list[Run]:
    """Train one run per seed, in the folders ``out/seed-0``, ``out/seed-1`` and so on. Finished runs are kept.

    Data given by name are divided with the same seed, unless ``data_settings`` name one for all runs. A federation
    is the same for all. The other settings are those of :func:`train`.

    Example:
        >>> runs = feddrm.train_seeds("digits", "fedavg", seeds=[0, 1], rounds=1, out="runs/seeds")
        >>> [run.path.name for run in runs]
        ['seed-0', 'seed-1']
    """
    seeds = list(seeds)  # of an array, too
    if not seeds or len(set(seeds)) < len(seeds) or "seed" in settings:
        raise SettingError(f"seeds={seeds}: give different whole numbers, and no seed beside them")
    for seed in seeds:  # all of them before the first is trained
        Plan(**training_settings({"seed": seed})[0]).check()
    if RunFolder(out).config_file.exists():
        raise FeddrmError(f"{out} is itself a run, and cannot hold one run per seed: choose another --out")
    runs = []
    for number, seed in enumerate(seeds, 1):
        folder = RunFolder(Path(out) / f"seed-{seed}")
        if settings.get("progress"):
            state = " is finished already" if folder.summary_file.exists() else ""
            print(f"seed {seed} ({number} of {len(seeds)}){state}: {folder.path}", file=sys.stderr, flush=True)
        given = {"seed": seed, **(data_settings or {})} if isinstance(data, str) else data_settings
        runs.append(train(data, method, out=folder.path, data_settings=given, seed=seed, **settings))
    return runs


def _check_early(data: object, method: str | Method, model: object, settings: Mapping[str, Any]) -> None:
    """Refuse names and values that could never work before any data is read."""
    if isinstance(data, str):
        Dataset.find(data)
    chosen = as_method(method)
    if isinstance(model, str):
        Model.find(model)
    given, machine_settings = training_settings(
        {k: v for k, v in settings.items() if k not in ("evaluation", "recipe")}
    )
    check_recipe(settings.get("recipe"), given)
    plan, machine = Plan(**given), Machine(**machine_settings)
    plan.check()
    if "rounds" in given:
        chosen.check(plan.rounds)
    require_gpu(machine.device)
    engine_for(machine.engine, machine.device)
    arithmetic(machine.precision, machine.device)
