"""The results page's section on the tuned grid."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from feddrm.paper.cell_records import CellRecord
from feddrm.paper.grid import Grid
from feddrm.paper.tuned_section import tuned_section

Make = Callable[..., CellRecord]


@pytest.fixture
def searched(tmp_path: Path) -> Callable[[str, float], Grid]:
    """Write a finished search into ``tmp_path/results``."""
    grid = Grid.read("tuned")
    chosen: dict[str, dict[str, float]] = {}

    def write(pair: str, rate: float) -> Grid:
        path = tmp_path / "results" / "search" / f"{pair}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"format": "feddrm-paper-search-1", "search": grid.search, "chosen": {"lr": rate}, "trials": {}}
        path.write_text(json.dumps(content))
        chosen[pair] = {"lr": rate}
        return replace(grid, chosen=dict(chosen))

    return write


def test_nothing_is_said_before_a_cell_is_run(tmp_path: Path) -> None:
    assert tuned_section(tmp_path / "results") == ""


def test_rates_claims_tables_and_differences_by_seed(
    searched: Callable[[str, float], Grid], make: Make, tmp_path: Path
) -> None:
    searched("cifar10-dir0.3_feddrm-lam0.9", 0.3)
    grid = searched("cifar10-dir0.3_fedavgft", 0.1)
    for seed, ours, theirs in ((2025, 0.88, 0.85), (2026, 0.84, 0.85)):
        drm, ft = (grid.by_id[f"cifar10-dir0.3_{name}_seed{seed}"] for name in ("feddrm-lam0.9", "fedavgft"))
        make(drm, average=ours, system={"head_posterior": 0.8, "stacked": ours - 0.01, "exact_density": 0.82})
        make(ft, average=theirs, system={"vote": 0.7, "stacked": 0.82, "exact_density": 0.81}, before=0.75)
    section = tuned_section(tmp_path / "results")
    assert "of 0.01, 0.03, 0.1, 0.3, 1.0, by average accuracy on 20 % of each" in section
    assert "together take 100 % of the rounds of one run" in section
    assert f"**4 of {len(grid.cells)} cells**" in section
    assert "| FedDRM | 0.3 | – |" in section
    assert "| FedAvgFT | 0.1 | – |" in section
    assert "**88.00** ± 0.20 (80.26, +7.74)" in section
    assert "| FedDRM less FedAvgFT | average | +3.00, −1.00 | +1.00 |" in section
    assert "FedDRM has the best average accuracy: **open**" in section
    assert "75.00 : 87.00" in section.replace("**", "")


def test_a_claim_that_one_method_refutes_does_not_hold(
    searched: Callable[[str, float], Grid], make: Make, tmp_path: Path
) -> None:
    searched("cifar10-dir0.3_feddrm-lam0.9", 0.3)
    grid = searched("cifar10-dir0.3_fedrep", 0.1)
    make(grid.by_id["cifar10-dir0.3_feddrm-lam0.9_seed2025"], average=0.80)
    make(grid.by_id["cifar10-dir0.3_fedrep_seed2025"], average=0.81)
    section = tuned_section(tmp_path / "results")
    assert "best average accuracy: **does not hold**" in section
    assert "FedRep is 1.00 ahead in CIFAR-10 Dir-0.3" in section
