"""The exact router of a run: its figures, its files, what it is fitted on, and what is refused."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from feddrm.data import Federation, load
from feddrm.evaluation import pooled_queries, system_accuracy
from feddrm.models import is_head
from feddrm.report.report_page import write_report
from feddrm.report.run_record import RunRecord
from feddrm.report.run_table import report_table
from feddrm.router import load_router
from feddrm.router.answer_calibration import AnswerCalibration
from feddrm.router.fit import head_problems
from feddrm.runs import Run, run_router, train
from feddrm.runs.run_router import saved_config
from refusal import refused
from runs.conftest import QUICK_FIT, SMALL, crowd

pytestmark = pytest.mark.slow
BY_TRAINING = {"vote", "head_density", "head_posterior"}


@pytest.fixture(scope="module")
def fitted(digits: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    train(digits, "feddrm", out=path, **SMALL).fit_router()
    return path


def test_the_summary_gains_the_figures_of_the_router(fitted: Path) -> None:
    summary = Run.open(fitted).summary
    assert summary is not None
    assert set(summary["system_accuracy"]) >= {
        "vote", "head_density", "head_posterior", "exact_density", "exact_posterior", "consult_2", "consult_all",
        "stacked", "global_probe", "joint", "refit_density", "refit_all",
    }  # fmt: skip
    assert set(summary["client_accuracy"]) >= {"head_density", "exact_density", "exact_posterior"}
    for kind in ("client_accuracy", "system_accuracy"):
        assert all(0 <= value["mean"] <= 1 for value in summary[kind].values())
    assert 0 <= summary["router"]["ece"] <= 1
    assert summary["client_accuracy"]["exact_density"]["mean"] > summary["client_accuracy"]["head_density"]["mean"]
    evaluation = json.loads((fitted / "evaluation.json").read_text())
    assert {"head_density", "exact_density", "exact_posterior"} <= set(evaluation["confusion"])
    assert sum(evaluation["reliability"]["count"]) == sum(map(sum, evaluation["confusion"]["exact_density"]))


def test_a_run_of_a_loaded_file_finds_its_samples_again(tmp_path: Path) -> None:
    """The federation has the name of the file, the run that of the dataset that read it, with the path."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 2
    np.savez(tmp_path / "visits.npz", x=x, y=y, client=np.repeat(["oslo", "lima"], 30))
    federation = load("npz", path=str(tmp_path / "visits.npz"))
    assert federation.name == "visits"
    train(federation, "feddrm", out=tmp_path / "run", rounds=1)
    run = Run.open(tmp_path / "run")
    assert run.config["data"]["name"] == "npz"
    assert run.fit_router(heads=False).names == ("oslo", "lima")


def test_the_summary_gains_metrics_of_the_routed_answers(fitted: Path, digits: Federation) -> None:
    run = Run.open(fitted)
    assert run.summary is not None
    metrics = run.summary["metrics"]
    assert set(metrics) == {"own", "system"}
    assert metrics["system"]["accuracy"]["value"] == run.summary["system_accuracy"]["exact_density"]["mean"]
    assert metrics["system"]["ece"]["value"] == pytest.approx(run.summary["router"]["answers"]["exact_density"]["ece"])
    matrices = json.loads((fitted / "evaluation.json").read_text())["class_confusion"]
    counts = torch.tensor(matrices["system"])
    assert counts.sum(1).tolist() == torch.tensor(matrices["own"]).sum(1).tolist()
    assert counts.trace() / counts.sum() == pytest.approx(metrics["system"]["accuracy"]["value"])
    assert run.evaluate(digits)["metrics"] == metrics, "the fitted router, measured again"


def test_the_server_gets_no_head_and_each_client_its_correction(fitted: Path, digits: Federation) -> None:
    for path in (fitted / "router").glob("*.safetensors"):
        assert not [leaf for leaf in load_file(path) if is_head(leaf)]
    for name in digits.names:
        assert set(load_file(fitted / "clients" / name / "head.safetensors")) == {"correction", "scores", "temperature"}


