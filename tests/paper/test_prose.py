"""Tables that are written by hand show what the cells hold."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from scipy import stats

from feddrm.paper.cell_records import CellRecord, read_records
from feddrm.paper.cell_search import with_choices
from feddrm.paper.grid import Grid
from feddrm.paper.paper_tables import signed, tables

ROOT = Path(__file__).parents[2]
SETTINGS = ("cifar10-dir0.3", "cifar10-spc5", "cifar20-dir0.3", "cifar20-spc25", "cifar100-dir0.3", "cifar100-spc25")
TITLES = (
    "CIFAR-10 Dir-0.3",
    "CIFAR-10 5-SPC",
    "CIFAR-20 Dir-0.3",
    "CIFAR-20 25-SPC",
    "CIFAR-100 Dir-0.3",
    "CIFAR-100 25-SPC",
)
DRM, FT, PROX = "feddrm-lam0.9", "fedavgft-tune100", "fedproxft-tune100"
BABU, AS, ALA = "fedbabu-tune200", "fedas", "fedala-fixed"
BY_HAND = {
    ("docs/paper.md", "a query of unknown origin, % right"): [
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
        for method in (FT, PROX, BABU, AS, ALA)
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
        if measure in (record.content["router"] or ()):
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


def prose() -> str:
    return " ".join((ROOT / "docs/router.md").read_text().split())


def span(values: list[float], digits: int) -> str:
    ends = sorted({f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"}, key=float)
    return " to ".join(ends)


def test_how_often_conformal_sets_held_the_client(paper: Grid) -> None:
    routers = [r.content["router"] for r in read_records(paper, ROOT / "results" / "paper").values() if r.routed]
    sets = [router["conformal"] for router in routers if router.get("conformal")]

    def spans(key: str, scale: int, digits: int) -> str:
        levels = ("density_0.05", "density_0.1", "density_0.2")
        return " / ".join(span([scale * found[level][key] for found in sets], digits) for level in levels)

    said = f"{spans('covered', 100, 1)} % on CIFAR ({len(sets)} cells under results/paper; mean sizes of the sets "
    assert f"{said}{spans('size', 1, 2)}). {len(routers) - len(sets)} older cells have none" in prose()
    assert {router["rounds"] for router in routers if not router.get("converged")} == {60}
    ended = sorted(router["rounds"] for router in routers if router.get("converged"))
    text = prose()
    assert f"{len(routers) - len(ended)} cells under results/paper were fitted with a bound of 60 rounds" in text
    low, pac = ended
    assert f"covariate shift after {low} rounds, and FedPAC's, without the bound, after {pac}." in text


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
    lines = (ROOT / "docs/router.md").read_text().partition("| values moved by up to |")[2].splitlines()[2:]
    for line, row in zip(lines[: len(found)], found, strict=True):
        figures = [f"{100 * row[key]:.1f}" for key in ("fitted_as_they_are", "fitted_alike")]
        assert [part.strip() for part in line.split("|")[2:-1]] == figures


def test_what_a_tuned_rate_is_worth_reads_as_measured() -> None:
    results = ROOT / "results" / "tuned"
    records = read_records(with_choices(Grid.read("tuned"), results), results)

    def percent(cell: str, *keys: str) -> str:
        value = records[f"{cell}_seed2025"].content
        for key in keys:
            value = value[key]
        return f"{100 * value['mean']:.1f} %"

    stack = ("system_accuracy", "stacked")
    drm = percent("cifar10-dir0.3_feddrm-lam0.9", *stack)
    views = json.loads((ROOT / "results" / "bench" / "tuned_views_h200.json").read_text())
    page = " ".join((ROOT / "docs/paper.md").read_text().split())
    stacks = [percent(f"{setting}_feddrm-lam0.9", *stack).removesuffix(" %") for setting in SETTINGS]
    assert f"FedDRM's stack answers {', '.join(stacks[:-1])} and {stacks[-1]} % of queries of unknown origin" in page
    published = json.loads((ROOT / "src" / "feddrm" / "paper" / "published.json").read_text())
    theirs = [f"{mean:.1f}" for mean, _ in published["average"]["rows"]["feddrm"]]
    assert f"clients answer {', '.join(theirs[:-1])} and {theirs[-1]} % of their own" in page
    assert all(float(ours) > float(paper) for ours, paper in zip(stacks, theirs, strict=True))
    assert f"raise the {stacks[0]} to {views['4 views']['stacked']:.1f} %" in page
    recipes = " ".join((ROOT / "docs" / "recipes.md").read_text().split())
    searches = [json.loads(file.read_text()) for file in (results / "search").glob("*.json")]
    by_rate = {rate: [search for search in searches if search["chosen"]["lr"] == rate] for rate in (0.3, 1.0)}
    assert f"It chose 0.3 in {len(by_rate[0.3])} searches of {len(searches)}" in recipes
    often = {rate: Counter(search["method"] for search in chosen) for rate, chosen in by_rate.items()}
    assert often[0.3] >= Counter({"fedavgft": 6, DRM: 5, "fedas": 3, ALA: 1})
    assert not {"fedavg", "fedbabu", "ditto", "fedproxft", "fedsamft"} & set(often[1.0])
    assert not {"fedpac", "fedrep", "confree"} & set(often[0.3])
    assert (often[1.0]["fedas"], often[1.0][ALA], often[1.0][DRM]) == (3, 1, 1)
    lead = {
        (search["setting"], search["method"]): 100 * (scores["lr=1"] - scores["lr=0.3"])
        for search in by_rate[1.0]
        if (scores := {rate: trial["scores"]["160"]["average"] for rate, trial in search["trials"].items()})
    }
    said = f"In the other {len(lead)} it chose 1.0, by {span(list(lead.values()), 2)} points over 0.3"
    assert said in recipes
    assert f"FedDRM in one, by {lead['cifar10-dir0.3', DRM]:.2f}. So the recipe" in recipes
    average = percent("cifar10-dir0.3_feddrm-lam0.9", "average_accuracy")
    assert f"FedDRM answers {average} of the clients' own test samples" in recipes
    assert f"and {drm} of queries of unknown origin by the stack" in recipes


def test_what_is_left_of_feddrms_lead_once_fedavg_is_tuned_too(paper: Grid) -> None:
    results = ROOT / "results" / "tuned"
    records = read_records(with_choices(Grid.read("tuned"), results), results)
    page = " ".join((ROOT / "docs/paper.md").read_text().split())

    untuned = read_records(paper, ROOT / "results" / "paper")

    def score(cell: str, measure: str, rule: str | None = None, among: Mapping[str, CellRecord] = records) -> float:
        found = among[f"{cell}_seed2025"].score(measure, rule)
        assert found is not None
        return 100 * found.mean

    ahead = {}
    for title, measure in (
        ("*every client on its own queries*", "average"),
        ("published rules", "system"),
        ("exact router, one client asked", "system.exact_density"),
        ("exact router, stacked heads", "system.stacked"),
    ):
        less = [score(f"{s}_{DRM}", measure) - score(f"{s}_fedavgft", measure) for s in SETTINGS]
        assert f"| {title} | {' | '.join(map(signed, less))} |" in page
        ahead[measure] = [points for points in less if points > 0]
    counts = [(len(points), sum(p > 1 for p in points)) for points in ahead.values()]
    assert counts == [(3, 1), (2, 1), (1, 1), (5, 2)]
    assert "own queries in three settings of six, by more than a point in one." in page
    assert "FedDRM is ahead in two settings, by more than a point in one; with the exact router" in page
    stacked = span(ahead["system.stacked"], 1)
    assert f"in five settings, by {stacked} points; by more than a point in two." in page

    ft, drm = (
        [score(f"{s}_{tuned}", "average") - score(f"{s}_{at_first}", "average", among=untuned) for s in SETTINGS]
        for tuned, at_first in (("fedavgft", FT), (DRM, DRM))
    )
    assert sum(a > b for a, b in zip(ft, drm, strict=True)) == 5
    assert "gain more from their rate, in five settings of six" in page
    one_model = [score(f"{s}_fedavgft", "global", "before") > score(f"{s}_{DRM}", "system") for s in SETTINGS]
    assert sum(one_model) == 4
    assert "FedDRM's published router in four settings of six" in page

    drm, prox, ft_ = (f"cifar10-dir0.3_{method}" for method in (DRM, "fedproxft", "fedavgft"))
    model, router = score("cifar10-dir0.3_fedavg", "global"), score(drm, "system")
    assert model > router
    assert f"global model answers {model:.1f} % on CIFAR-10 Dir-0.3, FedDRM's published router {router:.1f} %" in page
    second = [(score(prox, measure), score(drm, measure)) for measure in ("average", "system.exact_density")]
    assert all(score(ft_, measure) < score(prox, measure) for measure in ("average", "system.exact_density"))
    (own, drm_own), (asked, drm_asked) = second
    assert (
        f"on average, {own:.1f} to {drm_own:.1f} %, and with one client asked, {asked:.1f} to {drm_asked:.1f} %."
        in page
    )
    stacks = [f"{score(cell, 'system.stacked'):.1f} %" for cell in (prox, ft_, drm)]
    assert f"Its stack has {stacks[0]}, fine-tuned FedAvg's {stacks[1]}, FedDRM's {stacks[2]}." in page

    others = ("fedsamft", "fedpac", "fedas", "fedbabu", "fedrep", "confree", "ditto")
    for measure, form in (
        ("average", "have {}, {}, {}, {}, {}, {} and {} % on average"),
        ("system.stacked", "stacks of {}, {}, {}, {}, {}, {} and {} %."),
    ):
        figures = [score(f"cifar10-dir0.3_{method}", measure) for method in others]
        assert form.format(*(f"{figure:.1f}" for figure in figures)) in page
    assert max(score(f"cifar10-dir0.3_{method}", "average") for method in others) < own
    everybody = (*others, "fedala-fixed", "fedavg", "fedavgft", "fedproxft")
    for measure in ("average", "system.exact_density", "system.stacked"):
        assert max(score(f"cifar10-dir0.3_{method}", measure) for method in everybody) < score(drm, measure)
    assert "FedDRM is ahead of all others on average, with one client asked and by the stack." in page
    curve = records["cifar10-dir0.3_fedala-fixed_seed2025"].content["curve"]
    best = max(curve["average"])
    assert (
        f"FedALA has {score('cifar10-dir0.3_fedala-fixed', 'average'):.1f} %: at the rate that short trials chose it "
        f"reached {100 * best:.1f} % after {curve['round'][curve['average'].index(best)]} rounds and fell to "
        f"{100 * curve['average'][-1]:.1f} % at the end" in page
    )

    for measure, said in (
        ("average", "FedDRM is ahead of it on average in four settings of six, by {} points, and behind in two, by {}"),
        ("system.stacked", "by the stack it is ahead in the same four, by {} points, and behind in two, by {}"),
    ):
        less = [score(f"{s}_{DRM}", measure) - score(f"{s}_fedas", measure) for s in SETTINGS]
        assert [points > 0 for points in less] == [True, False, True, True, True, False]
        assert said.format(span([p for p in less if p > 0], 1), span([-p for p in less if p < 0], 1)) in page

    there = {cell.split("_")[1]: record for cell, record in records.items() if cell.startswith("cifar100-spc25_")}
    averages, by_stack = (
        sorted(((score(f"cifar100-spc25_{method}", measure), method) for method in there), reverse=True)
        for measure in ("average", "system.stacked")
    )
    ranked = ["fedavgft", "fedas", DRM, "fedpac", "fedbabu", "confree", "fedrep", "ditto", "fedavg", "fedala-fixed"]
    assert [method for _, method in averages] == ranked
    figures = [f"{figure:.1f}" for figure, _ in averages]
    assert f"fine-tuned FedAvg and FedAS: {figures[0]}, {figures[1]} and {figures[2]} %" in page
    assert f"FedAvg and FedALA have {', '.join(figures[3:-1])} and {figures[-1]} %" in page
    assert [method for _, method in by_stack[:4]] == ["fedas", DRM, "fedavg", "fedavgft"]
    said = "FedAS has {:.1f}, FedDRM {:.1f}, FedAvg {:.1f} and fine-tuned FedAvg {:.1f} %"
    assert said.format(*(figure for figure, _ in by_stack[:4])) in page
    curve = there["fedala-fixed"].content["curve"]
    best = max(curve["average"])
    rounds, last = curve["round"][curve["average"].index(best)], curve["average"][-1]
    assert f"FedALA reached {100 * best:.1f} % after {rounds} rounds and fell to {100 * last:.1f} %" in page
    twice = json.loads((ROOT / "results/bench/tuned_twice_h200.json").read_text())["trainings"]
    assert f"{twice[1]['average']:.2f}" == f"{score('cifar100-spc25_fedavgft', 'average'):.2f}"
    shown = [f"{twice[0][key]:.1f} and {twice[1][key]:.1f} %" for key in ("average", "vote")]
    assert f"{shown[0]} on average, {shown[1]} by vote" in page


def test_how_often_label_sets_held_the_label_in_tuned_cells() -> None:
    results = ROOT / "results" / "tuned"
    records = read_records(with_choices(Grid.read("tuned"), results), results)
    text, cells = prose(), 0
    for setting, title in zip(SETTINGS, TITLES, strict=True):
        routed = [
            record.content["router"] for cell, record in records.items() if record.routed and f"{setting}_" in cell
        ]
        found = [router["label_sets"]["trained"] for router in routed if router.get("label_sets")]
        sets = {miss: [each[miss] for each in found] for miss in ("0.05", "0.1", "0.2")}
        covered = {miss: span([100 * one["covered"] for one in each], 1) for miss, each in sets.items()}
        sizes = {miss: span([one["size"] for one in each], 2) for miss, each in sets.items()}
        figures = " | ".join(f"{covered[miss]} / {sizes[miss]}" for miss in sets)
        asked = span([one["asked"] for one in sets["0.05"]], 2)
        assert f"| {title}, tuned ({len(found)} cells) | {figures} | {asked} |" in text
        cells += len(found)
    assert cells == sum("label_sets" in (r.content["router"] or ()) for r in records.values())
    short: dict[bool, list[float]] = {True: [], False: []}  # by whether clients answer nearly alike
    for cell, record in records.items():
        if cell.startswith("cifar100-spc25"):
            found = record.content["router"]["label_sets"]["trained"]
            short["fedala" in cell or "fedavg_" in cell] += [
                100 * (1 - float(miss) - found[miss]["covered"]) for miss in sets
            ]
    assert f"cover what was asked for to {max(map(abs, short[True])):.1f} points" in text
    assert f"those of the other eight methods cover {span(short[False], 1)} points too little" in text
    assert [len(found) for found in short.values()] == [2 * 3, 8 * 3]


def test_how_often_sets_of_clients_held_the_client_in_tuned_cells() -> None:
    """Thresholds came from held-out training samples in the cells of FedDRM's first seed, from test samples since."""
    results = ROOT / "results" / "tuned"
    records = read_records(with_choices(Grid.read("tuned"), results), results)
    before = [f"{setting}_{DRM}_seed2025" for setting in SETTINGS]
    first = (*before, "cifar10-dir0.3_fedavgft_seed2025")
    now = [cell for cell, record in records.items() if record.routed and cell not in first]
    assert f"in the {len(now)} tuned cells that were fitted with such thresholds" in prose()

    def covered(cells: list[str]) -> str:
        sets = [records[cell].content["router"]["conformal"] for cell in cells]
        levels = ("density_0.05", "density_0.1", "density_0.2")
        return " / ".join(span([100 * found[level]["covered"] for found in sets], 1) for level in levels)

    assert f"held the client of {covered(before)} % of the" in prose()
    assert f"they hold the client of {covered(now)} % of the test samples" in prose()
