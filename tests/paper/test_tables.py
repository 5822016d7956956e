"""Tables, verdicts and the page, from results made by hand."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feddrm.paper import Grid, Record, read_notes, read_records, render, results_page, tables
from feddrm.paper.claims import Verdict, comparisons, verdicts
from feddrm.paper.paper_tables import seed_rows
from refusal import refused

Make = Callable[..., Record]
ROOT = Path(__file__).parents[2]
DRM, FT, DITTO = (f"cifar10-dir0.3_{name}_seed2025" for name in ("feddrm-lam0.9", "fedavgft-tune100", "ditto"))


@pytest.fixture
def some(paper: Grid, make: Make, tmp_path: Path) -> dict[str, Record]:
    make(paper.by_id[DRM], average=0.7971, system={"head_density": 0.6215, "head_posterior": 0.6314, "vote": 0.1})
    make(paper.by_id[FT], average=0.7827, system={"vote": 0.5613}, before=0.6468, shared=0.64)
    return read_records(paper, tmp_path / "results")


def cell(table: Any, row: str, column: int = 0) -> Any:
    return next(r for r in table.rows if r.label == row).entries[column]


def test_ours_theirs_and_the_difference(paper: Grid, some: dict[str, Record]) -> None:
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


def test_bold_is_the_best_of_what_was_run(paper: Grid, some: dict[str, Record]) -> None:
    system, _ = tables(paper, "main", some)
    best = [row.label for i, row in enumerate(system.rows) if system.best(i, 0)]
    assert best == ["FedAvg, before tuning"]
    assert not any(system.best(i, 1) for i in range(len(system.rows)))


def test_gaps_say_why(paper: Grid, some: dict[str, Record], make: Make, tmp_path: Path) -> None:
    table = tables(paper, "lambda", some)[0]
    gaps = [entry.gap for entry in next(row for row in table.rows if row.label == "λ = 0.9").entries]
    assert gaps == ["", "none", "", "", "no router", "no router", ""]
    beyond = tables(paper, "beyond", some)[0]
    assert beyond.title == "CIFAR-10 Dir-0.3: everything measured"
    consult = beyond.columns.index("consult all")
    assert cell(beyond, "FedAvgFT", consult).gap == "no router"
    assert cell(beyond, "FedAvgFT, before tuning", consult).gap == "none"
    assert cell(beyond, "FedAvgFT", beyond.columns.index("global")).ours.mean == 0.64
    exact = {"head_posterior": 0.6, "exact_density": 0.74, "consult_all": 0.75}
    make(paper.by_id[DRM], system=exact, client={"head_posterior": 0.7, "exact_density": 0.9})
    again = read_records(paper, tmp_path / "results")
    assert cell(tables(paper, "beyond", again)[0], "FedDRM", consult).ours.mean == 0.75
    assert cell(tables(paper, "lambda", again)[0], "λ = 0.9", 4).ours.mean == 0.9


def test_markdown(paper: Grid, some: dict[str, Record]) -> None:
    text = render(tables(paper, "main", some), "md", {f"{FT} system": "why"})
    assert "| FedDRM | 63.14 ± 0.20 (62.78, +0.36) | missing (58.50) |" in text
    assert "| FedAvgFT | 56.13 ± 0.20 (54.90, +1.23) * | missing (56.19) |" in text
    assert "| FedAvg, before tuning | **64.68** ± 0.20 | missing |" in text
    assert "| FedAvgFT | 78.27 ± 0.20 (79.08, −0.81) |" in text


def test_latex(paper: Grid, some: dict[str, Record]) -> None:
    text = render(tables(paper, "clients", some), "latex")
    assert r" & \multicolumn{4}{c}{System accuracy} & \multicolumn{4}{c}{Average accuracy} \\" in text
    assert r"\cmidrule(lr){2-5} \cmidrule(lr){6-9}" in text
    text = render(tables(paper, "main", some), "latex")
    assert r"FedAvgFT & 56.13 $\pm$ 0.20 (54.90, +1.23) & missing (56.19)" in text
    assert r"FedAvg, before tuning & \textbf{64.68} $\pm$ 0.20 & missing" in text
    assert all(line.count("&") == 6 for line in text.splitlines() if line.endswith(r"\\"))
    assert text.count("{tabular}") == 4
    assert "α" not in render(tables(paper, "alpha", some), "latex")


def test_csv(paper: Grid, some: dict[str, Record]) -> None:
    rows = list(csv.DictReader(io.StringIO(render(tables(paper, "main", some), "csv"))))
    found = {(row["cell"], row["measure"], row["row"]): row for row in rows}
    ours = found[DRM, "system", "FedDRM"]
    assert (ours["mean"], ours["std"], ours["paper_mean"], ours["points"]) == ("0.6314", "0.002", "0.6278", "0.36")
    none = found[DITTO, "average", "Ditto"]
    assert (none["mean"], none["paper_mean"], none["gap"]) == ("", "0.7634", "missing")
    assert len(rows) == 15 * 6 + 14 * 6


def test_html(paper: Grid, some: dict[str, Record]) -> None:
    text = render(tables(paper, "main", some), "html")
    row = '<th scope="row">FedAvg, before tuning</th><td><strong>64.68</strong><span class="std"> ± 0.20</span></td>'
    assert f"{row}<td>missing</td>" in text
    assert text.count("<table>") == text.count("</table>") == 2


def test_unknown_names(paper: Grid) -> None:
    with refused("unknown table 'mian'; did you mean 'main'?", "beyond"):
        tables(paper, "mian", {})
    with refused("unknown format 'pdf'", "md, latex, csv, html"):
        render([], "pdf")


def verdict(grid: Grid, records: dict[str, Record], text: str) -> Verdict:
    return next(found for found in verdicts(grid, records) if text in found.text)


def test_claims_are_open_until_they_are_decided(paper: Grid, make: Make, tmp_path: Path) -> None:
    assert {found.status for found in verdicts(paper, {})} == {"open"}
    client = {0.5: 0.9, 0.6: 0.85, 0.7: 0.8, 0.8: 0.75, 0.9: 0.7, 0.95: 0.6}
    system = {0.5: 0.5, 0.6: 0.6, 0.7: 0.61, 0.8: 0.62, 0.9: 0.615, 0.95: 0.5}

    def sweep(*lams: float, **changes: Any) -> dict[str, Record]:
        for lam in lams:
            made = paper.by_id[f"cifar10-dir0.3_feddrm-lam{lam}_seed2025"]
            scores = {"system": {"head_posterior": system[lam]}, "client": {"head_posterior": client[lam]}}
            make(made, **{"average": lam, **scores, **changes})
        return read_records(paper, tmp_path / "results")

    some = sweep(0.5, 0.8, 0.9)
    assert verdict(paper, some, "Client accuracy falls as").status == "open"
    assert verdict(paper, some, "peaks").evidence == "λ = 0.5: 50.00, λ = 0.8: 62.00, λ = 0.9: 61.50, 3 of 6 missing"
    every = sweep(*client)
    for text in ("Client accuracy falls as", "Average accuracy rises with λ", "peaks"):
        assert verdict(paper, every, text).status == "holds"
    system[0.9] = 0.63
    again = sweep(0.9)
    assert verdict(paper, again, "peaks").status == "does not hold"
    again = sweep(0.6, average=0.4)
    assert verdict(paper, again, "Average accuracy rises with λ").status == "does not hold"


def test_one_counterexample_is_enough(paper: Grid, some: dict[str, Record], make: Make, tmp_path: Path) -> None:
    assert verdict(paper, some, "best system accuracy").status == "open"
    make(paper.by_id[DITTO], system={"vote": 0.65})
    found = verdict(paper, read_records(paper, tmp_path / "results"), "best system accuracy")
    assert found.status == "does not hold"
    assert (
        found.evidence
        == "ahead of all 10 rivals in 0 of 6 columns; Ditto is 1.86 ahead in CIFAR-10 Dir-0.3; 5 cannot be told yet"
    )


def test_a_lead_so_far_is_said_to_be_one(paper: Grid, make: Make, tmp_path: Path) -> None:
    def claim() -> str:
        return verdict(paper, read_records(paper, tmp_path / "results"), "best average accuracy").evidence

    make(paper.by_id["cifar10-dir0.3_feddrm-lam0.9_seed2025"], average=0.8)
    assert claim() == "ahead of all 10 rivals in 0 of 6 columns; 6 cannot be told yet"
    make(paper.by_id[DITTO], average=0.7)
    assert claim() == (
        "ahead of all 10 rivals in 0 of 6 columns; in 1 ahead of those run so far (1 of them); 5 cannot be told yet"
    )
    make(paper.by_id["cifar20-spc25_feddrm-lam0.9_seed2025"], average=0.8)
    for rival in ("ditto", "fedrep"):
        make(paper.by_id[f"cifar20-spc25_{rival}_seed2025"], average=0.7)
    assert claim() == (
        "ahead of all 10 rivals in 0 of 6 columns; in 2 ahead of those run so far (1 to 2 of them); "
        "4 cannot be told yet"
    )


def test_the_paper_s_own_tables_against_its_words(paper: Grid) -> None:
    against = {found.text: found.contradicted for found in verdicts(paper, {}) if found.contradicted}
    assert len(against) == 2
    shards = next(text for key, text in against.items() if "5-SPC" in key)
    assert shards.endswith("not for FedRep, FedPAC, FedAS, ConFREE, FedAvgFT, FedProxFT")
    declines = next(text for key, text in against.items() if "decline" in key)
    assert "FedAS, system accuracy: 32.58, 36.55, 38.12, 34.50" in declines


def test_unreported_comparisons(paper: Grid, some: dict[str, Record]) -> None:
    found = {item.text: item for item in comparisons(paper, some)}
    tuned = found["FedAvg's global model, never tuned, against FedDRM's published router"]
    assert (tuned.ahead, tuned.figures("CIFAR-10 Dir-0.3")) == ("1 of 1", "**64.68** : 63.14")
    assert (tuned.figures("CIFAR-10 5-SPC"), tuned.figures("RETINA")) == ("missing", "–")
    assert found["FedDRM with the exact router against FedDRM's published router"].ahead == "0 of 0"
    page = results_page(paper, some, {}).split("## Not reported in the paper")[1].split("## Open")[0]
    assert f"| {tuned.text} | 1 of 1 | **64.68** : 63.14 |{' missing |' * 5}" in page


def test_seeds(paper: Grid, make: Make, tmp_path: Path) -> None:
    for seed, average in ((2025, 0.70), (2026, 0.72), (2027, 0.77)):
        make(paper.by_id[f"cifar10-spc5_feddrm-lam0.9_seed{seed}"], average=average)
    rows = seed_rows(paper, read_records(paper, tmp_path / "results"), ("average",))
    assert len(rows) == 1
    assert (rows[0]["seeds"], rows[0]["across_rounds"]) == (3, 0.002)
    assert rows[0]["mean"] == pytest.approx(0.73)
    assert rows[0]["across_seeds"] == pytest.approx(0.0013**0.5)  # (0.03^2 + 0.01^2 + 0.04^2) / 2


def test_methods_are_compared_on_the_same_seeds(paper: Grid, make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    for seed, average in ((2025, 0.70), (2026, 0.74), (2027, 0.9)):
        make(paper.by_id[f"cifar10-spc5_feddrm-lam0.9_seed{seed}"], average=average)
    make(paper.by_id["cifar10-spc5_fedavgft-tune100_seed2025"], average=0.69)

    def rows() -> dict[str, dict[str, Any]]:
        return {row["method"]: row for row in seed_rows(paper, read_records(paper, folder), ("average",))}

    assert list(rows()) == ["FedDRM"]  # one common seed says nothing of spread
    make(paper.by_id["cifar10-spc5_fedavgft-tune100_seed2026"], average=0.71)
    found = rows()
    assert list(found) == ["FedDRM", "FedAvgFT", "FedDRM less FedAvgFT"]
    margin = found["FedDRM less FedAvgFT"]
    assert (margin["seeds"], margin["paired"], margin["across_rounds"]) == (
        2,
        True,
        None,
    )  # the third seed has no partner
    assert margin["mean"] == pytest.approx(0.02)
    assert margin["across_seeds"] == pytest.approx(0.02 / 2**0.5)  # 0.01 and 0.03


def test_the_page_opens_with_how_far_one_seed_may_be_trusted(paper: Grid, make: Make, tmp_path: Path) -> None:
    def opening() -> str:
        return results_page(paper, read_records(paper, tmp_path / "results"), {}).split("## Holds")[0]

    make(paper.by_id["cifar10-spc5_feddrm-lam0.9_seed2025"], average=0.70)
    assert "Every figure is of one seed" in opening()
    make(paper.by_id["cifar10-spc5_feddrm-lam0.9_seed2026"], average=0.74)
    assert "0.20 to 0.20 points where further seeds have been run, against 0.00 to 2.83 across seeds" in opening()
    for seed, average in ((2025, 0.69), (2026, 0.72)):
        make(paper.by_id[f"cifar10-spc5_fedavgft-tune100_seed{seed}"], average=average)
    assert "two methods on the same seed vary by 0.00 to 0.71" in opening()


def test_differences_are_explained_or_listed(paper: Grid, make: Make, tmp_path: Path) -> None:
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


def test_what_has_been_tried_is_no_reason(paper: Grid, make: Make, tmp_path: Path) -> None:
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


def test_the_page_in_docs_is_current(paper: Grid) -> None:
    """Made by 'feddrm paper page' from what is in results/paper, and committed."""
    folder = ROOT / "results" / "paper"
    records = read_records(paper, folder)
    assert (ROOT / "docs" / "results.md").read_text() == results_page(
        paper, records, read_notes(paper, records, folder)
    )
