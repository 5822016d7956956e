"""The settings that a grid with a ``search`` trains with: found by ``feddrm.tune``, one small JSON per search."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.io.text import broken, read_json
from feddrm.paper.cell_records import record_bytes
from feddrm.paper.grid import Cell, Grid
from feddrm.paper.source_version import commit, source_hash

if TYPE_CHECKING:
    from feddrm.data import Federation

FORMAT = "feddrm-paper-search-1"
FOLDER = "search"  # inside the folder of results
REMEDY = "remove it and search again"


def with_choices(grid: Grid, results: Path) -> Grid:
    """The grid with the settings that finished searches chose. A search of another form is refused."""
    if grid.search is None:
        return grid
    return replace(grid, chosen={pair: search["chosen"] for pair, search in read_searches(grid, results).items()})


def read_searches(grid: Grid, results: Path) -> dict[str, Mapping[str, Any]]:
    """Every finished search of a grid, by setting and method."""
    known = {cell.pair for cell in grid.cells}
    searches: dict[str, Mapping[str, Any]] = {}
    for path in sorted((results / FOLDER).glob("*.json")):
        content = read_json(path, REMEDY)
        if content.get("format") != FORMAT or not {"chosen", "trials", "search"} <= set(content):
            raise broken(path, f"no search of the form {FORMAT}", REMEDY)
        if path.stem not in known:
            raise FeddrmError(f"{path} is no search of the grid '{grid.name}': move it elsewhere")
        if content["search"] != grid.search:
            raise FeddrmError(f"{path} searched otherwise than the grid '{grid.name}' says: {REMEDY}")
        searches[path.stem] = content
    return searches


def search_cell(
    cell: Cell, federation: Federation, results: Path, work: Path, budget: float | None, **settings: Any
) -> Mapping[str, Any] | None:
    """Search for a cell's settings, write what was found and return it; None if the budget ended first.

    Other seeds of the same setting and method take over what is found.
    """
    from feddrm.search import tune
    from feddrm.search.tune import TRIALS

    search = dict(cell.grid.search or {})
    protocol = cell.protocol()
    plan = {key: protocol[key] for key in (*cell.grid.content["train"], "seed")}
    folder = work / FOLDER / cell.pair
    result = tune(
        federation, cell.learner, out=folder, model=cell.model, budget=budget, **search, **{**plan, **settings}
    )
    if not result.finished:
        return None
    name = cell.learner.name
    chosen = dict(result.best[name].values)
    trials = read_json(folder / TRIALS, REMEDY)
    content = {
        "format": FORMAT,
        "grid": cell.grid.name,
        "setting": cell.setting,
        "method": cell.method,
        "seed": cell.seed,
        "search": search,
        "chosen": chosen,
        "trials": trials["methods"][name],
        "seconds": round(_seconds(folder), 1),
        "hardware": trials["hardware"],
        "versions": trials["versions"],
        "commit": commit(),
        "source": source_hash(),
        "date": datetime.date.today().isoformat(),
    }
    path = results / FOLDER / f"{cell.pair}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, record_bytes(content))
    return chosen


def _seconds(folder: Path) -> float:
    """What all trials took, before and after interruptions, each by the file of its run."""
    return sum(sum(read_json(file, REMEDY).values()) for file in folder.rglob("checkpoint/seconds.json"))
