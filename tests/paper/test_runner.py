"""Tests of the runner on the smoke grid: real training on the digits, a few rounds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from feddrm.errors import FeddrmError
from feddrm.paper import runner
from feddrm.paper.cell_records import CellRecord, read_records
from feddrm.paper.estimate import cost
from feddrm.paper.grid import Cell, Grid
from feddrm.paper.runner import Runner, read_budget
from feddrm.runs import Run, RunFolder, hardware
from refusal import refused

pytestmark = pytest.mark.slow

Make = Callable[..., CellRecord]
FIRST = "digits-dir0.3_feddrm-lam0.9_seed2025"
TUNED = "digits-dir0.3_fedavgft-tune3_seed2025"


def opened(grid: Grid, folder: Path, router: bool = False, **options: Any) -> Runner:
    return Runner(grid, folder / "results", folder / "work", "cpu", router=router, **options)


def events(made: Runner, cells: list[Cell]) -> list[tuple[str, str]]:
    return [(outcome.cell.id, outcome.event) for outcome in made.go(cells)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, smoke: Grid) -> Path:
    """Everything run once, without a break."""
    folder = tmp_path_factory.mktemp("whole")
    assert events(opened(smoke, folder), list(smoke.cells)) == [(c.id, "finished") for c in smoke.cells]
    return folder


def accuracies(record: CellRecord) -> dict[str, Any]:
    return {key: value for key, value in record.content.items() if key.endswith("_accuracy") or key == "before_tuning"}


def test_a_result_says_all_and_stays_small(whole: Path, smoke: Grid) -> None:
    records = read_records(smoke, whole / "results")
    assert set(records) == set(smoke.by_id)
    for name, record in records.items():
        assert record.path.stat().st_size < 4000
        summary = Run.open(whole / "work" / name).summary
        assert summary is not None
        for key in ("average_accuracy", "oracle_accuracy"):
            assert record.content[key]["mean"] == pytest.approx(summary[key]["mean"], abs=1e-6)
        assert record.content["config"] == Run.open(whole / "work" / name).config
        assert record.content["seconds"]["wall"] >= record.content["seconds"]["total"] > 0
        last = Run.open(whole / "work" / name).metrics()[-1]
        assert record.content["votes"]["cuda"] == pytest.approx(last["system_accuracy"]["vote"], abs=1e-6)
        assert len(record.content["source"]) == 12
        assert {"hardware", "versions", "date", "commit"} <= set(record.content)
        assert not record.routed


def test_the_global_model_before_tuning_has_its_own_window(whole: Path, smoke: Grid) -> None:
    record = read_records(smoke, whole / "results")[TUNED]
    lines = Run.open(whole / "work" / TUNED).metrics()
    before = [line for line in lines if line["round"] in (4, 5)]
    assert [line["stage"] for line in before] == ["train", "train"]
    want = fmean(line["global_accuracy"] for line in before)
    assert record.content["before_tuning"]["global_accuracy"]["mean"] == pytest.approx(want, abs=1e-6)
    score = record.score("system", "before")
    assert score is not None
    assert score.mean == pytest.approx(want, abs=1e-6)  # all clients hold one model: any vote is its answer
    after = record.score("average")
    assert after is not None
    assert after.mean != record.score("average", "before").mean  # type: ignore[union-attr]
    assert read_records(smoke, whole / "results")[FIRST].content["before_tuning"] is None


def test_what_is_finished_is_never_run_again(whole: Path, smoke: Grid) -> None:
    before = {path: path.stat().st_mtime_ns for path in (whole / "results").iterdir()}
    made = opened(smoke, whole)
    assert events(made, list(smoke.cells)) == []
    assert {path: path.stat().st_mtime_ns for path in (whole / "results").iterdir()} == before
    assert {made.standing(cell).state for cell in smoke.cells} == {"no router"}


def test_a_run_whose_result_was_lost_is_only_distilled_again(whole: Path, smoke: Grid, tmp_path: Path) -> None:
    made = Runner(smoke, tmp_path, whole / "work", "cpu", router=False)
    played = []

    @contextmanager
    def watch(cell: Cell) -> Iterator[Any]:
        yield lambda *round: played.append(round)

    made.watch = watch
    assert events(made, [smoke.by_id[FIRST]]) == [(FIRST, "finished")]
    assert not played
    again, before = read_records(smoke, tmp_path)[FIRST], read_records(smoke, whole / "results")[FIRST]
    assert accuracies(again) == accuracies(before)


def test_out_of_budget_in_the_middle_of_a_cell(whole: Path, smoke: Grid, tmp_path: Path) -> None:
    """Cut short after some rounds, gone on with first of all, and the same in the end."""
    now, cells = 0.0, list(smoke.cells)[:3]
    made = opened(smoke, tmp_path, deadline=runner.SAVING + 5.0, clock=lambda: now)

    @contextmanager
    def watch(cell: Cell) -> Iterator[Any]:
        def on_round(*_: Any) -> None:
            nonlocal now
            now += 1.0

        yield on_round

    made.watch = watch
    found = list(made.go(cells[2:]))
    assert [o.event for o in found] == ["interrupted"]
    standing = made.standing(cells[2])
    assert (standing.state, standing.round) == ("half done", 5)
    assert not (tmp_path / "results").exists()
    assert [o.event for o in made.go(cells)] == ["skipped"] * 3  # nothing is begun once the time is up
    later = opened(smoke, tmp_path)
    assert events(later, cells) == [(cell.id, "finished") for cell in (cells[2], cells[0], cells[1])]
    before = read_records(smoke, whole / "results")
    for cell in cells:
        assert accuracies(later.records[cell.id]) == accuracies(before[cell.id])
    assert later.records[cells[2].id].content["seconds"]["wall"] is None


def test_ctrl_c_keeps_whole_rounds(smoke: Grid, tmp_path: Path) -> None:
    @contextmanager
    def watch(cell: Cell) -> Iterator[Any]:
        def on_round(played: Any, *_: Any) -> None:
            if played.state.round == 4:
                raise KeyboardInterrupt

        yield on_round

    made = opened(smoke, tmp_path)
    made.watch = watch
    with pytest.raises(KeyboardInterrupt):
        list(made.go(list(smoke.cells)))
    assert made.standing(smoke.by_id[FIRST]).state == "half done"


def test_a_cell_that_would_not_finish_is_not_begun(smoke: Grid, tmp_path: Path, make: Make) -> None:
    done, long, other = (smoke.cells[i] for i in (0, 1, 2))
    make(done, wall=50.0, hardware=hardware("cpu"))
    make(other, wall=1.0, hardware="another machine")
    made = opened(smoke, tmp_path, deadline=runner.SAVING + 40.0, clock=lambda: 0.0)
    assert made.standing(long).seconds == pytest.approx(50.0 * cost(long) / cost(done))
    outcome = next(iter(made.go([long])))
    assert (outcome.event, outcome.why) == ("skipped", "takes about 50 s, 40 s are left")
    assert not (tmp_path / "work" / long.id).exists()


def test_calls_at_the_same_time_share_the_cells(smoke: Grid, tmp_path: Path) -> None:
    first, second = (opened(smoke, tmp_path) for _ in range(2))
    cells = list(smoke.cells[:2])
    working = first.go(cells)
    with first._claim(cells[0]):
        assert events(second, cells) == [(cells[0].id, "skipped"), (cells[1].id, "finished")]
    assert read_records(smoke, tmp_path / "results")[cells[1].id].content["seconds"]["beside"] == 1
    assert [(o.cell.id, o.event) for o in working] == [(cells[0].id, "finished")]
    assert "beside" not in read_records(smoke, tmp_path / "results")[cells[0].id].content["seconds"]


def test_one_broken_cell_does_not_cost_the_others(smoke: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work" / FIRST).mkdir(parents=True)
    (tmp_path / "work" / FIRST / "thesis.txt").write_text("keep")
    really = runner.train

    def train(data: Any, method: Any, **settings: Any) -> Run:
        if method.name == "fedavgft":
            raise RuntimeError("out of memory")
        return really(data, method, **settings)

    monkeypatch.setattr(runner, "train", train)
    made = opened(smoke, tmp_path)
    found = {o.cell.id: o for o in made.go(list(smoke.cells)[:3])}
    assert [o.event for o in found.values()] == ["failed", "finished", "failed"]
    assert "not empty and no run" in found[FIRST].why
    assert "RuntimeError: out of memory" in found[TUNED].why
    assert "Traceback" in (tmp_path / "work" / f"{TUNED}.error.txt").read_text()
    assert (tmp_path / "work" / FIRST / "thesis.txt").read_text() == "keep"


def fake_router(run: Run, federation: Any = None, *, device: str) -> None:
    """What the router layer leaves in a summary; its numbers do not matter here."""
    summary = json.loads((run.path / "summary.json").read_text())
    score = {"mean": 0.75, "std": None}
    assert len(federation.clients) == 3
    assert device == "cpu"
    summary["client_accuracy"] |= {"exact_density": score}
    rules = ("exact_density", "exact_posterior", "consult_2", "consult_all", "stacked", "global_probe")
    summary["system_accuracy"] |= dict.fromkeys(rules, score)
    (run.path / "summary.json").write_text(json.dumps(summary))


def test_a_router_comes_later_to_cells_whose_runs_are_still_there(
    smoke: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = list(smoke.cells)[:2]
    made = opened(smoke, tmp_path)
    assert events(made, cells[:1]) == [(FIRST, "finished")]
    plain = accuracies(made.records[FIRST])
    monkeypatch.setattr(Run, "fit_router", fake_router)
    made = opened(smoke, tmp_path, router=True)
    assert events(made, cells) == [(FIRST, "router"), (cells[1].id, "finished"), (cells[1].id, "router")]
    record = read_records(smoke, tmp_path / "results")[FIRST]
    assert record.routed
    assert record.score("system.consult_all").mean == 0.75  # type: ignore[union-attr]
    assert record.content["average_accuracy"] == plain["average_accuracy"]
    assert record.content["seconds"]["router"] >= 0
    assert record.content["seconds"]["wall"] == made.records[FIRST].content["seconds"]["wall"] is not None
    assert made.standing(cells[0]).state == "done"
    assert events(opened(smoke, tmp_path, router=True), cells) == []


def test_a_cell_whose_run_is_gone_is_trained_again_for_its_router_after_all_others(
    smoke: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = list(smoke.cells)[:2]
    made = opened(smoke, tmp_path)
    assert events(made, cells[:1]) == [(FIRST, "finished")]
    before = made.records[FIRST]
    shutil.rmtree(tmp_path / "work" / FIRST)
    monkeypatch.setattr(Run, "fit_router", fake_router)
    short = opened(smoke, tmp_path, router=True, deadline=runner.SAVING + before.seconds / 2, clock=lambda: 0.0)
    (left_out,) = short.go(cells[:1])
    assert (left_out.event, "are left" in left_out.why) == ("skipped", True)
    made = opened(smoke, tmp_path, router=True)
    other = cells[1].id
    assert events(made, cells) == [(other, "finished"), (other, "router"), (FIRST, "finished"), (FIRST, "router")]
    after = read_records(smoke, tmp_path / "results")[FIRST]
    assert after.routed
    assert after.content["average_accuracy"] == before.content["average_accuracy"]
    assert after.content["seconds"]["wall"] is not None


def test_a_router_that_another_call_fitted_meanwhile_is_not_fitted_again(
    smoke: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = smoke.by_id[FIRST]
    assert events(opened(smoke, tmp_path), [cell]) == [(FIRST, "finished")]
    monkeypatch.setattr(Run, "fit_router", fake_router)
    first, second = (opened(smoke, tmp_path, router=True) for _ in range(2))
    assert events(first, [cell]) == [(FIRST, "router")]
    assert events(second, [cell]) == []


def test_a_router_that_fails_leaves_the_result(smoke: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: Run, *_: Any, **__: Any) -> None:
        raise FeddrmError("no features")

    monkeypatch.setattr(Run, "fit_router", refuse)
    made = opened(smoke, tmp_path, router=True)
    found = list(made.go([smoke.by_id[FIRST]]))
    assert [(o.event, o.why) for o in found] == [("finished", ""), ("failed", "router: no features")]
    assert FIRST in read_records(smoke, tmp_path / "results")


def test_settings_go_through_but_the_protocol_is_fixed(smoke: Grid, tmp_path: Path) -> None:
    with refused("--set lr=...", "belongs to the protocol"):
        opened(smoke, tmp_path, settings={"lr": 1.0})
    made = opened(smoke, tmp_path, settings={"threads": 2})
    assert events(made, [smoke.by_id[FIRST]]) == [(FIRST, "finished")]
    assert made.records[FIRST].content["config"]["threads"] == 2
    unknown = opened(smoke, tmp_path / "other", settings={"engin": "graph"})
    assert "no training setting 'engin'" in next(iter(unknown.go([smoke.by_id[FIRST]]))).why


@pytest.mark.parametrize(("text", "seconds"), [("25m", 1500), ("90s", 90), ("1.5h", 5400), ("30", 30)])
def test_budgets(text: str, seconds: float) -> None:
    assert read_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-5m", "soon", "0", "nanm", "infh"])
def test_bad_budgets(text: str) -> None:
    with refused(f"--budget '{text}'", "25m, 90s or 1.5h"):
        read_budget(text)


@pytest.fixture
def retina(smoke: Grid, paper: Grid) -> Grid:
    """The paper's RETINA setting, but for one round of one step."""
    setting = {**paper.content["settings"]["retina"], "evaluation": {"window": 1, "every": 1}, "train": {}}
    train = {**paper.content["train"], "rounds": 1, "local_steps": 1, "batch_size": 1}
    step = {"name": "retina", "settings": ["retina"], "methods": ["feddrm-lam0.9"]}
    content = {**smoke.content, "name": "made", "train": train, "settings": {"retina": setting}, "order": [step]}
    return Grid(yaml.safe_load(yaml.safe_dump(content)))


