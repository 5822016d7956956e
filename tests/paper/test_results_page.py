"""Tests of the results page on results made by hand, and that the committed page is current."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from feddrm.paper.cell_records import CellRecord, read_records
from feddrm.paper.grid import Grid
from feddrm.paper.paper_figures import FIGURES
from feddrm.paper.results_page import SeedSpread, read_notes, results_page, seed_spreads
from feddrm.paper.tuned_section import tuned_section
from refusal import refused

Make = Callable[..., CellRecord]
DRM, FT, DITTO = (f"cifar10-dir0.3_{name}_seed2025" for name in ("feddrm-lam0.9", "fedavgft-tune100", "ditto"))
ROOT = Path(__file__).parents[2]


def test_the_page_opens_with_the_spread_across_seeds(paper: Grid, make: Make, tmp_path: Path) -> None:
    def opening() -> str:
        return results_page(paper, read_records(paper, tmp_path / "results"), {}).split("## Holds")[0]

    make(paper.by_id["cifar10-spc5_feddrm-lam0.9_seed2025"], average=0.70)
    assert "Every figure is of one seed" in opening()
    make(paper.by_id["cifar10-spc5_feddrm-lam0.9_seed2026"], average=0.74)
    assert "it is 0.20 to 0.20 points; the spread across seeds is 0.00 to 2.83 points" in opening()
    for seed, average in ((2025, 0.69), (2026, 0.72)):
        make(paper.by_id[f"cifar10-spc5_fedavgft-tune100_seed{seed}"], average=average)
    assert "two methods on the same seed vary by 0.00 to 0.71" in opening()


def test_the_spread_across_seeds(paper: Grid, make: Make, tmp_path: Path) -> None:
    for seed, average in ((2025, 0.70), (2026, 0.72), (2027, 0.77)):
        make(paper.by_id[f"cifar10-spc5_feddrm-lam0.9_seed{seed}"], average=average)
    rows = seed_spreads(paper, read_records(paper, tmp_path / "results"), ("average",))
    assert len(rows) == 1
    assert (len(rows[0].values), rows[0].across_rounds) == (3, 0.002)
    assert rows[0].mean == pytest.approx(0.73)
    assert rows[0].across_seeds == pytest.approx(0.0013**0.5)  # (0.03^2 + 0.01^2 + 0.04^2) / 2


def test_methods_are_compared_on_the_same_seeds(paper: Grid, make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    for seed, average in ((2025, 0.70), (2026, 0.74), (2027, 0.9)):
        make(paper.by_id[f"cifar10-spc5_feddrm-lam0.9_seed{seed}"], average=average)
    make(paper.by_id["cifar10-spc5_fedavgft-tune100_seed2025"], average=0.69)

    def rows() -> dict[str, SeedSpread]:
        return {row.method: row for row in seed_spreads(paper, read_records(paper, folder), ("average",))}

    assert list(rows()) == ["FedDRM"]  # one common seed says nothing of spread
    make(paper.by_id["cifar10-spc5_fedavgft-tune100_seed2026"], average=0.71)
    found = rows()
    assert list(found) == ["FedDRM", "FedAvgFT", "FedDRM less FedAvgFT"]
    margin = found["FedDRM less FedAvgFT"]
    assert len(margin.values) == 2  # the third seed has no partner
    assert (margin.paired, margin.across_rounds) == (True, None)
    assert margin.mean == pytest.approx(0.02)
    assert margin.across_seeds == pytest.approx(0.02 / 2**0.5)  # 0.01 and 0.03


def test_differences_are_listed_as_explained_or_unexplained(paper: Grid, make: Make, tmp_path: Path) -> None:
    make(paper.by_id[DITTO], average=0.70, system={"vote": 0.60})
    folder = tmp_path / "results"
    (folder / "notes.yaml").write_text(f"{DITTO}:\n  average: another\n    schedule\n")
    records = read_records(paper, folder)
    page = results_page(paper, records, read_notes(paper, records, folder))
    explained, unexplained = page.split("Explained:")[1].split("## Seeds")[0].split("Unexplained:")
    assert "- Average accuracy: Ditto, CIFAR-10 Dir-0.3: −6.34. another schedule" in explained
    assert "- System accuracy: Ditto, CIFAR-10 Dir-0.3: +12.36." in unexplained
    assert "70.00 ± 0.20 (76.34, −6.34) *" in page
    assert f"- \\* `{DITTO}`, average: another schedule" in page
    assert "**1 of 158 cells**" in page
    # Both figures stand in two tables, main and alpha, and count once.
    assert "2 can be compared: 0 lie within 1.5 points of ours, 2 farther off" in page
    assert page.count("+12.36.") == 1


def test_a_note_that_begins_with_open_explains_nothing(paper: Grid, make: Make, tmp_path: Path) -> None:
    make(paper.by_id[DITTO], average=0.70)
    folder = tmp_path / "results"
    (folder / "notes.yaml").write_text(f"{DITTO}:\n  average: 'Open: not the crop'\n")
    records = read_records(paper, folder)
    page = results_page(paper, records, read_notes(paper, records, folder))
    explained, unexplained = page.split("Explained:")[1].split("## Seeds")[0].split("Unexplained:")
    assert explained.split() == ["-", "none"]
    assert "- Average accuracy: Ditto, CIFAR-10 Dir-0.3: −6.34. Open: not the crop" in unexplained


@pytest.mark.parametrize(
    ("text", "says"),
    [("nobody: {average: x}", "'nobody', which is no cell"), (f"{DITTO}: x", "a note per measure"), ("[", "not YAML")],
)
def test_bad_notes(text: str, says: str, paper: Grid, tmp_path: Path) -> None:
    (tmp_path / "notes.yaml").write_text(text)
    with refused(str(tmp_path / "notes.yaml"), says):
        read_notes(paper, {}, tmp_path)


def test_only_the_papers_own_page_shows_the_drawn_figures(paper: Grid, smoke: Grid) -> None:
    page = results_page(paper, {}, {})
    for name in ("main", "lambda", "covariate", "sharing"):
        section = page.split(f"## Table: {name}\n")[1].split("\n## ")[0]
        assert f"]({name}.png)" in section
        assert name in FIGURES
    assert page.count(".png)") == 4
    assert ".png)" not in results_page(smoke, {}, {})


def test_the_page_in_docs_is_current(paper: Grid) -> None:
    """Made by 'feddrm paper page' from what is in results/paper and results/tuned, and committed."""
    folder = ROOT / "results" / "paper"
    records = read_records(paper, folder)
    assert (ROOT / "docs" / "results.md").read_text() == results_page(
        paper, records, read_notes(paper, records, folder), tuned_section(folder.parent / "tuned")
    )
