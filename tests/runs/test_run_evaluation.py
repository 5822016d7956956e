"""A run measured again: the same figures with one view, those of its router and predictors with several."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from feddrm.data import Federation
from feddrm.evaluation import system_accuracy
from feddrm.predictor.predictor import Predictor
from feddrm.router import load_router
from feddrm.router.settings import PART_BYTES
from feddrm.runs import Run, train
from feddrm.runs.run_membership import leave_run_router
from photographs import photographs
from refusal import refused
from runs.conftest import QUICK_FIT, SMALL, arrays

pytestmark = pytest.mark.slow

VIEWS = 6


@pytest.fixture(scope="module")
def federation() -> Federation:
    return photographs()


@pytest.fixture(scope="module")
def fitted(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    train(federation, "feddrm", out=path, **SMALL).fit_router(federation, **QUICK_FIT)
    return path


def test_one_view_is_what_training_and_the_fit_have_measured(fitted: Path, federation: Federation) -> None:
    run = Run.open(fitted)
    measured, last, summary = run.evaluate(federation), run.metrics()[-1], run.summary
    assert summary is not None
    for key in ("round", "average_accuracy", "oracle_accuracy", "global_accuracy"):
        assert measured[key] == last[key]
    for kind in ("client_accuracy", "system_accuracy"):
        assert {rule: measured[kind][rule] for rule in last[kind]} == last[kind]
        later = {rule: value["mean"] for rule, value in summary[kind].items() if rule not in last[kind]}
        assert {rule: measured[kind][rule] for rule in later} == pytest.approx(later)
        assert len(later) >= 2


def test_intervals_draw_the_subjects_of_test_samples(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(240, 4))
    labels = rows[:, 0] + np.random.default_rng(2).normal(size=240) > 0
    given = {name: (rows + shift, labels, np.arange(240) // 8) for name, shift in (("oslo", 0), ("lima", 1))}
    federation = Federation.from_arrays(given)
    run = train(federation, "fedavg", out=tmp_path / "run", **SMALL)
    run.fit_router(federation, **QUICK_FIT)
    summary, measured = run.summary, run.evaluate(federation)
    assert summary is not None
    assert measured["metrics"] == summary["metrics"]
    tests = [replace(client, test=replace(client.test, subject=None)) for client in federation.clients]
    plain = run.evaluate(replace(federation, clients=tuple(tests)))["metrics"]
    for whose in ("own", "system"):
        found, other = summary["metrics"][whose]["accuracy"], plain[whose]["accuracy"]
        assert found["value"] == other["value"]
        assert found["interval"] != other["interval"]


def test_where_all_answers_are_too_large_the_figures_of_one_client_asked_stay(
    fitted: Path, federation: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run.open(fitted)
    whole = run.evaluate(federation)
    assert "consult_all" in whole["system_accuracy"]
    monkeypatch.setitem(PART_BYTES, "cpu", 1)
    with caplog.at_level("INFO", "feddrm.runs"):
        measured = run.evaluate(federation)
    assert "answers of all clients to all test samples: left out" in caplog.text
    assert "label_sets" not in measured
    assert "refit_density" in measured["system_accuracy"]
    assert "consult_all" not in measured["system_accuracy"]
    for kind in ("system_accuracy", "client_accuracy"):
        assert measured[kind] == {name: whole[kind][name] for name in measured[kind]}
    assert measured["metrics"]["own"] == whole["metrics"]["own"]


def test_several_views_are_what_router_and_predictors_answer(fitted: Path, federation: Federation) -> None:
    """System accuracy with hard routing, put together from the parts that serve it."""
    before = {path: path.read_bytes() for path in fitted.rglob("*") if path.is_file()}
    measured = Run.open(fitted).evaluate(federation, views=VIEWS)
    router = load_router(fitted / "router")
    x = torch.cat([client.test.x for client in federation.clients])
    labels = torch.cat([client.test.y for client in federation.clients])
    routes = router.route(x, views=VIEWS).client
    answers = []
    for name in federation.names:
        (probabilities,) = Predictor.load(fitted / "clients" / name, views=VIEWS)([("inputs", x.numpy())])
        answers.append(torch.from_numpy(probabilities).argmax(1))
    predicted = torch.stack(answers)[routes, torch.arange(len(x))]
    assert measured["system_accuracy"]["exact_density"] == system_accuracy(predicted, labels)
    assert {path: path.read_bytes() for path in fitted.rglob("*") if path.is_file()} == before


def test_views_change_the_figures_of_every_part(fitted: Path, federation: Federation) -> None:
    one, several = (Run.open(fitted).evaluate(federation, views=count) for count in (1, VIEWS))
    assert (
        set(one["system_accuracy"]) == set(several["system_accuracy"]) >= {"head_density", "exact_density", "stacked"}
    )
    assert one["system_accuracy"] != several["system_accuracy"]


def test_a_run_that_is_evaluated_with_views_says_so_and_can_be_measured_again(
    federation: Federation, tmp_path: Path
) -> None:
    run = train(federation, "feddrm", out=tmp_path / "run", **SMALL, evaluation={"views": 4})
    assert run.config["evaluation"]["views"] == 4
    run.fit_router(**QUICK_FIT)
    measured, last = run.evaluate(views=4), run.metrics()[-1]
    assert measured["average_accuracy"] == last["average_accuracy"]
    assert measured["system_accuracy"]["head_density"] == last["system_accuracy"]["head_density"]
    assert run.summary is not None
    assert measured["system_accuracy"]["stacked"] == run.summary["system_accuracy"]["stacked"]["mean"]
    assert measured["label_sets"] == run.summary["router"]["label_sets"]
    assert set(measured["label_sets"]) == {"trained", "refit"}


def test_a_run_without_a_router_has_the_figures_of_its_training(federation: Federation, tmp_path: Path) -> None:
    run = train(federation, "fedavg", out=tmp_path / "run", **SMALL)
    measured = run.evaluate(views=2)
    assert set(measured["system_accuracy"]) == {"vote", "global"}


def test_what_is_refused(fitted: Path, federation: Federation, tmp_path: Path) -> None:
    with refused("views=99: these data allow 18 views"):
        Run.open(fitted).evaluate(federation, views=99)
    with refused("other data", "give the data that it was trained on"):
        Run.open(fitted).evaluate(photographs(20))
    table = train(arrays(1), "fedavg", out=tmp_path / "table", rounds=2)
    with refused("views=8: these data allow no crops and no mirror images of a sample: leave views out"):
        table.evaluate(views=8)
    with refused("views=8: these data allow no crops"):
        train(arrays(1), "fedavg", out=tmp_path / "none", rounds=2, evaluation={"views": 8})
    assert not (tmp_path / "none").exists()
    shutil.copytree(fitted, tmp_path / "copy")
    (tmp_path / "copy" / "clients" / "dark" / "head.safetensors").unlink()
    with refused("head.safetensors", "fit the router again"):
        Run.open(tmp_path / "copy").evaluate(federation)
    (tmp_path / "copy" / "checkpoint" / "state.safetensors").unlink()
    with refused("no checkpoint to evaluate"):
        Run.open(tmp_path / "copy").evaluate(federation)


def test_a_router_without_one_of_the_clients_is_refused(tmp_path: Path, digits: Federation) -> None:
    run = train(digits, "feddrm", out=tmp_path / "run", **SMALL)
    run.fit_router(heads=False)
    leave_run_router(run.folder, [digits.names[0]], None)
    with refused("has other clients than the run", "fit-router"):
        run.evaluate()


def test_a_router_fitted_on_views_is_measured_with_them(federation: Federation, tmp_path: Path) -> None:
    run = train(federation, "feddrm", out=tmp_path / "run", **SMALL)
    run.fit_router(features="multiscale")
    on_crops = run.router()
    router = run.fit_router(features="multiscale", views=4)
    x = torch.cat([client.view(client.train.x) for client in federation.clients])
    torch.testing.assert_close(router.scaler.mean.float(), router.features(x, views=4).mean(0), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(on_crops.scaler.mean, router.scaler.mean, atol=1e-3)
    assert run.summary is not None
    assert run.summary["router"]["views"] == 4
    measured = run.evaluate(views=4)["system_accuracy"]
    for rule in ("exact_density", "stacked", "stacked_published"):
        assert run.summary["system_accuracy"][rule]["mean"] == pytest.approx(measured[rule])
    with refused("crops=2, views=4: views take the place of crops: give one of them"):
        run.fit_router(crops=2, views=4)


def test_a_client_answers_before_a_router_is_fitted_as_it_does_after(federation: Federation, tmp_path: Path) -> None:
    run = train(federation, "feddrm", out=tmp_path / "run", **SMALL)
    x = torch.cat([client.test.x for client in federation.clients])
    before = {name: run.predict(x, client=name, views=VIEWS) for name in federation.names}
    with refused("has no router, which consult and answer need", "feddrm fit-router"):
        run.predict(x, client=federation.names[0], consult=2, answer="refit")
    with refused("unknown client 'rio'"):
        run.predict(x, client="rio")
    with refused("or give the federation"):
        Run.open(run.path).predict(x, client=federation.names[0])
    run.fit_router(features="embedding", heads=False)
    for name, found in before.items():
        after = run.predict(x, client=name, views=VIEWS)
        temperature = Predictor.load(run.path / "clients" / name).head.calibration.temperature
        assert temperature != 1
        cooled = (found.probabilities.log() / temperature).softmax(1)
        torch.testing.assert_close(cooled, after.probabilities, rtol=1e-5, atol=1e-7)
        assert (found.labels, found.client, found.answered) == (after.labels, after.client, after.answered)
        assert found.client_probability.isnan().all()
    assert before[federation.names[0]].labels != before[federation.names[1]].labels


def test_a_gpu_that_is_not_there_is_refused(
    digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(digits, "fedavg", out=tmp_path / "run", **SMALL)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with refused("device 'cuda:1' was asked for, but torch sees no GPU here: use --device cpu"):
        run.evaluate(device="cuda:1")
    with refused("device 'cuda' was asked for, but torch sees no GPU here: use --device cpu"):
        run.fit_router(device="cuda", features="raw", heads=False)
