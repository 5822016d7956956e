"""``feddrm.tune``: the best settings of one or several methods for a dataset, found on held-out samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from feddrm.data import Federation
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.atomic import locked, write_atomically
from feddrm.io.text import json_bytes, read_json, read_yaml, yaml_bytes
from feddrm.methods import Method
from feddrm.models import Model
from feddrm.progress import progress_bar
from feddrm.registry import check_choice
from feddrm.runs import Config, hardware, resolve, versions
from feddrm.runs.config import as_method, is_small
from feddrm.runs.train import load_data
from feddrm.search.candidates import Candidate, all_candidates
from feddrm.search.halving import Halving, plan_halving
from feddrm.search.holdout import hold_out
from feddrm.search.method_search import MethodSearch
from feddrm.search.search_page import search_page
from feddrm.search.trial import GOALS, SearchTask, TimeIsUp, Trial, goal_scores
from feddrm.tasks import require_classes
from feddrm.typed_settings import typed_arguments

SETTINGS, TRIALS, PAGE, LOCK = "tune.yaml", "trials.json", "tune.html", "lock"
PAGE_SECONDS = 20.0  # between two drawings of the page while a search goes on
GRAPH_START = 25  # rounds of a GPU that take as long as its first ones, which are launched one by one and captured
Advance = Callable[[int, int | None, str, bool], None]


@dataclass(frozen=True)
class TuneResult:
    """What a search found, by method. ``finished`` is False if time ran out.

    ``best`` has the best candidate, ``scores`` its scores, ``verdicts`` says why it is the best. ``front`` has, for the
    goal ``both``, the candidates that no other beats in both scores, with their scores.
    """

    path: Path
    best: Mapping[str, Candidate]
    scores: Mapping[str, Mapping[str, float]]
    verdicts: Mapping[str, str]
    front: Mapping[str, Mapping[Candidate, Mapping[str, float]]]
    finished: bool


@typed_arguments
def tune(  # noqa: PLR0913 (the public signature)
    data: str | Federation,
    methods: str | Method | Sequence[str | Method] = "feddrm",
    *,
    out: str | Path,
    axes: Mapping[str, Sequence[Any]] | None = None,
    goal: str = "average",
    cost: float | None = None,
    held_out: float = 0.2,
    finalists: int | None = None,
    budget: float | None = None,
    model: str | Model | Mapping[str, Any] | None = None,
    data_settings: Mapping[str, Any] | None = None,
    progress: bool = False,
    **settings: Any,
) -> TuneResult:
    """Search for each method's best settings. Test samples are never read.

    ``axes`` has the values to try, as in ``{"lr": [0.01, 0.1], "method.lam": [0.5, 0.8]}``; without it, learning rates
    from a tenth to thirty times the usual one are tried. ``goal`` is ``average`` (every client on its own samples),
    ``system`` (samples of unknown origin by the exact router) or ``both``, a front and its best mean. All trials of a
    method together take ``cost`` times as long as one run; without it, once, or four times where samples are small
    and runs take seconds. ``held_out`` is the fraction of each client's training samples that trials are compared on.
    ``finalists`` trials are trained to their end (two; three for ``both``); the others leave at a comparison before.
    The usual settings are kept unless others are better by more than the standard error. ``budget`` is a time in
    seconds; the same call goes on later. ``settings`` are those of :func:`feddrm.train`.

    Example:
        >>> found = feddrm.tune("digits", "fedavg", axes={"lr": [1e-9, 0.1]}, rounds=4, out="runs/tune")
        >>> found.best["fedavg"]
        Candidate(values=(('lr', 0.1),))
    """
    _check_search(goal, cost, finalists, budget)
    deadline = None if budget is None else time.monotonic() + budget
    federation, reload_settings = load_data(data, data_settings)
    require_classes(federation.task, "a search", "compare runs with 'feddrm report'")
    cost = cost if cost is not None else 4.0 if is_small(federation) else 1.0
    folder, searches = Path(out), []
    for learner in _learners(methods):
        whole = resolve(federation, data=reload_settings, method=learner, model=model, **settings)
        # A front of two scores needs more than one to be compared with.
        halving, candidates = _plan(whole, axes or {}, cost, finalists or 1 + len(goal_scores(goal)))
        held = hold_out(federation, held_out, whole.plan.seed)
        task = SearchTask(held, learner, model, goal, halving.rounds, halving.every, settings, deadline)
        trials = [Trial(candidate, folder / "trials" / learner.name / candidate.name) for candidate in candidates]
        searches.append(MethodSearch(task, halving, trials, whole))
    record = {"goal": goal, "cost": cost, "held_out": held_out, "finalists": finalists, "data": federation.digest()} | {
        search.task.method.name: {
            "candidates": [trial.candidate.name for trial in search.trials],
            **{key: value for key, value in search.whole.as_dict().items() if key != "threads"},
        }
        for search in searches
    }
    with _exclusive(folder, record), progress_bar("tune") if progress else _silent() as advance:
        return _search(folder, searches, advance)


def _plan(
    whole: Config, axes: Mapping[str, Sequence[Any]], cost: float, finalists: int
) -> tuple[Halving, list[Candidate]]:
    """The rungs and the candidates of a method; every candidate must be possible before anything is trained."""
    candidates = all_candidates(axes, whole.method, whole.plan)
    start, rounds = GRAPH_START if whole.engine == "graph" else 0, whole.plan.rounds
    halving = plan_halving(len(candidates), int(cost * rounds), rounds, finalists, start=start)
    for candidate in candidates:
        for length in (halving.rounds, rounds):
            replace(whole.plan, **candidate.plan, rounds=length).check()
            candidate.method(whole.method).check(length)
    return halving, candidates


def _check_search(goal: str, cost: float | None, finalists: int | None, budget: float | None) -> None:
    check_choice("goal", goal, GOALS)
    if cost is not None and not 0 < cost < math.inf:
        raise SettingError(f"cost={cost}: give how many runs the search may take, as 1")
    if finalists is not None and finalists < 1:
        raise SettingError(f"finalists={finalists}: give how many trials are trained to their end, as 2")
    if budget is not None and not budget > 0:
        raise SettingError(f"budget={budget}: give the seconds that the search may take, as 600")


def _learners(methods: str | Method | Sequence[str | Method]) -> list[Method]:
    learners = [as_method(method) for method in ([methods] if isinstance(methods, str | Method) else methods)]
    if not learners:
        raise SettingError("methods=[]: name at least one method")
    names = [learner.name for learner in learners]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SettingError(f"method '{twice[0]}' is given twice: give it once, and values to try as method.KEY=A,B")
    return learners


def _search(folder: Path, searches: Sequence[MethodSearch], advance: Advance) -> TuneResult:
    _read_trials(folder, searches)
    finished = True
    try:
        _play_trials(folder, searches, advance)
    except TimeIsUp:
        finished = False
        if not any(trial.scores or trial.end for search in searches for trial in search.trials):
            raise SettingError(
                f"the budget was used up before the first trial reached its first comparison, after round "
                f"{searches[0].halving.rungs[0].round}: give a larger budget; the same command goes on from here"
            ) from None
    finally:
        _draw(folder, searches)
    best = {search.task.method.name: top for search in searches if (top := search.best()) is not None}
    if finished and not best:
        raise FeddrmError(f"every trial in {folder} diverged or collapsed: try smaller learning rates (--try lr=...)")
    front = {search.task.method.name: search.front() for search in searches}
    return TuneResult(
        path=folder,
        best={name: trial.candidate for name, trial in best.items()},
        scores={name: trial.last_scores for name, trial in best.items()},
        verdicts={search.task.method.name: search.verdict() for search in searches},
        front={name: {trial.candidate: trial.last_scores for trial in trials} for name, trials in front.items()},
        finished=finished,
    )


def _play_trials(folder: Path, searches: Sequence[MethodSearch], advance: Advance) -> None:
    total, before = sum(search.halving.cost for search in searches), 0
    drawn = time.monotonic()
    for search in searches:
        for trial, until, done in _climb(search):
            title = f"{search.task.method.name}, {trial.candidate.name}, to round {until} of {search.task.rounds}"

            def show(rounds: int, title: str = title, done: int = before + done) -> None:
                advance(done + rounds, total, title, True)

            trial.advance(search.task, until, show)
            _write(folder, searches)
            if time.monotonic() - drawn > PAGE_SECONDS:  # drawing takes longer than a short trial
                _draw(folder, searches)
                drawn = time.monotonic()
        before += search.halving.cost


def _climb(search: MethodSearch) -> Iterator[tuple[Trial, int, int]]:
    """Each trial that is still in the search, the round that it must reach, and the rounds that others have taken."""
    climbing, start, done = list(search.trials), 0, 0
    for place, rung in enumerate(search.halving.rungs):
        for trial in climbing:
            yield trial, rung.round, done - start
            done += rung.round - start
        climbing, start = search.survivors(climbing, place), rung.round


def _read_trials(folder: Path, searches: Sequence[MethodSearch]) -> None:
    """Take over what an earlier call has found."""
    file, remedy = folder / TRIALS, "remove it to search again"
    if not file.exists():
        return
    record = read_json(file, remedy)
    for search in searches:
        for trial in search.trials:
            try:
                before = record["methods"][search.task.method.name][trial.candidate.name]
                trial.scores = {int(round): dict(values) for round, values in before["scores"].items()}
                trial.end = before["end"]
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                trial_name = f"{search.task.method.name}, {trial.candidate.name}"
                raise FeddrmError(f"{file} is broken (no scores of the trial {trial_name}): {remedy}") from error


def _write(folder: Path, searches: Sequence[MethodSearch]) -> None:
    """Write every trial and the best settings so far."""
    goal, named = searches[0].task.goal, {search.task.method.name: search for search in searches}
    record = {
        "goal": goal,
        "methods": {
            name: {trial.candidate.name: trial.as_dict() for trial in search.trials} for name, search in named.items()
        },
        "best": {name: best.candidate.name for name, search in named.items() if (best := search.best()) is not None},
        "front": {name: [trial.candidate.name for trial in search.front()] for name, search in named.items()},
        "hardware": hardware(searches[0].whole.device),
        "versions": versions(),
    }
    write_atomically(folder / TRIALS, json_bytes(record))
    for name, search in named.items():
        stem, front = "best" if len(searches) == 1 else f"best-{name}", search.front()
        files = {stem: (search.best(), search.verdict())}
        if front:
            files |= {
                f"{stem}-{key}": (end, f"Best{search.so_far} by {key} accuracy.")
                for key, end in (("average", front[0]), ("system", front[-1]))
            }
        for file, (trial, words) in files.items():
            if trial is not None:
                settings = yaml_bytes(search.configuration(trial.candidate))
                write_atomically(folder / f"{file}.yaml", f"# {words}\n".encode() + settings)


def _draw(folder: Path, searches: Sequence[MethodSearch]) -> None:
    write_atomically(folder / PAGE, search_page(searches).encode())


@contextmanager
def _exclusive(folder: Path, record: Mapping[str, Any]) -> Iterator[None]:
    """Hold the folder of a search. One that holds another search, or something else, is refused."""
    file = folder / SETTINGS
    if folder.exists() and not folder.is_dir():
        raise FeddrmError(f"{folder} is a file: choose another --out")
    if folder.exists() and not file.exists() and any(path.name != LOCK for path in folder.iterdir()):
        raise FeddrmError(f"{folder} is not empty and no search: choose another --out")
    if file.exists():
        before, now = read_yaml(file, "choose another --out"), yaml.safe_load(yaml_bytes(record))
        changed = [key for key in now if before.get(key) != now[key]]
        if changed:
            raise FeddrmError(
                f"{folder} holds a search with other settings ({', '.join(changed)}): choose another --out, "
                f"or repeat the old settings to go on"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FeddrmError(f"cannot create {folder} ({error.strerror}): choose another --out") from error
    with locked(folder / LOCK) as acquired:
        if not acquired:
            raise FeddrmError(f"another process searches in {folder}: wait until it is done, or stop it")
        write_atomically(file, yaml_bytes(record))
        yield


@contextmanager
def _silent() -> Iterator[Advance]:
    yield lambda *_: None
