"""Fixtures: the grids, and results of cells made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feddrm.paper.cell_records import CellRecord, read_records
from feddrm.paper.grid import Cell, Grid

Make = Callable[..., CellRecord]


@pytest.fixture(scope="session")
def paper() -> Grid:
    return Grid.read("paper")


@pytest.fixture(scope="session")
def smoke() -> Grid:
    return Grid.read("smoke")


def content_of(cell: Cell, **scores: Any) -> dict[str, Any]:
    """A result of the cell's protocol; ``system``, ``client`` and ``before`` are by rule, plain numbers are means."""

    def score(value: float | None) -> dict[str, float] | None:
        return None if value is None else {"mean": value, "std": 0.002}

    head = cell.learner.client_branch
    system = scores.pop("system", {"head_posterior" if head else "vote": 0.5})
    before = scores.pop("before", None)
    return {
        "format": "feddrm-paper-cell-1",
        "grid": cell.grid.name,
        "cell": cell.id,
        "setting": cell.setting,
        "method": cell.method,
        "seed": cell.seed,
        "average_accuracy": score(scores.pop("average", 0.7)),
        "oracle_accuracy": score(scores.pop("oracle", 0.7)),
        "global_accuracy": score(scores.pop("shared", None)),
        "client_accuracy": {rule: score(v) for rule, v in scores.pop("client", {}).items()},
        "system_accuracy": {rule: score(v) for rule, v in system.items()},
        "before_tuning": before and {"average_accuracy": score(before), "system_accuracy": {"vote": score(before)}},
        "rounds": cell.plan.rounds,
        "window": cell.window,
        "seconds": {"train": 90.0, "evaluate": 10.0, "total": 100.0, "wall": scores.pop("wall", 120.0)},
        "hardware": scores.pop("hardware", "made by hand"),
        "versions": {"torch": "0"},
        "commit": None,
        "source": "0",
        "date": "2026-01-01",
        "config": {**cell.protocol(), "device": "cuda", "engine": "graph"},
        "curve": {"round": [1, 2], "average": [0.1, 0.2], "system": [0.1, None], "loss": [2.0, 1.0]},
    } | scores


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a finished cell into ``tmp_path/results``."""

    def make(cell: Cell | None, **scores: Any) -> CellRecord:
        assert cell is not None
        content = content_of(cell, **scores)
        path = tmp_path / "results" / f"{content['cell']}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
        return CellRecord(path, content)

    return make


@pytest.fixture
def some(paper: Grid, make: Make, tmp_path: Path) -> dict[str, CellRecord]:
    """Two finished cells of the paper's grid: FedDRM and FedAvgFT on CIFAR-10 Dir-0.3."""
    make(
        paper.by_id["cifar10-dir0.3_feddrm-lam0.9_seed2025"],
        average=0.7971,
        system={"head_density": 0.6215, "head_posterior": 0.6314, "vote": 0.1},
    )
    make(
        paper.by_id["cifar10-dir0.3_fedavgft-tune100_seed2025"],
        average=0.7827,
        system={"vote": 0.5613},
        before=0.6468,
        shared=0.64,
    )
    return read_records(paper, tmp_path / "results")
