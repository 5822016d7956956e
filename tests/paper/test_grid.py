"""Every cell of the grid against the paper's protocol, written out here a second time."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from feddrm.data.partition import partition
from feddrm.data.shift import ColourShift, colour_shifts
from feddrm.methods import Stage
from feddrm.paper.grid import GRIDS, Grid
from feddrm.paper.paper_tables import published, table_names, tables
from feddrm.runs import Evaluation
from refusal import refused

MAIN = ("cifar10-dir0.3", "cifar10-spc5", "cifar20-dir0.3", "cifar20-spc25", "cifar100-dir0.3", "cifar100-spc25")
ELEVEN = {
    "ditto", "fedrep", "fedbabu", "fedpac", "fedala", "fedas", "confree", "fedavgft", "fedproxft", "fedsamft", "feddrm",
}  # fmt: skip
CLASSES = {"cifar10": 10, "cifar20": 20, "cifar100": 100, "retina": 2}
SPC = [5250] * 8
HUNDRED = [5296, 5251, 5405, 5292, 5393, 5278, 4792, 5290]
TEN = [5572, 5566, 8110, 2056, 5504, 7197, 3581, 4410]
SIXTEEN = [978, 3750, 2664, 1819, 2755, 2697, 2461, 2921, 1899, 2775, 2685, 2986, 3776, 2647, 2419, 2760]
TWENTY_FOUR = [
    2169, 1346, 951, 2282, 1954, 693, 1576, 202, 2183, 2046, 1108, 1734,
    1624, 2471, 2207, 1790, 2153, 912, 2520, 1812, 2890, 1384, 2431, 1553,
]  # fmt: skip
THIRTY_TWO = [
    1456, 1494, 833, 1024, 1527, 1032, 1373, 1225, 1040, 1279, 1939, 1911, 1477, 1332, 1836, 1435,
    807, 1819, 1485, 2420, 1080, 443, 1188, 1343, 472, 1374, 1383, 1692, 817, 1011, 1467, 970,
]  # fmt: skip
SIZES = {  # training samples per client with seed 2025
    "cifar10-dir0.3": TEN,
    "cifar10-spc5": SPC,
    "cifar20-dir0.3": HUNDRED,
    "cifar20-spc25": SPC,
    "cifar100-dir0.3": HUNDRED,
    "cifar100-spc25": SPC,
    "cifar10-dir1.3": [6564, 6252, 4750, 5136, 4821, 4384, 4120, 5968],
    "cifar10-dir2.3": [5103, 5338, 6295, 3861, 5719, 5407, 5663, 4610],
    "cifar10-dir0.3-low": TEN,
    "cifar10-dir0.3-mid": TEN,
    "cifar10-dir0.3-pool-m8": TEN,
    "cifar10-dir0.3-pool-m16": SIXTEEN,
    "cifar10-dir0.3-pool-m24": TWENTY_FOUR,
    "cifar10-dir0.3-pool-m32": THIRTY_TWO,
    **{f"cifar10-dir0.3-lenet-{how}": TEN for how in ("none", "shallow", "mid", "deep")},
}


def test_how_many_cells_every_step_has(paper: Grid) -> None:
    assert Counter(cell.step for cell in paper.cells) == {
        "feddrm": 6, "baselines": 24, "more-baselines": 36, "lambda": 5, "covariate": 2, "sharing": 4, "alpha": 22,
        "clients": 12, "seeds": 24, "retina": 11, "fedavg": 6, "fedala-learned": 6,
    }  # fmt: skip


@pytest.mark.parametrize("name", GRIDS)
def test_a_bundled_grid_leaves_no_setting_to_a_default(name: str) -> None:
    """So its results are compared with the protocol without the classes, which would load torch."""
    grid = Grid.read(name)
    grid = replace(grid, chosen={grid.cells[0].pair: {"lr": 0.3}})
    for cell in grid.cells:
        spelled_out, resolved = (json.dumps(p, sort_keys=True) for p in (cell.protocol(), cell.resolved_protocol()))
        assert spelled_out == resolved, cell.id
        assert cell.rounds == cell.plan.rounds


def test_a_grid_of_ones_own_may_leave_settings_out(paper: Grid) -> None:
    content = json.loads(json.dumps(paper.content)) | {"name": "mine"}
    del content["settings"][MAIN[0]]["model"]["branch"]
    cell = next(cell for cell in Grid(content).cells if cell.setting == MAIN[0])
    assert cell.protocol()["model"] == {"name": "resnet18", "branch": 256}


def test_every_cell_follows_the_protocol(paper: Grid) -> None:
    for cell in paper.cells:
        for settings in (cell.dataset, cell.plan, cell.evaluation):
            settings.check()
        cell.learner.check(cell.plan.rounds)
        retina = cell.setting == "retina"
        plan, rounds = cell.plan, 100 if retina else 800
        assert (plan.rounds, plan.local_steps, plan.batch_size) == (rounds, 10, 32 if retina else 128), cell.id
        assert (plan.lr, plan.momentum, plan.weight_decay) == (0.01, 0.9, 5e-4)
        assert (plan.participation, plan.dropout, plan.seed) == (1.0, 0.0, cell.seed)
        assert cell.dataset.seed == cell.seed
        assert cell.evaluation.window == (10 if retina else 50)
        assert cell.evaluation.test_crop
        name = cell.learner.name
        tuned = {"fedavgft": 100, "fedproxft": 100, "fedsamft": 100, "fedbabu": 200}.get(name, 0)
        tuned = min(tuned, 10) if retina else tuned
        assert cell.learner.tuning_rounds(rounds) == tuned, cell.id
        wanted = {(750, 100): (651, 700), (750, 200): (551, 600), (90, 10): (81, 90)}.get((rounds - cell.window, tuned))
        assert cell.before == wanted, cell.id
        clients = 3 if retina else cell.dataset.clients  # type: ignore[attr-defined]
        shape = (3, 96, 96) if retina else (3, 32, 32)
        cell.model.check(shape, CLASSES[cell.dataset.name], clients)
        assert sum(p.steps for p in cell.learner.phases(Stage(10))) == (5 if cell.method == "fedala-fixed" else 10)


def test_the_window_before_tuning_is_evaluated_and_no_more(paper: Grid) -> None:
    cell = paper.by_id["cifar10-dir0.3_fedavgft-tune100_seed2025"]
    asked = [r for r in range(1, 801) if cell.evaluation.due(r, 800)]
    assert asked == sorted({*range(40, 801, 40), *range(651, 701), *range(751, 801)})


@pytest.mark.parametrize("setting", SIZES)
def test_divisions_and_networks(setting: str, paper: Grid) -> None:
    cell = next(c for c in paper.cells if c.setting == setting)
    data = cell.dataset
    fine = 10 if data.name == "cifar10" else 100
    labels = np.repeat(np.arange(fine), 60_000 // fine)
    parts = partition(
        labels, clients=data.clients, kind=data.partition, alpha=data.alpha, shards=data.shards, seed=data.seed  # type: ignore[attr-defined]
    )  # fmt: skip
    assert [len(train) for train, _ in parts] == SIZES[setting]
    sharing = setting.rpartition("lenet-")[2] if "lenet" in setting else None
    assert cell.model.name == ("lenet" if sharing else "resnet18")
    assert getattr(cell.model, "sharing", None) == sharing
    assert data.name == setting.split("-")[0]
    if data.name == "cifar20":
        assert data.divide_by == "fine"  # type: ignore[attr-defined]


def test_shifts(paper: Grid) -> None:
    def shifts(setting: str) -> tuple[ColourShift | None, ...]:
        data = next(c for c in paper.cells if c.setting == setting).dataset
        return colour_shifts(data.shift, data.clients)  # type: ignore[attr-defined]

    for setting in MAIN:
        assert shifts(setting)[5] == ColourShift(saturation=1.5, hue=-0.1, gamma=1.4)
    assert shifts("cifar10-dir0.3-mid")[5] == ColourShift(saturation=1.3, hue=-0.05, gamma=1.25)
    assert shifts("cifar10-dir0.3-low")[2] == ColourShift(saturation=0.9, hue=0.01, gamma=0.9)
    for m in (8, 16, 24, 32):
        pool = shifts(f"cifar10-dir0.3-pool-m{m}")
        assert len(pool) == m
        assert pool[4] == ColourShift(saturation=0.4, hue=0.0, gamma=1.0)
    assert pool[27] == ColourShift(saturation=0.4, hue=-0.15, gamma=0.6, posterise=True)


def test_every_setting_is_looked_at(paper: Grid) -> None:
    assert set(SIZES) | {"retina"} == set(paper.content["settings"])


def test_methods(paper: Grid) -> None:
    use = {name: dict(entry["use"]) for name, entry in paper.content["methods"].items()}
    lam = {name: entry["lam"] for name, entry in use.items() if entry["name"] == "feddrm"}
    assert lam == {f"feddrm-lam{value}": value for value in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)}
    # Every setting but the sweep has the same weight.
    assert {c.method for c in paper.cells if c.learner.name == "feddrm" and c.step != "lambda"} == {"feddrm-lam0.9"}
    assert {c.setting for c in paper.cells if c.step == "lambda"} == {"cifar10-dir0.3"}
    assert use["fedproxft-tune100"]["mu"] == use["fedpac"]["mu"] == 0.01
    assert (use["fedsamft-tune100"]["rho"], use["ditto"]["lam"]) == (0.05, 1.0)
    for setting in (*MAIN, "cifar10-dir1.3", "cifar10-dir2.3", "retina"):
        cells = [c for c in paper.cells if c.setting == setting and c.seed == 2025]
        shown = {c.learner.name for c in cells if c.step not in ("fedavg", "fedala-learned")}
        assert shown == ELEVEN, setting
    for m in (8, 16, 24, 32):
        names = {c.learner.name for c in paper.cells if c.setting == f"cifar10-dir0.3-pool-m{m}"}
        assert names == {"fedas", "fedavgft", "feddrm"}


def test_a_name_is_a_configuration(paper: Grid) -> None:
    """No two names for one run, no two runs of one name: a cell that several tables show is run once."""
    protocols = [json.dumps(cell.protocol(), sort_keys=True) for cell in paper.cells]
    assert len(set(protocols)) == len(paper.cells) == len(paper.by_id)


def test_order_of_value(paper: Grid) -> None:
    ids = [cell.id for cell in paper.cells]
    assert ids[:6] == [f"{setting}_feddrm-lam0.9_seed2025" for setting in MAIN]
    assert ids[6:12] == [f"{setting}_fedavgft-tune100_seed2025" for setting in MAIN]
    assert list(dict.fromkeys(cell.step for cell in paper.cells)) == list(paper.steps())


def test_tables_show_cells_of_the_grid(paper: Grid, smoke: Grid) -> None:
    for grid in (paper, smoke):
        for name in table_names(grid):
            for table in tables(grid, name, {}):
                assert all(entry.cell in grid.by_id for _, _, entry in table.entries()), name
    shown = {e.cell for name in paper.content["tables"] for t in tables(paper, name, {}) for _, _, e in t.entries()}
    assert shown == {cell.id for cell in paper.cells if cell.seed == 2025}


def test_published_figures() -> None:
    """The margins of FedDRM over the best baseline, worked out independently, are a checksum of the tables."""
    known = published()
    margins_of = {"system": (1.45, 1.33, 0.02, 0.24, 0.82, 3.28), "average": (1.18, 0.40, 1.33, 1.18, 1.04, 2.47)}
    for table, margins in margins_of.items():
        rows = known[table]["rows"]
        assert set(rows) == ELEVEN
        for k, margin in enumerate(margins):
            best = max(values[k][0] for name, values in rows.items() if name != "feddrm")
            assert rows["feddrm"][k][0] - best == pytest.approx(margin, abs=1e-9)
    assert known["alpha"]["rows"]["feddrm"][0] == [63.85, 0.18]
    assert known["clients"]["rows"]["fedas"][2] == [38.12, 0.21]
    for name in ("system", "average", "alpha", "clients"):
        assert all(len(values) == len(known[name]["columns"]) for values in known[name]["rows"].values())


def test_choosing(paper: Grid) -> None:
    ids = lambda *patterns, seeds=(): [c.id for c in paper.choose(patterns, seeds)]  # noqa: E731
    assert len(ids()) == 158
    assert len(ids("lambda")) == 6  # the table, its 0.9 from the main table included
    assert len(ids("seeds")) == 24
    assert len(ids("main")) == 78
    assert ids("cifar10-spc5_ditto") == ["cifar10-spc5_ditto_seed2025"]
    assert ids("cifar10-spc5_*", "retina_feddrm*")[0] == "cifar10-spc5_feddrm-lam0.9_seed2025"
    assert len(ids("cifar10-spc5_*", "retina_feddrm*")) == 11 + 2 + 2 * 2 + 1
    assert ids("lambda", seeds=(7,)) == [f"cifar10-dir0.3_feddrm-lam{v}_seed7" for v in (0.9, 0.5, 0.6, 0.7, 0.8, 0.95)]
    with refused("--only 'lamda' picks no cell; did you mean 'lambda'?", "feddrm paper list"):
        ids("lamda")


def test_grids_from_files(tmp_path: Path, smoke: Grid) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**smoke.content, "name": "mine"}))
    assert [cell.id for cell in Grid.read(path).cells] == [cell.id for cell in smoke.cells]
    path.write_text(yaml.safe_dump({**smoke.content, "name": "paper"}))
    with refused("calls itself 'paper'", "give it another name"):
        Grid.read(path)
    path.write_text("rounds: 3\norder: []\n")
    with refused("mine.yaml is no grid: it lacks name, seed, train", "compare feddrm/paper/smoke.yaml"):
        Grid.read(path)
    with refused("unknown grid 'papr'", "paper, tuned, smoke"):
        Grid.read("papr")


@pytest.mark.parametrize("also", [(0, 5), (9, 3)])
def test_impossible_windows(also: tuple[int, int]) -> None:
    with refused(f"also={also}", "[651, 700]"):
        Evaluation(also=also).check()
