from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from feddrm.paper import paper_figures
from feddrm.paper.cell_records import CellRecord, read_records
from feddrm.paper.grid import Grid
from feddrm.paper.paper_figures import figure
from refusal import refused

Make = Callable[..., CellRecord]


def test_sweeps_leave_gaps_where_cells_are_missing(paper: Grid, make: Make, tmp_path: Path) -> None:
    with refused("no cell of 'lambda' has been run", "feddrm paper run --only lambda"):
        figure("lambda", paper, {})
    for lam in (0.5, 0.9):
        make(paper.by_id[f"cifar10-dir0.3_feddrm-lam{lam}_seed2025"], average=lam)
    drawn = figure("lambda", paper, read_records(paper, tmp_path / "results"))
    axes = drawn.axes[0]
    assert "2 of 6 cells run" in axes.get_title()
    y = np.asarray(axes.lines[0].get_ydata(), dtype=float)
    assert np.array_equal(np.isnan(y), [False, True, True, True, False, True])
    assert (y[0], y[4]) == (50.0, 90.0)


def test_curves_of_every_method_that_has_been_run(paper: Grid, make: Make, tmp_path: Path) -> None:
    with refused("no cell of 'retina' has been run", "FedLGD"):
        figure("retina", paper, {})
    with refused("no cell of 'main' has been run", "feddrm paper run --only main"):
        figure("main", paper, {})
    for cell in ("retina_ditto", "cifar20-dir0.3_fedas", "cifar20-dir0.3_feddrm-lam0.9"):
        make(paper.by_id[f"{cell}_seed2025"])
    records = read_records(paper, tmp_path / "results")
    drawn = figure("retina", paper, records)
    measures = ["average accuracy (%)", "system accuracy (%)", "training loss"]
    assert [axes.get_title() for axes in drawn.axes] == [f"RETINA, 1 of 11 methods: {what}" for what in measures]
    assert drawn.axes[0].lines[0].get_ydata().tolist() == [10.0, 20.0]
    drawn = figure("main", paper, records)
    assert [len(axes.lines) for axes in drawn.axes] == [0] * 6 + [2] * 3 + [0] * 9
    assert drawn.axes[6].get_title() == "CIFAR-20 Dir-0.3, 2 of 13 methods: average accuracy (%)"
    assert sorted(text.get_text() for text in drawn.legends[0].get_texts()) == ["FedAS", "FedDRM"]


def test_unknown(paper: Grid) -> None:
    with refused("unknown figure 'lamda'; did you mean 'lambda'?"):
        figure("lamda", paper, {})


@pytest.mark.slow
@pytest.mark.data
def test_pictures_of_the_data(paper: Grid, real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_figures, "read_pool", functools.cache(paper_figures.read_pool))  # for both pictures
    shifts = figure("shifts", paper, {}, str(real_data))
    rows = {axes.get_title(): len(axes.get_yticklabels()) for axes in shifts.axes}
    assert rows == {"low": 8, "mid": 8, "high (main)": 8, "number of clients (pool)": 32}
    labels = figure("labels", paper, {}, str(real_data))
    numbers = [int(text.get_text()) for text in labels.axes[3].texts]
    assert sorted(set(numbers)) == [0, 1500, 3000]
