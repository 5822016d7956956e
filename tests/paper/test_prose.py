"""Tables that are written by hand show what the cells hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from feddrm.paper import Grid, read_records, tables

ROOT = Path(__file__).parents[2]
SETTINGS = ("cifar10-dir0.3", "cifar10-spc5", "cifar20-dir0.3", "cifar20-spc25", "cifar100-dir0.3", "cifar100-spc25")
DRM, FT = "feddrm-lam0.9", "fedavgft-tune100"
BY_HAND = {
    ("README.md", "a query from nowhere, % right"): [
        (FT, "{global:before}"),
        (DRM, "{system}"),
        (DRM, "{system.exact_density}"),
        (DRM, "{system.stacked}"),
        (DRM, "{average}"),
    ],
    ("docs/router.md", "same trained FedDRM model"): [
        (DRM, "{client.head_density} / {client.head_posterior}"),
        (DRM, "{client.exact_density} / {client.exact_posterior}"),
        (DRM, "{system.head_density} / {system.head_posterior}"),
        (DRM, "{system.exact_density} / {system.exact_posterior}"),
        (DRM, "{system.consult_2}, {system.consult_all}"),
        (DRM, "{system.refit_all}"),
        (DRM, "{system.joint}"),
        (DRM, "{system.global_probe}"),
        (DRM, "{system.stacked}"),
        (DRM, "{system.stacked_published}"),
        (DRM, "{oracle}"),
        (DRM, "{refit_oracle_accuracy}"),
        (DRM, "{paper}"),
    ],
    ("docs/router.md", "the same fit, other methods"): [
        (method, measure)
        for method in (FT, "fedbabu-tune200", "fedas", "fedala-fixed")
        for measure in ("{system.vote}", "{system.exact_density}", "{system.stacked}", "{average}")
    ],
}


@pytest.mark.parametrize(("file", "title"), BY_HAND)
def test_a_table_shows_what_was_measured(file: str, title: str, paper: Grid) -> None:
    records = read_records(paper, ROOT / "results" / "paper")
    published = next(row for row in tables(paper, "main", records)[1].rows if row.label == "FedDRM")

    def figure(measure: str, method: str, j: int) -> str:
        record = records.get(f"{SETTINGS[j]}_{method}_seed2025")
        if record is None:
            return "-"
        if measure == "paper":
            score = published.entries[j].paper
            return f"{100 * score.mean:.1f}" if score else "-"
        if measure in record.content["router"]:
            return f"{100 * record.content['router'][measure]:.1f}"
        score = record.score(*measure.split(":"))
        return f"{100 * score.mean:.1f}" if score else "-"

    text = (ROOT / file).read_text()
    assert text.count(f"| {title} | CIFAR-10 Dir-0.3 |") == 1
    lines = text.partition(f"| {title} | CIFAR-10 Dir-0.3 |")[2].partition("\n\n")[0].splitlines()[2:]
    for line, (method, form) in zip(lines, BY_HAND[file, title], strict=True):
        shown = [part.strip(" *") for part in line.split("|")[2:-1]]
        for j, found in enumerate(shown):
            wanted = form
            for measure in re.findall(r"\{(.*?)\}", form):
                wanted = wanted.replace(f"{{{measure}}}", figure(measure, method, j))
            assert found == wanted, (line, SETTINGS[j])
