"""What is written by hand about the tuned grid is what its cells hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from feddrm.paper.cell_records import CellRecord, read_records
from feddrm.paper.cell_search import with_choices
from feddrm.paper.grid import Grid
from feddrm.paper.paper_tables import signed
from feddrm.search.halving import plan_halving
from feddrm.search.tune import GRAPH_START

from .prose import ALA, DRM, FT, ROOT, SETTINGS, TITLES, prose, span


def falls(curve: Mapping[str, Any]) -> tuple[str, str]:
    """The highest average accuracy with its round, and the last one."""
    best = max(curve["average"])
    peak = f"{100 * best:.1f} % after {curve['round'][curve['average'].index(best)]} rounds"
    return peak, f"{100 * curve['average'][-1]:.1f} %"


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
    alone = []
    for search in searches:
        seconds = records[f"{search['setting']}_{search['method']}_seed2025"].content["seconds"]
        if not seconds.get("beside"):
            alone.append(search["seconds"] / ((seconds["wall"] or seconds["total"]) + seconds["router"]))
    assert (
        f"took {span(alone, 2)} times a run with its router, in the {len(alone)} searches that had the GPU" in recipes
    )
    took = json.loads((ROOT / "results/bench/search_cost_h200.json").read_text())["seconds"]
    both, alone = took["search"] / (took["run"] + took["router"]), took["search"] / took["run"]
    said = "a search of {search:.0f} s stood beside a run of {run:.0f} s and a router of {router:.0f} s".format(**took)
    assert f"{said}: {both:.2f} times both, {alone:.2f} times the run alone" in recipes
    assert f"A start takes {took['start_of_a_trial']:.1f} s there, as long as {GRAPH_START} rounds or more" in recipes
    assert took["start_of_a_trial"] >= GRAPH_START * took["round"]
    trials = plan_halving(5, 800, 800, 5, start=GRAPH_START).rounds
    assert f"counts as {GRAPH_START} rounds: five trials have {trials} rounds instead of 160" in recipes
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
    assert f"on average, with {own:.1f} % (FedDRM {drm_own:.1f} %), and with one client asked" in page
    assert f"with one client asked, with {asked:.1f} % (FedDRM {drm_asked:.1f} %)." in page

    others = ("fedsamft", "fedpac", "fedas", "fedbabu", "fedrep", "confree", "ditto")
    assert max(score(f"cifar10-dir0.3_{method}", "average") for method in others) < own
    everybody = (*others, "fedala-fixed", "fedavg", "fedavgft", "fedproxft")
    for measure in ("average", "system.exact_density", "system.stacked"):
        assert max(score(f"cifar10-dir0.3_{method}", measure) for method in everybody) < score(drm, measure)
    assert "FedDRM is ahead of all others on average, with one client asked and by the stack." in page
    by_stack = {method: score(f"cifar10-dir0.3_{method}", "system.stacked") for method in everybody}
    assert max(by_stack, key=by_stack.__getitem__) == "fedas"
    stacks = f"with {by_stack['fedas']:.1f} % (FedDRM {score(drm, 'system.stacked'):.1f} %)"
    assert f"By the stack FedAS comes second, {stacks}." in page
    curve = records["cifar10-dir0.3_fedala-fixed_seed2025"].content["curve"]
    assert f"on CIFAR-10 from {falls(curve)[0]} to {falls(curve)[1]} at the end" in page

    for measure, said in (
        ("average", "FedDRM is ahead of it on average in four settings of six, by {} points, and behind in two, by {}"),
        ("system.stacked", "by the stack it is ahead in the same four, by {} points, and behind in two, by {}"),
    ):
        less = [score(f"{s}_{DRM}", measure) - score(f"{s}_fedas", measure) for s in SETTINGS]
        assert [points > 0 for points in less] == [True, False, True, True, True, False]
        assert said.format(span([p for p in less if p > 0], 1), span([-p for p in less if p < 0], 1)) in page

    there = {cell.split("_")[1]: record for cell, record in records.items() if cell.startswith("cifar100-spc25_")}
    averages, ranks_by_stack = (
        sorted(((score(f"cifar100-spc25_{method}", measure), method) for method in there), reverse=True)
        for measure in ("average", "system.stacked")
    )
    tuned_first = ["fedsamft", "fedavgft", "fedproxft", "fedas"]
    ranked = [*tuned_first, DRM, "fedpac", "fedbabu", "confree", "fedrep", "ditto", "fedavg", "fedala-fixed"]
    assert [method for _, method in averages] == ranked
    figures = [f"{figure:.1f}" for figure, _ in averages]
    ahead = f"{', '.join(figures[:4])} and {figures[4]} %"
    assert f"fifth of twelve on average, behind fine-tuned FedSAM, FedAvg and FedProx and behind FedAS: {ahead}" in page
    assert [method for _, method in ranks_by_stack[:3]] == ["fedas", "fedsamft", DRM]
    said = "By the stack it is third, with {2:.1f} %, behind FedAS ({0:.1f} %) and fine-tuned FedSAM ({1:.1f} %)."
    assert said.format(*(figure for figure, _ in ranks_by_stack[:3])) in page
    curve = there["fedala-fixed"].content["curve"]
    assert f"on CIFAR-100 from {falls(curve)[0]} to {falls(curve)[1]}." in page
    assert min(everybody, key=lambda method: score(f"cifar10-dir0.3_{method}", "average")) == "fedala-fixed"
    twice = json.loads((ROOT / "results/bench/tuned_twice_h200.json").read_text())["trainings"]
    assert f"{twice[1]['average']:.2f}" == f"{score('cifar100-spc25_fedavgft', 'average'):.2f}"
    shown = [f"{twice[0][key]:.1f} and {twice[1][key]:.1f} %" for key in ("average", "vote")]
    assert f"{shown[0]} on average, {shown[1]} by vote" in page


def test_fedas_was_tuned_everywhere_because_it_is_the_best_other_method_on_held_out_samples() -> None:
    page = " ".join((ROOT / "docs/paper.md").read_text().split())
    assert "FedAS** is the best of the other methods on held-out samples in both, so it was tuned everywhere" in page
    for setting in ("cifar10-dir0.3", "cifar100-spc25"):
        best = {}
        for path in (ROOT / "results" / "tuned" / "search").glob(f"{setting}_*.json"):
            search = json.loads(path.read_text())
            rungs = [rung["average"] for trial in search["trials"].values() for rung in trial["scores"].values()]
            best[search["method"]] = max(rungs)
        assert len(best) == 12
        assert sorted(best, key=lambda method: -best[method])[:2] == [DRM, "fedas"]


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
    assert f"those of the other ten methods cover {span(short[False], 1)} points too little" in text
    assert [len(found) for found in short.values()] == [2 * 3, 10 * 3]


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
