"""Tests of the results of cells: what is refused, and that rewriting one changes no byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from feddrm.paper.cell_records import CellRecord, read_records, record_bytes
from feddrm.paper.grid import Grid
from refusal import refused

Make = Callable[..., CellRecord]
ROOT = Path(__file__).parents[2]
FIRST = "digits-dir0.3_feddrm-lam0.9_seed2025"


def test_only_results_of_the_full_protocol_are_read(smoke: Grid, tmp_path: Path, make: Make) -> None:
    record = make(smoke.by_id[FIRST])
    folder, content = record.path.parent, dict(record.content)
    assert set(read_records(smoke, folder)) == {FIRST}

    def with_(**changes: Any) -> None:
        record.path.write_text(json.dumps({**content, **changes}))

    config = content["config"]
    for key, value in (("rounds", 7), ("lr", 0.1), ("seed", 1)):
        with_(config={**config, key: value})
        with refused(str(record.path), f"departs from the protocol in '{key}'", "run the cell again"):
            read_records(smoke, folder)
    with_(config={**config, "method": {"name": "feddrm", "lam": 0.8}})
    with refused("'method.lam'"):
        read_records(smoke, folder)
    with_(config={**config, "evaluation": {**config["evaluation"], "views": 4}})
    with refused("'evaluation.views'"):
        read_records(smoke, folder)
    with_(rounds=7)
    with refused("'rounds'"):
        read_records(smoke, folder)
    with_(config={**config, "evaluation": {**config["evaluation"], "later": 1}, "precision": "bf16"})
    assert set(read_records(smoke, folder)) == {FIRST}
    for broken in ({"format": "2"}, {"cell": "other"}, {"seconds": None}):
        with_(**broken)
        with refused(str(record.path), "is broken (no result of the form feddrm-paper-cell-1): remove it"):
            read_records(smoke, folder)
    record.path.write_text("{")
    with refused("is broken (line 1 is not JSON): remove it and run the cell again"):
        read_records(smoke, folder)


def test_rewriting_a_committed_result_changes_no_byte(paper: Grid) -> None:
    records = read_records(paper, ROOT / "results" / "paper")
    assert len(records) > 40
    for record in records.values():
        assert record_bytes(record.content) == record.path.read_bytes(), record.id


def test_results_of_another_grid_are_refused(smoke: Grid, paper: Grid, make: Make) -> None:
    record = make(smoke.by_id[FIRST])
    with refused("is no cell of the grid 'paper'", "move it elsewhere"):
        read_records(paper, record.path.parent)


def test_further_seeds_of_a_cell_are_read(smoke: Grid, make: Make, tmp_path: Path) -> None:
    cell = smoke.choose(["digits-dir0.3_feddrm-lam0.9"], [7])[0]
    make(cell)
    assert list(read_records(smoke, tmp_path / "results")) == ["digits-dir0.3_feddrm-lam0.9_seed7"]
