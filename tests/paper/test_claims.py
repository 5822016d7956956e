"""Tests of the paper's claims and of unreported comparisons, on results made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from feddrm.paper.cell_records import CellRecord, read_records
from feddrm.paper.claims import Verdict, comparisons, verdicts
from feddrm.paper.grid import Grid
from feddrm.paper.results_page import results_page

Make = Callable[..., CellRecord]
DRM, FT, DITTO = (f"cifar10-dir0.3_{name}_seed2025" for name in ("feddrm-lam0.9", "fedavgft-tune100", "ditto"))


def verdict(grid: Grid, records: dict[str, CellRecord], text: str) -> Verdict:
    return next(found for found in verdicts(grid, records) if text in found.text)


def test_claims_are_open_until_they_are_decided(paper: Grid, make: Make, tmp_path: Path) -> None:
    assert {found.status for found in verdicts(paper, {})} == {"open"}
    client = {0.5: 0.9, 0.6: 0.85, 0.7: 0.8, 0.8: 0.75, 0.9: 0.7, 0.95: 0.6}
    system = {0.5: 0.5, 0.6: 0.6, 0.7: 0.61, 0.8: 0.62, 0.9: 0.615, 0.95: 0.5}

    def sweep(*lams: float, **changes: Any) -> dict[str, CellRecord]:
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


def test_one_counterexample_is_enough(paper: Grid, some: dict[str, CellRecord], make: Make, tmp_path: Path) -> None:
    assert verdict(paper, some, "best system accuracy").status == "open"
    make(paper.by_id[DITTO], system={"vote": 0.65})
    found = verdict(paper, read_records(paper, tmp_path / "results"), "best system accuracy")
    assert found.status == "does not hold"
    assert (
        found.evidence
        == "ahead of all 10 rivals in 0 of 6 columns; Ditto is 1.86 ahead in CIFAR-10 Dir-0.3; 5 cannot be decided yet"
    )


def test_a_lead_over_the_cells_run_so_far_is_reported_as_such(paper: Grid, make: Make, tmp_path: Path) -> None:
    def claim() -> str:
        return verdict(paper, read_records(paper, tmp_path / "results"), "best average accuracy").evidence

    make(paper.by_id["cifar10-dir0.3_feddrm-lam0.9_seed2025"], average=0.8)
    assert claim() == "ahead of all 10 rivals in 0 of 6 columns; 6 cannot be decided yet"
    make(paper.by_id[DITTO], average=0.7)
    assert claim() == (
        "ahead of all 10 rivals in 0 of 6 columns; in 1 ahead of those run so far (1 of them); 5 cannot be decided yet"
    )
    make(paper.by_id["cifar20-spc25_feddrm-lam0.9_seed2025"], average=0.8)
    for rival in ("ditto", "fedrep"):
        make(paper.by_id[f"cifar20-spc25_{rival}_seed2025"], average=0.7)
    assert claim() == (
        "ahead of all 10 rivals in 0 of 6 columns; in 2 ahead of those run so far (1 to 2 of them); "
        "4 cannot be decided yet"
    )


def test_the_paper_s_own_tables_contradict_two_claims(paper: Grid) -> None:
    against = {found.text: found.contradicted for found in verdicts(paper, {}) if found.contradicted}
    assert len(against) == 2
    shards = next(text for key, text in against.items() if "5-SPC" in key)
    assert shards.endswith("not for FedRep, FedPAC, FedAS, ConFREE, FedAvgFT, FedProxFT")
    declines = next(text for key, text in against.items() if "decline" in key)
    assert "FedAS, system accuracy: 32.58, 36.55, 38.12, 34.50" in declines


def test_unreported_comparisons(paper: Grid, some: dict[str, CellRecord]) -> None:
    found = {item.text: item for item in comparisons(paper, some)}
    tuned = found["FedAvg's global model, never tuned, against FedDRM's published router"]
    assert (tuned.ahead, tuned.figures("CIFAR-10 Dir-0.3")) == ("1 of 1", "**64.68** : 63.14")
    assert (tuned.figures("CIFAR-10 5-SPC"), tuned.figures("RETINA")) == ("missing", "–")
    assert found["FedDRM with the exact router against FedDRM's published router"].ahead == "0 of 0"
    page = results_page(paper, some, {}).split("## Not reported in the paper")[1].split("## Open")[0]
    assert f"| {tuned.text} | 1 of 1 | **64.68** : 63.14 |{' missing |' * 5}" in page
