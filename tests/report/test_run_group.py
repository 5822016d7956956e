"""Groups of runs: which belong together, their names and means, and runs found below a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import yaml

from feddrm.data import Federation, load
from feddrm.report.accuracy_measures import BEST, Measure
from feddrm.report.run_group import RunGroup, find_runs, group_runs
from feddrm.report.run_record import RunRecord
from refusal import refused

MakeRun = Callable[..., Path]
MakeSeeds = Callable[..., list[Path]]
AVERAGE = Measure("average")


def groups_of(folders: list[Path]) -> tuple[RunGroup, ...]:
    return group_runs([RunRecord.read(folder) for folder in folders])


def sizes(folders: list[Path]) -> list[int]:
    return [len(group.records) for group in groups_of(folders)]


def change(folder: Path, **settings: Any) -> Path:
    path = folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    data = settings.pop("data", {})
    path.write_text(yaml.safe_dump({**config, **settings, "data": {**config["data"], **data}}))
    return folder


def test_runs_that_differ_by_seed_alone_are_one_group(make_seeds: MakeSeeds) -> None:
    folders = make_seeds("a", [0.6, 0.7, 0.8])
    (group,) = groups_of(folders[::-1])
    assert (group.name, group.seeds, group.first.folder.name) == ("a", [0, 1, 2], "seed-0")
    means = [record.scores[AVERAGE].mean for record in group.records]
    score = group.scores[AVERAGE]
    assert (score.mean, score.std) == (fmean(means), stdev(means))


@pytest.mark.parametrize("settings", [{"threads": 4}, {"device": "cuda", "engine": "graph"}, {"data": {"seed": 1}}])
def test_circumstances_do_not_divide_a_group(make_seeds: MakeSeeds, settings: dict[str, Any]) -> None:
    folders = make_seeds("a", [0.6, 0.7])
    change(folders[1], **settings)
    assert sizes(folders) == [2]


@pytest.mark.parametrize("settings", [{"lr": 0.5}, {"data": {"alpha": 1.0}}, {"rounds": 7}, {"precision": "tf32"}])
def test_any_other_setting_divides_a_group(make_seeds: MakeSeeds, settings: dict[str, Any]) -> None:
    folders = make_seeds("a", [0.6, 0.7])
    change(folders[1], **settings)
    assert sizes(folders) == [1, 1]


def test_a_plugin_may_move_but_not_change(make_seeds: MakeSeeds) -> None:
    folders = make_seeds("a", [0.6, 0.7])
    for i, folder in enumerate(folders):
        change(folder, plugins=[{"path": f"/home/{i}/mine.py", "sha256": "aa"}])
    assert sizes(folders) == [2]
    change(folders[0], plugins=[{"path": "/home/0/mine.py", "sha256": "bb"}])
    assert sizes(folders) == [1, 1]


def test_runs_of_one_seed_are_no_group(make_run: MakeRun) -> None:
    """A copy, or the same seed on another machine, is no further seed."""
    assert sizes([make_run("a"), make_run("b")]) == [1, 1]
    assert sizes([make_run("c"), make_run("d"), make_run("e", seed=1)]) == [1, 1, 1]


def test_other_data_under_the_same_settings_are_no_group(make_run: MakeRun) -> None:
    """Arrays that were given in Python have the same settings whatever they hold."""
    rng = np.random.default_rng(0)

    def arrays() -> Federation:
        names = ("oslo", "lima")
        return Federation.from_arrays({n: (rng.normal(size=(40, 3)), np.arange(40) % 2) for n in names})

    assert sizes([make_run(f"a{i}", federation=arrays(), seed=i) for i in range(2)]) == [1, 1]


def test_divisions_by_seed_are_one_group_and_paired_by_their_data(make_run: MakeRun) -> None:
    folders = []
    for i in range(3):
        digits = load("digits", clients=3, seed=i)
        for method, skill in (("feddrm", 0.8), ("fedavg", 0.7)):
            folder = make_run(f"{method}/seed-{i}", federation=digits, method=method, skill=skill + i / 50, seed=i)
            folders.append(change(folder, data={"seed": i}))
    one, other = groups_of(folders)
    assert (one.name, other.name) == ("feddrm", "fedavg")
    difference = one.less(other, AVERAGE)
    assert difference is not None
    assert difference.seeds == 3
    swapped = RunGroup("swapped", tuple(r for r in other.records if r.seed != 1))
    assert one.less(swapped, AVERAGE).seeds == 2  # type: ignore[union-attr]


def test_unfinished_runs_stay_alone(make_seeds: MakeSeeds, make_run: MakeRun) -> None:
    folders = [*make_seeds("a", [0.6, 0.7]), make_run("a/seed-2", seed=2, finished=False)]
    groups = groups_of(folders)
    assert [(group.name, len(group.records), group.finished) for group in groups] == [
        ("seed-0 and 1 more", 2, True),
        ("seed-2", 1, False),
    ]


def test_the_best_answer_is_one_for_all_seeds(make_seeds: MakeSeeds) -> None:
    """The best on each seed would favour methods with many answers even more."""
    (group,) = groups_of(make_seeds("a", [0.6, 0.7]))
    assert group.best_answer == Measure("system", "head_posterior")
    assert group.scores[BEST] == group.scores[Measure("system", "head_posterior")]


def test_curves_are_means_over_seeds_of_common_rounds(make_seeds: MakeSeeds) -> None:
    folders = make_seeds("a", [0.6, 0.8])
    lines = (folders[1] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folders[1] / "metrics.jsonl").write_text("".join(lines[1:]))
    (group,) = groups_of(folders)
    rounds, means, spreads = group.curve(AVERAGE)
    assert rounds == list(range(10, 61, 5))
    last = [record.points[-1].scores[AVERAGE].mean for record in group.records]
    assert (means[-1], spreads[-1]) == (fmean(last), stdev(last))


def test_what_was_sent_is_a_mean_over_seeds_that_all_say_it(make_run: MakeRun) -> None:
    runs = [make_run(f"a/seed-{i}", seed=i, each=1000 * (i + 1)) for i in range(2)]
    (group,) = groups_of(runs)
    assert group.sent == (3000.0, 60 * 2 * 3000)
    assert group.sent_until([5, 60]) == [30_000, 360_000]
    (mixed,) = groups_of([*runs, make_run("a/seed-2", seed=2)])
    assert mixed.sent is None
    assert mixed.sent_until([5]) is None


def test_names_come_from_the_folder_that_holds_one_group(make_seeds: MakeSeeds, make_run: MakeRun) -> None:
    nested = make_seeds("x/same", [0.6, 0.7]) + make_seeds("y/same", [0.6, 0.7], method="fedavg")
    assert [group.name for group in groups_of(nested)] == ["x/same", "y/same"]
    flat = [make_run(f"f/{m}-{i}", method=m, seed=i) for m in ("feddrm", "fedavg") for i in range(3)]
    assert [group.name for group in groups_of(flat)] == ["feddrm-0 and 2 more", "fedavg-0 and 2 more"]


def test_runs_are_found_below_a_folder(make_seeds: MakeSeeds, make_run: MakeRun, tmp_path: Path) -> None:
    folders = [*make_seeds("runs/deep/a", [0.6, 0.7]), make_run("runs/b", method="fedavg")]
    begun = tmp_path / "runs" / "begun"
    begun.mkdir()
    (begun / "config.yaml").write_text("seed: 0\n")  # nothing to report yet
    (begun / "metrics.jsonl").touch()
    assert sorted(find_runs([tmp_path / "runs"])) == sorted(folders)
    assert find_runs([folders[0], tmp_path / "runs" / "deep"]) == folders[:2]


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    with refused(f"'{tmp_path}' is not a run (no config.yaml) and holds none with figures"):
        find_runs([tmp_path])
    with refused("there is no run to report"):
        find_runs([])
    with refused("there is no folder"):
        groups_of(find_runs([tmp_path / "none"]))


def edit_summary(folder: Path, kind: str, **rules: Any) -> None:
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    summary[kind] |= rules
    path.write_text(json.dumps(summary))


def test_a_fitted_router_is_compared_with_the_last_round_of_others(make_seeds: MakeSeeds) -> None:
    """It is measured after the last round alone; a mean over the last rounds lags behind that."""
    ours, theirs = make_seeds("a", [0.60, 0.61]), make_seeds("b", [0.70, 0.73], method="fedavg")
    for folder, mean in zip(ours, (0.80, 0.82), strict=True):
        edit_summary(folder, "system_accuracy", stacked={"mean": mean, "std": None})
    lagging = {"mean": 0.3, "std": 0.1}
    for folder in theirs:
        for kind in ("average_accuracy", "global_accuracy"):
            edit_summary(folder, kind, **lagging)
        heads = {rule: {"mean": 0.2, "std": 0.1} for rule in ("vote", "head_density", "head_posterior")}
        edit_summary(folder, "system_accuracy", **heads, **{"global": lagging})
    one, other = groups_of([*ours, *theirs])
    shared = Measure("global")
    assert (one.best_answer, other.best_answer) == (Measure("system", "stacked"), shared)
    last = fmean(record.points[-1].scores[shared].mean for record in other.records)
    best, average = one.less(other, BEST), one.less(other, AVERAGE)
    assert best is not None
    assert average is not None
    assert best.mean == pytest.approx(0.81 - last)
    assert average.mean == pytest.approx(one.scores[AVERAGE].mean - 0.3)  # both are means over the window


def test_runs_that_average_other_numbers_of_rounds_are_compared_after_the_last(make_seeds: MakeSeeds) -> None:
    """Clients that tune in the last round have a window of one."""
    ours, theirs = make_seeds("a", [0.60, 0.61]), make_seeds("b", [0.70, 0.73], method="fedavg")
    for folder in ours:
        edit_summary(folder, "average_accuracy", mean=0.1)
    for folder in theirs:
        edit_summary(folder, "average_accuracy", std=None)
    one, other = groups_of([*ours, *theirs])
    difference = one.less(other, AVERAGE)
    assert difference is not None
    ends = [fmean(record.points[-1].scores[AVERAGE].mean for record in group.records) for group in (one, other)]
    assert difference.mean == pytest.approx(ends[0] - ends[1])
