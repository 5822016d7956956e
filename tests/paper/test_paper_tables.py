"""Tests of the paper's tables on results made by hand."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feddrm.paper.cell_records import CellRecord, read_records
from feddrm.paper.grid import Grid
from feddrm.paper.paper_tables import render, tables
from refusal import refused

Make = Callable[..., CellRecord]
DRM, FT, DITTO = (f"cifar10-dir0.3_{name}_seed2025" for name in ("feddrm-lam0.9", "fedavgft-tune100", "ditto"))


def cell(table: Any, row: str, column: int = 0) -> Any:
    return next(r for r in table.rows if r.label == row).entries[column]


def test_ours_theirs_and_the_difference(paper: Grid, some: dict[str, CellRecord]) -> None:
    system, average = tables(paper, "main", some)
    assert cell(system, "FedDRM").ours.mean == 0.6314  # the rule that the paper states
    assert cell(system, "FedDRM").difference == pytest.approx(63.14 - 62.78)
    assert cell(system, "FedDRM, density rule").ours.mean == 0.6215
    assert cell(system, "FedDRM, density rule").paper is None
    assert cell(system, "FedAvgFT").difference == pytest.approx(56.13 - 54.90)
    assert cell(system, "FedAvg, before tuning").ours.mean == 0.6468
    assert cell(average, "FedAvgFT").difference == pytest.approx(78.27 - 79.08)
    assert not any(row.label == "FedDRM, density rule" for row in average.rows)  # it changes no average
    assert cell(system, "Ditto").gap == "missing"
    assert cell(system, "Ditto").paper.mean == pytest.approx(0.4764)
    assert cell(tables(paper, "alpha", some)[0], "FedDRM").difference == pytest.approx(63.14 - 63.85)
    assert [table.count for table in (system, average)] == [(4, 90), (3, 84)]


def test_bold_is_the_best_of_what_was_run(paper: Grid, some: dict[str, CellRecord]) -> None:
    system, _ = tables(paper, "main", some)
    best = [row.label for i, row in enumerate(system.rows) if system.best(i, 0)]
    assert best == ["FedAvg, before tuning"]
    assert not any(system.best(i, 1) for i in range(len(system.rows)))


def test_a_gap_says_why_there_is_no_score(paper: Grid, some: dict[str, CellRecord], make: Make, tmp_path: Path) -> None:
    table = tables(paper, "lambda", some)[0]
    gaps = [entry.gap for entry in next(row for row in table.rows if row.label == "λ = 0.9").entries]
    assert gaps == ["", "none", "", "", "no router", "no router", ""]
    beyond = tables(paper, "beyond", some)[0]
    assert beyond.title == "CIFAR-10 Dir-0.3: everything measured"
    consult = beyond.columns.index("consult all")
    assert cell(beyond, "FedAvgFT", consult).gap == "no router"
    assert cell(beyond, "FedAvgFT, before tuning", consult).gap == "none"
    assert cell(beyond, "FedAvgFT", beyond.columns.index("global")).ours.mean == 0.64
    assert [row.label for row in beyond.begun.rows] == ["FedDRM", "FedAvgFT", "FedAvgFT, before tuning"]
    exact = {"head_posterior": 0.6, "exact_density": 0.74, "consult_all": 0.75}
    make(paper.by_id[DRM], system=exact, client={"head_posterior": 0.7, "exact_density": 0.9})
    again = read_records(paper, tmp_path / "results")
    assert cell(tables(paper, "beyond", again)[0], "FedDRM", consult).ours.mean == 0.75
    assert cell(tables(paper, "lambda", again)[0], "λ = 0.9", 4).ours.mean == 0.9


def test_markdown(paper: Grid, some: dict[str, CellRecord]) -> None:
    text = render(tables(paper, "main", some), "md", {f"{FT} system": "why"})
    assert "| FedDRM | 63.14 ± 0.20 (62.78, +0.36) | missing (58.50) |" in text
    assert "| FedAvgFT | 56.13 ± 0.20 (54.90, +1.23) * | missing (56.19) |" in text
    assert "| FedAvg, before tuning | **64.68** ± 0.20 | missing |" in text
    assert "| FedAvgFT | 78.27 ± 0.20 (79.08, −0.81) |" in text


def test_latex(paper: Grid, some: dict[str, CellRecord]) -> None:
    text = render(tables(paper, "clients", some), "latex")
    assert r" & \multicolumn{4}{c}{System accuracy} & \multicolumn{4}{c}{Average accuracy} \\" in text
    assert r"\cmidrule(lr){2-5} \cmidrule(lr){6-9}" in text
    text = render(tables(paper, "main", some), "latex")
    assert r"FedAvgFT & 56.13 $\pm$ 0.20 (54.90, +1.23) & missing (56.19)" in text
    assert r"FedAvg, before tuning & \textbf{64.68} $\pm$ 0.20 & missing" in text
    assert all(line.count("&") == 6 for line in text.splitlines() if line.endswith(r"\\"))
    assert text.count("{tabular}") == 4
    assert "α" not in render(tables(paper, "alpha", some), "latex")


def test_csv(paper: Grid, some: dict[str, CellRecord]) -> None:
    rows = list(csv.DictReader(io.StringIO(render(tables(paper, "main", some), "csv"))))
    found = {(row["cell"], row["measure"], row["row"]): row for row in rows}
    ours = found[DRM, "system", "FedDRM"]
    assert (ours["mean"], ours["std"], ours["paper_mean"], ours["points"]) == ("0.6314", "0.002", "0.6278", "0.36")
    none = found[DITTO, "average", "Ditto"]
    assert (none["mean"], none["paper_mean"], none["gap"]) == ("", "0.7634", "missing")
    assert len(rows) == 15 * 6 + 14 * 6


def test_html(paper: Grid, some: dict[str, CellRecord]) -> None:
    text = render(tables(paper, "main", some), "html")
    row = '<th scope="row">FedAvg, before tuning</th><td><strong>64.68</strong><span class="std"> ± 0.20</span></td>'
    assert f"{row}<td>missing</td>" in text
    assert text.count("<table>") == text.count("</table>") == 2


def test_unknown_names(paper: Grid) -> None:
    with refused("unknown table 'mian'; did you mean 'main'?", "beyond"):
        tables(paper, "mian", {})
    with refused("unknown format 'pdf'", "md, latex, csv, html"):
        render([], "pdf")