def test_retina_on_made_images(retina: Grid, tmp_path: Path, no_data: Path) -> None:
    cell = retina.cells[0]
    found = list(opened(retina, tmp_path).go([cell]))
    assert [o.event for o in found] == ["skipped"]
    assert "no 'retina_balanced' with kaggle_arima, RIM, REFUGE" in found[0].why
    rng = np.random.default_rng(0)
    for client in ("kaggle_arima", "RIM", "REFUGE"):
        for part in ("Training", "Testing"):
            for label in ("Glaucoma", "Normal"):
                folder = tmp_path / "data" / "retina_balanced" / client / part / label
                folder.mkdir(parents=True)
                for i in range(1 + (part == "Training")):
                    Image.fromarray(rng.integers(0, 256, (96, 96, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    made = opened(retina, tmp_path, data_dir=str(tmp_path / "data"))
    assert events(made, [cell]) == [(cell.id, "finished")]
    record = made.records[cell.id]
    assert record.content["config"]["model"] == {"name": "resnet18_retina", "branch": 512}
    assert record.content["curve"]["round"] == [1]
    assert record.score("system") is not None
    assert RunFolder(tmp_path / "work" / cell.id).summary_file.exists()


def test_a_router_is_not_begun_without_the_time_it_took_before(
    smoke: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = smoke.by_id[FIRST]
    assert events(opened(smoke, tmp_path), [cell]) == [(FIRST, "finished")]
    monkeypatch.setattr(Run, "fit_router", fake_router)
    assert events(opened(smoke, tmp_path), [cell]) == []
    made = opened(smoke, tmp_path, router=True, deadline=runner.SAVING + 20.0, clock=lambda: 0.0)
    monkeypatch.setattr(runner, "router_estimate", lambda *_: 30.0)
    (skipped,) = made.go([cell])
    assert (skipped.event, skipped.why) == (
        "skipped", "its router takes up to 30 s, 20 s are left: the next call fits it"
    )  # fmt: skip
    monkeypatch.setattr(runner, "router_estimate", lambda *_: 10.0)
    assert events(made, [cell]) == [(FIRST, "router")]
