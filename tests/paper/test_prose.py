"""Tables that are written by hand show what the cells hold."""

from __future__ import annotations

import json
import math
import re
import statistics
from typing import Any

import pytest
import yaml
from scipy import stats

from feddrm.paper.cell_records import read_records
from feddrm.paper.grid import Grid
from feddrm.paper.paper_tables import tables

from .prose import ALA, AS, BABU, DRM, FT, PROX, ROOT, SETTINGS, prose, span

BY_HAND = {
    ("docs/paper.md", "a query of unknown origin, % right"): [
        (FT, "{global:before}"),
        (DRM, "{system}"),
        (DRM, "{system.exact_density}"),
        (DRM, "{system.stacked}"),
        (DRM, "{average}"),
    ],
    ("docs/paper.md", "a query of unknown origin, % right, by number of clients"): [
        (FT, "{global:before}"),
        (DRM, "{system}"),
        (DRM, "{system.exact_density}"),
        (DRM, "{system.stacked}"),
        (DRM, "{average}"),
    ],
    ("docs/router_measured.md", "same trained FedDRM model"): [
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
    ("docs/router_measured.md", "the same fit, other methods"): [
        (method, measure)
        for method in (FT, PROX, BABU, AS, ALA)
        for measure in ("{system.vote}", "{system.exact_density}", "{system.stacked}", "{average}")
    ],
}

COLUMNS = {  # of the tables whose columns are not the six settings
    "a query of unknown origin, % right, by number of clients": {
        "8": "cifar10-dir0.3-pool-m8",
        "16": "cifar10-dir0.3-pool-m16",
        "24": "cifar10-dir0.3-pool-m24",
    },
}


@pytest.mark.parametrize(("file", "title"), BY_HAND)
def test_a_table_shows_what_was_measured(file: str, title: str, paper: Grid) -> None:
    records = read_records(paper, ROOT / "results" / "paper")
    published = next(row for row in tables(paper, "main", records)[1].rows if row.label == "FedDRM")

    first, settings = "CIFAR-10 Dir-0.3", tuple(SETTINGS)
    if title in COLUMNS:
        first, settings = next(iter(COLUMNS[title])), tuple(COLUMNS[title].values())

    def figure(measure: str, method: str, j: int) -> str:
        record = records.get(f"{settings[j]}_{method}_seed2025")
        if record is None:
            return "-"
        if measure == "paper":
            score = published.entries[j].paper
            return f"{100 * score.mean:.1f}" if score else "-"
        if measure in (record.content["router"] or ()):
            return f"{100 * record.content['router'][measure]:.1f}"
        score = record.score(*measure.split(":"))
        return f"{100 * score.mean:.1f}" if score else "-"

    text = (ROOT / file).read_text()
    assert text.count(f"| {title} | {first} |") == 1
    lines = text.partition(f"| {title} | {first} |")[2].partition("\n\n")[0].splitlines()[2:]
    for line, (method, form) in zip(lines, BY_HAND[file, title], strict=True):
        shown = [part.strip(" *") for part in line.split("|")[2:-1]]
        for j, found in enumerate(shown):
            wanted = form
            for measure in re.findall(r"\{(.*?)\}", form):
                wanted = wanted.replace(f"{{{measure}}}", figure(measure, method, j))
            assert found == wanted, (line, settings[j])


def test_how_often_conformal_sets_held_the_client(paper: Grid) -> None:
    """Thresholds came from held-out training samples first, and from test samples since routers have label sets."""
    every = [r.content["router"] for r in read_records(paper, ROOT / "results" / "paper").values() if r.routed]
    routers, now = ([r for r in every if ("label_sets" in r) is new] for new in (False, True))
    sets = [router["conformal"] for router in routers if router.get("conformal")]

    def spans(sets: list[Any], key: str, scale: int, digits: int) -> str:
        levels = ("density_0.05", "density_0.1", "density_0.2")
        return " / ".join(span([scale * found[level][key] for found in sets], digits) for level in levels)

    text, covered, sizes = prose(), spans(sets, "covered", 100, 1), spans(sets, "size", 1, 2)
    said = f"{covered} % on CIFAR ({len(sets)} cells under results/paper; mean sizes of the sets {sizes}). "
    assert f"{said}{len(routers) - len(sets)} older cells have none" in text
    found = spans([router["conformal"] for router in now], "covered", 100, 1)
    assert f"in {len(now)} cells under results/paper, of {found} %" in text
    assert {router["rounds"] for router in routers if not router.get("converged")} == {60}
    ended = sorted(router["rounds"] for router in routers if router.get("converged"))
    assert f"{len(routers) - len(ended)} cells under results/paper were fitted with a bound of 60 rounds" in text
    low, pac = ended
    assert f"covariate shift came to it after {low} rounds, FedPAC's, without the bound, after {pac}," in text
    assert all(router["converged"] for router in now)
    since = span([router["rounds"] for router in now], 0)
    assert f"and the {len(now)} cells since 2026-11-18 after {since}." in text


def test_other_methods_are_as_far_from_feddrm_as_it_says(paper: Grid) -> None:
    records = read_records(paper, ROOT / "results" / "paper")

    def less_feddrm(measure: str, *methods: str) -> list[float]:
        return [
            100 * (theirs.mean - ours.mean)
            for method in methods
            for setting in SETTINGS
            if (record := records.get(f"{setting}_{method}_seed2025")) is not None
            and (theirs := record.score(measure)) is not None
            and (ours := records[f"{setting}_{DRM}_seed2025"].score(measure)) is not None
        ]

    asked = "system.exact_density"
    worse = {method: span([-d for d in less_feddrm(asked, method) if d < 0], 1) for method in (FT, PROX, BABU, AS)}
    better = {method: [d for d in less_feddrm(asked, method) if d > 0] for method in worse}
    assert [len(better[method]) for method in worse] == [3, 1, 0, 0]
    assert [len(less_feddrm(asked, method)) for method in worse] == [6, 6, 6, 6]
    text = prose()
    assert (
        f"FedAvg is up to {max(better[FT]):.1f} points better than FedDRM in three settings and {worse[FT]} worse in "
        f"the others; fine-tuned FedProx is {better[PROX][0]:.1f} better in one and {worse[PROX]} worse in the other "
        f"five, FedBABU {worse[BABU]}, FedAS {worse[AS]}."
    ) in text
    stacked = less_feddrm("system.stacked", FT, PROX, BABU, AS)
    assert f"the four lie between {max(stacked):.1f} above and {-min(stacked):.1f} below FedDRM" in text
    clients = [less_feddrm(f"client.exact_{rule}", FT, PROX, BABU, AS, ALA) for rule in ("density", "posterior")]
    assert max(abs(d) for found in clients for d in found) < 0.4
    gains = [
        100 * (right.mean - left.mean)
        for setting in SETTINGS
        if (left := records[f"{setting}_{ALA}_seed2025"].score(asked)) is not None
        and (right := records[f"{setting}_{ALA}_seed2025"].score("system.stacked")) is not None
    ]
    assert len(gains) == 6
    assert f"stacked bring {span(gains, 0)} points all the same" in text


@pytest.mark.parametrize("setting", ["cifar10-dir0.3", "cifar100-dir0.3"])
def test_the_second_seed_reads_as_it_says(setting: str, paper: Grid) -> None:
    record = read_records(paper, ROOT / "results" / "paper")[f"{setting}_{DRM}_seed2026"]
    found = [record.score(m) for m in ("system", "system.exact_density", "system.stacked", "average")]
    figures = [f"{100 * score.mean:.1f}" for score in found if score is not None]
    said = prose().partition("Another division of the data (seed 2026)")[2].partition(" What mattered")[0]
    place = said.partition("CIFAR-100")[2 if setting.startswith("cifar100") else 0]
    assert re.findall(r"\d\d\.\d", place) == figures


@pytest.mark.parametrize("name", ["vote_starts", "vote_starts_h200"])
def test_how_far_starts_move_a_vote(name: str) -> None:
    found = json.loads((ROOT / "results/bench" / f"{name}.json").read_text())
    last = [start["last_round"] for start in found["starts"]]
    row = (
        f"| {len(last)} | {span([100 * votes['tied'] for votes in last], 0)} % | "
        + " | ".join(span([100 * start[key] for start in found["starts"]], 1) for key in ("vote", "average"))
        + " |"
    )
    page = (ROOT / "docs/methods.md").read_text()
    line = next(line for line in page.splitlines() if f"bench/{name}.json" in line)
    assert line.endswith(row)
    assert f", {found['protocol']['rounds']} rounds" in line
    assert max(abs(votes["smallest"] - votes["cuda"]) for votes in last) < 0.0065


def test_the_note_on_the_vote_of_fedas_says_what_starts_showed(paper: Grid) -> None:
    cell = "cifar10-dir0.3_fedas_seed2025"
    record = read_records(paper, ROOT / "results" / "paper")[cell]
    starts = json.loads((ROOT / "results/bench/vote_starts_h200.json").read_text())["starts"]
    vote, average = record.score("system"), record.score("average")
    assert vote is not None
    assert average is not None
    votes = [100 * vote.mean, *(100 * start["vote"] for start in starts)]
    averages = [100 * average.mean, *(100 * start["average"] for start in starts)]
    rivals = next(row for row in tables(paper, "main", {cell: record})[0].rows if row.label == "FedAS")
    published = rivals.entries[0].paper
    assert published is not None
    spread = statistics.stdev(votes)
    errors = (statistics.mean(votes) - 100 * published.mean) / (spread * math.sqrt(1 + 1 / len(votes)))
    chance = 2 * stats.t.sf(errors, len(votes) - 1)
    note = yaml.safe_load((ROOT / "results/paper/notes.yaml").read_text())[cell]["system"]
    *first, final = [f"{found:.1f}" for found in votes]
    assert f"votes of {', '.join(first)} and {final} (standard deviation {spread:.1f})" in note
    assert (
        f"average accuracy of {span(averages, 1)}. Two single starts then differ by {math.sqrt(2) * spread:.1f} "
        in note
    )
    assert f"{errors:.1f} standard errors from our four (two-sided p = {chance:.2f})" in note


def test_the_page_counts_what_is_met() -> None:
    found = re.search(
        r"Of the paper's \d+ figures (\d+) can be compared: (\d+) lie within 1\.5 points",
        (ROOT / "docs/results.md").read_text(),
    )
    assert found is not None
    said = f"{found[2]} of the {found[1]} published figures that can be compared so far are met within 1.5 points"
    assert said in " ".join((ROOT / "docs/paper.md").read_text().split())


def test_what_filling_gaps_costs_the_colour_statistics() -> None:
    found = json.loads((ROOT / "results/bench/colour_gaps.json").read_text())["client_accuracy"]
    lines = (ROOT / "docs/router_measured.md").read_text().partition("| values moved by up to |")[2].splitlines()[2:]
    for line, row in zip(lines[: len(found)], found, strict=True):
        figures = [f"{100 * row[key]:.1f}" for key in ("fitted_as_they_are", "fitted_alike")]
        assert [part.strip() for part in line.split("|")[2:-1]] == figures
