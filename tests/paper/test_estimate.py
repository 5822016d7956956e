"""Tests of the estimated time of a cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from feddrm.paper.cell_records import CellRecord
from feddrm.paper.estimate import estimate, router_estimate
from feddrm.paper.grid import Grid

Make = Callable[..., CellRecord]


def test_estimates(paper: Grid, make: Make) -> None:
    cell = paper.by_id["cifar10-dir0.3_feddrm-lam0.9_seed2025"]
    ditto, sam = (paper.by_id[f"cifar10-dir0.3_{name}_seed2025"] for name in ("ditto", "fedsamft-tune100"))
    assert estimate(cell, paper.by_id, []) is None
    record = make(cell, wall=160.0)
    assert estimate(paper.by_id["cifar10-spc5_feddrm-lam0.9_seed2025"], paper.by_id, [record]) == pytest.approx(160.0)
    guess = {c.method: estimate(c, paper.by_id, [record]) for c in (cell, ditto, sam)}
    assert guess["ditto"] > guess["feddrm-lam0.9"]  # type: ignore[operator]
    measured = make(sam, wall=999.0)
    assert estimate(sam, paper.by_id, [record, measured]) == pytest.approx(999.0)
    assert estimate(ditto, paper.by_id, []) is None
    shared = replace(
        record, content={**record.content, "seconds": {**record.content["seconds"], "wall": 480.0, "beside": 2}}
    )
    assert estimate(cell, paper.by_id, [shared]) == pytest.approx(480.0)
    assert estimate(cell, paper.by_id, [shared, record, shared]) == pytest.approx(160.0)


def test_a_router_takes_as_long_as_those_of_its_method_and_data_took(paper: Grid, make: Make) -> None:
    def fitted(cell: str, seconds: float | None, **more: int) -> CellRecord:
        record = make(paper.by_id[cell])
        times = {**record.content["seconds"], "router": seconds, **more}
        return replace(record, content={**record.content, "seconds": times})

    cell = paper.by_id["cifar10-dir1.3_fedrep_seed2025"]
    records: list[CellRecord] = []

    def grown(cell_id: str, seconds: float | None, **more: int) -> float:
        records.append(fitted(cell_id, seconds, **more))
        return router_estimate(cell, paper.by_id, records)

    assert router_estimate(cell, paper.by_id, records) == 0.0
    assert grown("cifar100-dir0.3_fedpac_seed2025", 128.0, beside=2) == 128.0  # better than nothing
    assert grown("cifar100-dir0.3_feddrm-lam0.9_seed2025", 40.0) == 40.0
    assert grown("cifar10-dir0.3_ditto_seed2025", 59.0) == 59.0
    assert grown("cifar10-dir0.3_fedrep_seed2025", 14.0) == 14.0
    assert grown("cifar10-spc5_fedrep_seed2025", 15.0) == 15.0
    assert grown("cifar10-dir2.3_fedrep_seed2025", None) == 15.0