def test_each_client_gets_its_temperature_and_the_summary_says_what_it_gains(fitted: Path, digits: Federation) -> None:
    run = Run.open(fitted)
    figures, evaluation = (run.summary or {})["router"]["answers"], run.folder.read_json(run.folder.evaluation_file)
    assert set(figures) == {"exact_density", "consult_all", "refit_density"}
    for values in figures.values():
        assert set(values) == {"ece", "loss", "uncalibrated_ece", "uncalibrated_loss"}
    assert evaluation is not None
    assert sum(evaluation["answer_reliability"]["count"]) == sum(len(client.test) for client in digits.clients)
    for client in digits.clients:
        assert AnswerCalibration.read(run.folder.client(client.name).temperature_file, "").temperature != 1
    text = (fitted / "router" / "manifest.json").read_text() + (fitted / "summary.json").read_text()
    assert not any(word in text for word in ("calibrations", "scores"))  # they are the clients' own


def test_the_saved_router_reaches_the_accuracy_of_the_summary(fitted: Path, digits: Federation) -> None:
    summary = Run.open(fitted).summary
    assert summary is not None
    router = load_router(fitted / "router")
    test = pooled_queries(digits, crop=True, seed=3, round=4)
    home = router.route(test.x).client == test.origin
    by_client = torch.stack([home[test.origin == i].double().mean() for i in range(3)])
    expected = summary["client_accuracy"]["exact_density"]["mean"]
    assert float((by_client * digits.weights).sum()) == pytest.approx(expected, abs=1e-6)
    raw = torch.cat([client.test.x for client in digits.clients])
    assert torch.equal(router.route(raw).client, router.route(test.x).client)
    assert system_accuracy(router.route(raw).client, test.origin) > 0.9


