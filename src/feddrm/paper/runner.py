"""Runs the cells of the grid, the most valuable first, within a time budget; finished work is never lost."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from feddrm.data import Federation
from feddrm.data.datasets.base import FileDataset
from feddrm.engine import RoundResult, free_card
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.atomic import locked
from feddrm.paper.cell_records import read_records, write_record
from feddrm.paper.cell_search import search_cell, with_choices
from feddrm.paper.estimate import router_estimate
from feddrm.paper.grid import Cell, Grid
from feddrm.paper.standing import Standing, cell_standing, check_device, measured_here
from feddrm.runs import Run, RunFolder, train
from feddrm.runs.listeners import OnRound

SKIPPED: Literal["skipped"] = "skipped"
SAVING = 10.0  # seconds reserved for the last checkpoint

Event = Literal["searched", "finished", "router", "interrupted", "skipped", "failed"]
Watch = Callable[[Cell], AbstractContextManager[OnRound | None]]


class OutOfTime(KeyboardInterrupt):
    """Raised when the budget is used up. The run saves whole rounds and stops, as on Ctrl-C."""


@dataclass(frozen=True)
class CellOutcome:
    """What happened to a cell in this call, and why."""

    cell: Cell
    event: Event
    seconds: float
    why: str = ""


@dataclass
class Runner:
    """One call of ``feddrm paper run``. ``settings`` are passed on to the training (engine, precision, ...)."""

    grid: Grid
    results: Path
    work: Path
    device: str
    data_dir: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    router: bool = True  # fit the exact router once a cell is trained
    deadline: float | None = None  # by time.monotonic()
    clock: Callable[[], float] = time.monotonic
    watch: Watch = lambda cell: nullcontext(None)  # noqa: ARG005
    progress: bool = False  # of searches, which watch over their own trials

    def __post_init__(self) -> None:
        check_device(self.device)
        self.grid = with_choices(self.grid, self.results)
        fixed = set(self.grid.cells[0].protocol()) & set(self.settings)
        if fixed:
            key = min(fixed)
            raise SettingError(f"--set {key}=...: '{key}' belongs to the protocol of the grid '{self.grid.name}'")
        self.records = read_records(self.grid, self.results)
        self._federation: tuple[Any, Federation] | None = None

    def standing(self, cell: Cell) -> Standing:
        """The state of a cell; starts nothing."""
        return cell_standing(cell, self.grid, self.records, self.work, self.device)

    def go(self, cells: Sequence[Cell]) -> Iterator[CellOutcome]:
        """Run cells: half-done ones first, then by value, then those that are trained again for their router.

        Yields one outcome for every cell that was tried or left out.
        """
        for folder in (self.results, self.work):
            _refuse_unwritable(folder)  # now, not after hours of training
        begun = [cell for cell in cells if self.standing(cell).state == "half done"]
        again = [cell for cell in cells if self._needs_retraining(cell)]
        others = [cell for cell in cells if cell not in begun and cell not in again]
        for cell in [*begun, *others, *again]:
            started = self.clock()
            with self._claim(cell) as claimed:
                for event, why in self._cell(cell) if claimed else [(SKIPPED, "another call is running it")]:
                    yield CellOutcome(cell, event, self.clock() - started, why)
                    started = self.clock()

    def _needs_retraining(self, cell: Cell) -> bool:
        """Whether a finished cell has no router and no run folder to which one could be fitted."""
        record, folder = self.records.get(cell.id), RunFolder(self.work / cell.id)
        return self.router and record is not None and not record.routed and not folder.summary_file.exists()

    @contextmanager
    def _claim(self, cell: Cell) -> Iterator[bool]:
        """Lock a cell, because several calls may share a grid; yields whether the lock was free.

        A lock ends with its process. A result that another call wrote in the meantime is read first.
        """
        self.work.mkdir(parents=True, exist_ok=True)
        with locked(self.work / f"{cell.id}.lock") as claimed:
            record = self.records.get(cell.id)
            unfinished = record is None or not record.routed
            if claimed and unfinished and (self.results / f"{cell.id}.json").exists():
                self.records = read_records(self.grid, self.results)
            yield claimed

    def _beside(self, cell: Cell) -> dict[str, int]:
        """How many other cells are running now. It is recorded, because they slow this one down."""
        others = [path for path in self.work.glob("*.lock") if path.stem != cell.id]
        held = 0
        for path in others:
            with locked(path, shared=True) as free:
                held += not free
        return {"beside": held} if held else {}

    def _cell(self, cell: Cell) -> Iterator[tuple[Event, str]]:
        standing = self.standing(cell)
        if standing.state in ("done", "no router") and not self._needs_retraining(cell):
            yield from self._router(cell)
            return
        left = self._left()
        if left <= 0:
            yield "skipped", "the budget is used up"
            return
        begun = RunFolder(self.work / cell.id).state_file.exists()
        if not begun and standing.seconds is not None and standing.seconds > left:
            yield "skipped", f"takes about {standing.seconds:.0f} s, {left:.0f} s are left"
            return
        began = self.clock()
        try:
            federation = self._load(cell)
        except FeddrmError as error:
            yield "skipped", f"no data: {error}"
            return
        if self.grid.needs_search(cell):
            event, why = self._attempt(cell, lambda: self._search(replace(cell, seed=self.grid.seed)))
            yield ("searched", self._found(cell)) if event == "finished" else (event, f"search: {why}")
            if event != "finished":
                return
            began, federation = self.clock(), self._load(cell)
        cell = replace(cell, grid=self.grid)  # with what searches have chosen
        event, why = self._attempt(cell, lambda: self._train(cell, federation, None if begun else began))
        yield event, why
        if event == "finished":
            yield from self._router(cell)

    def _attempt(self, cell: Cell, work: Callable[[], object]) -> tuple[Event, str]:
        """Do the work and turn any failure into an event, so that the other cells still run."""
        try:
            work()
        except OutOfTime:
            return "interrupted", "the budget is used up: the next call goes on from here"
        except FeddrmError as error:
            return "failed", str(error)
        except Exception as error:
            trace = self.work / f"{cell.id}.error.txt"
            trace.write_text(traceback.format_exc())
            return "failed", f"{type(error).__name__}: {error} (see {trace})"
        finally:
            free_card()
        return "finished", ""

    def _found(self, cell: Cell) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.grid.chosen[cell.pair].items())

    def _search(self, cell: Cell) -> None:
        """Search with the grid's own seed: all seeds of a setting and method share what is found."""
        left = self._left()
        settings = {**self.settings, "device": self.device, "progress": self.progress}
        budget = None if left == float("inf") else left
        found = search_cell(cell, self._load(cell), self.results, self.work, budget, **settings)
        if found is None:
            raise OutOfTime
        self.grid = replace(self.grid, chosen={**self.grid.chosen, cell.pair: found})

    def _train(self, cell: Cell, federation: Federation, began: float | None) -> None:
        settings = {**cell.protocol(), **self.settings, "device": self.device}
        settings = {key: value for key, value in settings.items() if key not in ("data", "method", "model")}
        self.work.mkdir(parents=True, exist_ok=True)
        with self.watch(cell) as listen:
            run = train(
                federation,
                cell.learner,
                model=cell.model,
                out=self.work / cell.id,
                on_round=self._until_deadline(listen),
                **settings,
            )
        # Wall time includes loading, so estimates prefer it. It is unknown for a cell that was interrupted.
        wall = None if began is None else self.clock() - began
        self.records[cell.id] = write_record(cell, run, self.results, {"wall": wall, **self._beside(cell)})

    def _until_deadline(self, listen: OnRound | None) -> OnRound:
        def on_round(result: RoundResult, metrics: dict[str, Any] | None, rounds: int) -> None:
            if listen is not None:
                listen(result, metrics, rounds)
            if result.state.round < rounds and self._left() <= 0:
                raise OutOfTime

        return on_round

    def _router(self, cell: Cell) -> Iterator[tuple[Event, str]]:
        """Fit the exact router of a finished cell, if it has none yet and its run folder still exists."""
        record, folder = self.records[cell.id], RunFolder(self.work / cell.id)
        if not self.router or record.routed or not folder.summary_file.exists():
            return
        left, takes = self._left(), router_estimate(cell, self.grid.by_id, measured_here(self.records, self.device))
        if left <= takes:
            yield "skipped", f"its router takes up to {takes:.0f} s, {left:.0f} s are left: the next call fits it"
            return
        began = self.clock()
        run = Run.open(folder.path)
        event, why = self._attempt(cell, lambda: run.fit_router(self._load(cell), device=self.device))
        if event != "finished":
            yield event, f"router: {why}"
            return
        took = self.clock() - began
        seconds = {key: value for key, value in record.content["seconds"].items() if key in ("wall", "beside")}
        seconds["router"] = took
        self.records[cell.id] = write_record(cell, run, self.results, seconds)
        if self.records[cell.id].routed:
            yield "router", ""
        else:
            yield "failed", f"router: {folder.summary_file} has no exact_density: its numbers stay missing"

    def _load(self, cell: Cell) -> Federation:
        """The cell's data, cached for the next cell, which often has the same."""
        dataset = cell.dataset
        if self.data_dir is not None and isinstance(dataset, FileDataset):
            dataset = replace(dataset, data_dir=self.data_dir)
        if self._federation is None or self._federation[0] != dataset:
            self._federation = None  # freed first: two at once would fill the memory
            dataset.check()
            self._federation = (dataset, dataset.load())
        return self._federation[1]

    def _left(self) -> float:
        return float("inf") if self.deadline is None else self.deadline - SAVING - self.clock()


def _refuse_unwritable(folder: Path) -> None:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise FeddrmError(
            f"cannot write into {folder} ({existing} is no folder, or read-only): choose --results and --work"
        )


def read_budget(text: str) -> float:
    """Seconds from ``25m``, ``90s``, ``1.5h`` or a plain number."""
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, factor = (text[:-1], unit[text[-1]]) if text[-1:] in unit else (text, 1.0)
    try:
        seconds = float(number) * factor
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise SettingError(f"--budget '{text}': give a time such as 25m, 90s or 1.5h")
    return seconds