def test_fitting_again_gives_the_same_manifest(fitted: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(fitted, copy)
    before = (copy / "router" / "manifest.json").read_bytes()
    Run.open(copy).fit_router()
    assert (copy / "router" / "manifest.json").read_bytes() == before


def test_a_second_fit_leaves_nothing_of_the_first(fitted: Path, tmp_path: Path, digits: Federation) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(fitted, copy)
    (copy / "router" / "heads.safetensors").resolve(strict=True)
    run = Run.open(copy)
    run.fit_router(digits, heads=False, features="raw")
    summary, fresh = run.summary, tmp_path / "fresh"
    shutil.copytree(fitted, fresh, ignore=shutil.ignore_patterns("router", "head.safetensors"))
    lines = json.loads((fresh / "summary.json").read_text())
    for kind in ("system_accuracy", "client_accuracy"):
        lines[kind] = {rule: lines[kind][rule] for rule in run.metrics()[-1][kind]}
    (fresh / "summary.json").write_text(json.dumps(lines))
    Run.open(fresh).fit_router(digits, heads=False, features="raw")
    again = Run.open(fresh).summary
    assert summary is not None
    assert again is not None
    for kind in ("system_accuracy", "client_accuracy"):
        assert summary[kind] == again[kind]
    assert not {"stacked", "joint", "global_probe", "refit_all"} & set(summary["system_accuracy"])
    files = {str(path.relative_to(copy)) for path in copy.rglob("*.safetensors")}
    assert "router/heads.safetensors" not in files
    assert not [name for name in files if name.endswith("head.safetensors")]
    assert "router/shared.safetensors" in files
    run.router()


def test_the_features_can_be_named(fitted: Path, tmp_path: Path, digits: Federation) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(fitted, copy)
    router = Run.open(copy).fit_router(digits, features="embedding+client", heads=False)
    assert router.recipe.name == "embedding+client"
    assert load_router(copy / "router").recipe.name == "embedding+client"


def test_what_is_too_large_is_left_out_and_the_other_figures_stay(
    fitted: Path, tmp_path: Path, digits: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So small a limit fits clients one by one. A few rounds of them together would end elsewhere.
    monkeypatch.setattr(head_problems, "clients_at_once", lambda *_: 1)
    full, copy = (shutil.copytree(fitted, tmp_path / name) for name in ("full", "copy"))
    run = Run.open(copy)
    Run.open(full).fit_router(digits, features="embedding", **QUICK_FIT)  # some queries go astray
    run.fit_router(digits, features="embedding", part_bytes=1, **QUICK_FIT)
    whole, summary = Run.open(full).summary, run.summary
    assert summary is not None
    assert whole is not None
    assert summary["client_accuracy"]["exact_density"]["mean"] < 0.95
    lines = summary["router"]["left_out"]
    assert [line.split(":")[0] for line in lines] == [
        "answers of all clients' models to all training samples",
        "joint model of 30 pairs of client and class",
        "competence from the answers of all clients",
        "answers of all clients to all test samples",
    ]
    assert "left_out" not in whole["router"]
    manifest = json.loads((copy / "router" / "manifest.json").read_text())
    assert manifest["notes"]["chosen"]["left_out"] == lines
    system = {*BY_TRAINING, "exact_density", "exact_posterior", "global_probe", "refit_density", "refit_posterior"}
    assert set(summary["system_accuracy"]) == system
    for kind in ("system_accuracy", "client_accuracy"):
        assert summary[kind] == {name: whole[kind][name] for name in summary[kind]}
    for name, metric in summary["metrics"]["system"].items():
        for key in ("value", "interval"):
            assert metric[key] == pytest.approx(whole["metrics"]["system"][name][key], rel=1e-9), (name, key)
    for key in ("ece", "conformal", "temperature", "refit_oracle_accuracy", "recipe", "ridge", "held_out_accuracy"):
        assert summary["router"][key] == whole["router"][key], key
    for name, figures in summary["router"]["answers"].items():
        assert figures == pytest.approx(whole["router"]["answers"][name], rel=1e-6)
    for ours, theirs in ((Run.open(p).folder.client(name) for p in (copy, full)) for name in digits.names):
        mine, whole_run = (AnswerCalibration.read(f.temperature_file, "").temperature for f in (ours, theirs))
        assert mine == pytest.approx(whole_run, rel=1e-6)
        head, same = (load_file(f.head_file) for f in (ours, theirs))
        assert all(torch.allclose(head[key], same[key], rtol=1e-5) for key in same)
    write_report(report_table([copy]), tmp_path / "report")
    assert run.evaluate(digits)["metrics"]["system"]["accuracy"] == summary["metrics"]["system"]["accuracy"]


def test_a_large_federation_has_shards_instead_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = crowd()
    quick: dict[str, Any] = {"features": "raw", "rounds": 3, "joint": False, "competence": False}
    folders = train(federation, "fedrep", out=tmp_path / "folders", **{**SMALL, "rounds": 1})
    with monkeypatch.context() as patch:
        patch.setattr(run_router, "SHARD_SIZE", 1000)  # a folder per client, as older versions wrote
        folders.fit_router(federation, **quick)
    shards = Run.open(Path(shutil.copytree(folders.path, tmp_path / "shards")))
    shards.fit_router(federation, **quick)  # again, now into shards: nothing of the earlier fit is left
    assert len(list(folders.folder.clients.rglob("*.json"))) == 2 * 103
    written = sorted(path.name for path in shards.folder.clients.rglob("*") if path.is_file())
    assert written == [f"{kind}-{number}.safetensors" for kind in ("fitted", "private") for number in (0, 1)]
    assert stat.S_IMODE(shards.folder.fitted_file(0).stat().st_mode) == 0o600
    queries = torch.cat([client.test.x[:1] for client in federation.clients])
    for answer in ("trained", "refit"):
        one, other = (run.predict(queries, answer=answer, abstain="answer") for run in (folders, shards))
        np.testing.assert_array_equal(one.probabilities, other.probabilities)
    assert folders.evaluate(federation) == shards.evaluate(federation)
    shards.fit_router(federation, **quick, heads=False)
    with refused("has no refitted heads", "fit-router"):
        shards.predict(queries, answer="refit", abstain="answer")


@pytest.mark.parametrize("method", ["local", "fedavg", "ditto"])
def test_every_kind_of_method_can_be_given_a_router(method: str, digits: Federation, tmp_path: Path) -> None:
    run = train(digits, method, out=tmp_path / "run", **SMALL)
    router = run.fit_router(digits, heads=method != "local", **QUICK_FIT)
    summary = Run.open(run.path).summary
    assert summary is not None
    assert summary["client_accuracy"]["exact_density"]["mean"] > 0.8
    if method == "local":  # nothing is shared, so no feature may need the network
        assert not router.recipe.needs


def write_table(path: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    lines = ["age,dose,outcome,hospital"]
    for i, hospital in enumerate(("oslo", "lima")):
        for age, dose in rng.normal(i, 1, (40, 2)):
            lines.append(f"{age:.3f},{dose:.3f},{'well' if age > i else 'ill'},{hospital}")
    path.write_text("\n".join(lines))
    return {"label": "outcome", "client": "hospital", "drop": []}


def write_pictures(path: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    for client, low in (("oslo", 0), ("lima", 100)):
        for label, shade in (("dark", 0), ("light", 80)):
            (path / client / label).mkdir(parents=True)
            for i in range(12):
                pixels = rng.integers(low + shade, low + shade + 60, (8, 8), dtype=np.uint8)
                Image.fromarray(pixels).save(path / client / label / f"{i}.png")
    return {"size": 8}


@pytest.mark.parametrize(("kind", "make"), [("csv", write_table), ("folders", write_pictures)])
def test_own_data_are_loaded_again_from_any_folder(
    kind: str, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**make(tmp_path / "visits"), "path": "visits"}
    monkeypatch.chdir(tmp_path)
    run = train(kind, "fedavg", out=tmp_path / "run", data_settings=settings, **SMALL)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert set(run.fit_router(heads=False).names) == {"lima", "oslo"}
    data = dict(run.config["data"])  # as 'feddrm train --config RUN/config.yaml' reads it
    again = train(data.pop("name"), "fedavg", out=tmp_path / "again", data_settings=data, **SMALL)
    assert again.config == run.config
    assert again.metrics() == run.metrics()
    assert RunRecord.read(tmp_path / "run").data == "visits"


def test_wrong_settings_data_and_folders_are_refused(fitted: Path, tmp_path: Path, digits: Federation) -> None:
    with refused("no router setting 'feature'", "did you mean 'features'"):
        Run.open(fitted).fit_router(feature="raw")
    with refused("unknown feature 'multi'"):
        Run.open(fitted).fit_router(features="multi")
    for other in (load("digits", clients=4, seed=3), load("digits", clients=3, seed=4)):
        with refused("other data of 'digits'", "give the data that it was trained on"):
            Run.open(fitted).fit_router(other)
    copy = tmp_path / "copy"
    shutil.copytree(fitted, copy)
    (copy / "summary.json").unlink()
    with refused("not finished", "feddrm train"):
        Run.open(copy).fit_router(digits)
    shutil.copy(fitted / "summary.json", copy)
    (copy / "checkpoint" / "state.safetensors").unlink()
    with refused("no checkpoint any more"):
        Run.open(copy).fit_router(digits)
    with refused("holds no router"):
        Run.open(train(digits, "fedavg", out=tmp_path / "plain", **SMALL).path).router()


def test_the_report_shows_the_router(fitted: Path, tmp_path: Path) -> None:
    write_report(report_table([fitted]), tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Reliability of the router" in page
    assert "exact, density" in page
    assert "Expected calibration error" in page
    evaluation = json.loads((fitted / "evaluation.json").read_text())
    copy = tmp_path / "copy"
    shutil.copytree(fitted, copy)
    (copy / "evaluation.json").write_text(json.dumps({**evaluation, "reliability": {"count": [1], "confidence": [1]}}))
    with refused("evaluation.json", "reliability"):
        write_report(report_table([copy]), tmp_path / "other")


@pytest.mark.parametrize(("device", "precision"), [("cuda", "fp32"), ("cpu", "auto")])
def test_models_answer_in_the_precision_that_they_were_trained_in(
    device: str, precision: str, fitted: Path, digits: Federation
) -> None:
    run = Run.open(fitted)
    saved = {**run.config, "device": "cuda", "precision": "fp32"}
    assert saved_config(saved, digits, device).precision == precision
