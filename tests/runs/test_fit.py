"""A federation of frozen features becomes a run folder without rounds, and everything that takes a run takes it."""

from __future__ import annotations

import importlib
import json
import stat
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import feddrm
from feddrm.data import Federation, Split, load
from feddrm.errors import SettingError
from feddrm.io.tensors import read_tensors
from feddrm.methods import Fed3R, FedAvg
from feddrm.models import Identity, Mlp
from feddrm.report.report_page import write_report
from feddrm.report.run_table import report_table
from feddrm.router import RouterSettings, evaluate
from feddrm.router.fit.local_cohort import LocalCohort
from feddrm.runs import Run
from refusal import refused

NAMES = ("oslo", "lima", "suva")
fit_module = importlib.import_module("feddrm.runs.fit")  # feddrm.runs.fit is the function


def embeddings(seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    centres, places = 2 * rng.normal(size=(3, 6)), rng.normal(size=(3, 6))

    def samples(n: int, client: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(n) % 3
        return centres[y] + places[client] + rng.normal(size=(n, 6)), y

    return Federation.from_arrays({name: samples(60 + 20 * i, i) for i, name in enumerate(NAMES)})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return feddrm.fit(embeddings(), out=tmp_path_factory.mktemp("fit") / "run")


def test_the_folder_has_what_a_trained_run_has(run: Run):
    files = {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}
    assert files >= {"config.yaml", "metrics.jsonl", "summary.json", "evaluation.json", "data.json"}
    assert files >= {f"router/{name}.safetensors" for name in ("router", "heads", "shared")}
    assert files >= {f"clients/{name}/{part}.safetensors" for name in NAMES for part in ("private", "head")}
    assert run.config["rounds"] == 0
    assert run.config["method"]["name"] == "fed3r"
    assert run.config["model"]["name"] == "identity"


def test_private_heads_stay_with_their_clients(run: Run):
    folder = run.folder
    shared = read_tensors(folder.shared_file, "")
    for name in NAMES:
        file = folder.client(name).private_file
        own = read_tensors(file, "")
        assert set(own) == {"model/head.weight", "model/head.bias"}
        assert not torch.equal(own["model/head.weight"], shared["head.weight"])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_summary_and_metrics(run: Run):
    summary = run.summary
    assert summary["rounds"] == 0
    assert len(run.metrics()) == 1
    assert summary["average_accuracy"]["mean"] > 0.85
    assert summary["client_accuracy"]["exact_density"]["mean"] > 0.6
    assert summary["router"]["message"]["bytes"] > 0
    assert "0 rounds, router" in repr(run)


def test_samples_go_to_the_device_of_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Only the network went there, so a fit on a GPU ended in a stack trace."""
    moved: list[Federation] = []
    given: list[Federation] = []

    def to(federation: Federation, device: str) -> Federation:
        moved.append(replace(federation, source=f"on {device}"))
        return moved[-1]

    def cohort(federation: Federation, settings: RouterSettings) -> LocalCohort:
        given.append(federation)
        return LocalCohort(federation, settings)

    monkeypatch.setattr(Federation, "to", to)
    monkeypatch.setattr(fit_module, "LocalCohort", cohort)
    feddrm.fit(embeddings(), out=tmp_path / "run")
    assert [federation.source for federation in given] == ["on cpu"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path):
    with refused("device 'cuda' was asked for, but torch sees no GPU here"):
        feddrm.fit(embeddings(), out=tmp_path / "run", device="cuda")
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_fits_the_same_run(tmp_path: Path):
    here, there = (feddrm.fit(embeddings(), out=tmp_path / device, device=device) for device in ("cpu", "cuda"))
    fitted = read_tensors(there.folder.shared_file, "")
    for leaf, value in read_tensors(here.folder.shared_file, "").items():
        torch.testing.assert_close(fitted[leaf], value, rtol=1e-4, atol=1e-5)


def test_the_global_model_is_the_ridge_regression_of_pooled_samples(tmp_path: Path):
    from sklearn.linear_model import Ridge

    fed = embeddings()
    run = feddrm.fit(fed, Fed3R(ridge=0.02), out=tmp_path / "run")
    x, y = (torch.cat([getattr(client.train, part) for client in fed.clients]) for part in ("x", "y"))
    test, labels = (torch.cat([getattr(client.test, part) for client in fed.clients]) for part in ("x", "y"))
    mean, scale = x.double().mean(0), x.double().std(0, correction=0)
    oracle = Ridge(alpha=0.02 * len(x)).fit((x - mean) / scale, np.eye(3)[y])
    accuracy = (oracle.predict((test - mean) / scale).argmax(1) == labels.numpy()).mean()
    assert run.summary["global_accuracy"]["mean"] == pytest.approx(accuracy)
    leaves = read_tensors(run.folder.shared_file, "")
    ratio = leaves["head.weight"].double().numpy() / oracle.coef_
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-4)  # but for the temperature


def test_a_finished_fit_is_kept_and_another_is_refused(run: Run):
    before = (run.path / "summary.json").stat().st_mtime_ns
    feddrm.fit(embeddings(), out=run.path)
    assert (run.path / "summary.json").stat().st_mtime_ns == before
    with refused("holds a run with method=", "choose another --out"):
        feddrm.fit(embeddings(), "fedlda", out=run.path)
    with refused("other data"):
        feddrm.fit(embeddings(seed=1), out=run.path)


def test_a_fit_that_was_cut_off_is_done_again(tmp_path: Path, monkeypatch):
    module = sys.modules["feddrm.runs.fit"]
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_router", lambda *words: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            feddrm.fit(embeddings(), out=tmp_path / "run")
    again = feddrm.fit(embeddings(), out=tmp_path / "run")
    assert again.router().names == NAMES
    assert len(again.metrics()) == 1


def test_where_all_answers_are_too_large_the_figures_of_one_client_asked_stay(run: Run, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(evaluate, "BYTES", 2**33)
    small = feddrm.fit(embeddings(), out=tmp_path / "small")
    assert small.summary["router"]["left_out"][0].startswith("answers of all clients to all test samples: left out")
    for kind in ("system_accuracy", "client_accuracy"):
        assert small.summary[kind] == {name: run.summary[kind][name] for name in small.summary[kind]}
    assert "consult_all" in set(run.summary["system_accuracy"]) - set(small.summary["system_accuracy"])


def test_queries_are_routed_and_answered(run: Run):
    fed = embeddings()
    client = fed.clients[0]
    decision = run.router().route(client.test.x)
    assert (decision.client == 0).float().mean() > 0.5
    for answer in ("trained", "refit"):
        answers = run.predict(client.test.x, answer=answer, abstain="answer")
        right = np.array(answers.labels) == np.array([fed.classes[k] for k in client.test.y])
        assert right.mean() > 0.8


@pytest.mark.slow
def test_the_report_has_the_run(run: Run, tmp_path: Path):
    page = write_report(report_table([run.path]), tmp_path)
    assert "fed3r on own" in page.read_text()


@pytest.mark.slow
def test_the_router_is_exported(run: Run, tmp_path: Path):
    runtime = pytest.importorskip("onnxruntime")
    from feddrm.router.export import export_onnx

    router, x = run.router(), embeddings().clients[0].test.x
    export_onnx(router, tmp_path / "router.onnx")
    session = runtime.InferenceSession((tmp_path / "router.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    (probabilities,) = session.run(None, {"input": x.numpy()})
    np.testing.assert_allclose(probabilities, router.route(x).probabilities.numpy(), atol=1e-5)


@pytest.mark.slow
def test_the_exact_router_can_follow(tmp_path: Path):
    run = feddrm.fit(embeddings(), out=tmp_path / "run")
    router = run.fit_router()
    assert router.names == NAMES
    assert run.summary["router"]["rounds"] > 0
    assert "message" not in run.summary["router"]


@pytest.mark.slow
def test_the_extractor_travels_with_the_run(tmp_path: Path):
    pytest.importorskip("onnxruntime")
    from feddrm.router.export import export_onnx
    from onnx_files import write_extractor

    file = write_extractor(tmp_path / "extractor.onnx", width=24)
    model = feddrm.Model.make("onnx", path=str(file))
    run = feddrm.fit("digits", out=tmp_path / "run", model=model, data_settings={"clients": 3, "seed": 0})
    images = load("digits", clients=3, seed=0).clients[0].test.x
    before = run.predict(images, abstain="answer")
    write_extractor(file, width=23)
    with refused("holds a run with model="):
        feddrm.fit("digits", out=run.path, model=model, data_settings={"clients": 3, "seed": 0})
    file.unlink()
    assert Run.open(run.path).predict(images, abstain="answer").labels == before.labels
    with refused("ONNX file already", "--features-only"):
        export_onnx(run.router(), tmp_path / "router.onnx")
    export_onnx(run.router(), tmp_path / "router.onnx", features_only=True)
    assert Run.open(run.path).fit_router(heads=False).recipe.name


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"method": FedAvg()}, ("method 'fedavg' has rounds: train it with 'feddrm train'", "fed3r or fedlda")),
        ({"method": "fedavg", "rounds": 5}, ("method 'fedavg' has rounds",)),
        ({"rounds": 5}, ("fed3r has no rounds, not 5",)),
        ({"model": Mlp()}, ("needs frozen features", "--model identity")),
        ({"method": Fed3R(ridge=-1.0)}, ("ridge=-1.0",)),
        ({"model": Identity(features=0)}, ("features=0",)),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(settings, parts, tmp_path: Path):
    with refused(*parts):
        feddrm.fit(embeddings(), **{"out": tmp_path / "run", **settings})
    assert not list(tmp_path.iterdir())


def changed(fed: Federation, x: torch.Tensor, y: torch.Tensor) -> Federation:
    first = replace(fed.clients[0], train=Split(x, y))
    return replace(fed, clients=(first, *fed.clients[1:]))


def test_a_client_with_one_sample_is_refused(tmp_path: Path):
    fed = embeddings()
    one = fed.clients[0].train
    with refused("client 'oslo' has 1 training sample", "give away", "leave the client out"):
        feddrm.fit(changed(fed, one.x[:1], one.y[:1]), out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_client_with_two_samples_is_fitted(tmp_path: Path):
    fed = embeddings()
    two = fed.clients[0].train
    run = feddrm.fit(changed(fed, two.x[:2], two.y[:2]), out=tmp_path / "run")
    assert run.summary["average_accuracy"]["mean"] > 0.8


def test_features_that_are_not_finite_leave_nothing(tmp_path: Path):
    fed = embeddings()
    x = fed.clients[0].train.x.clone()
    x[3, 1] = torch.inf
    with refused("client 'oslo'", "training sample 3", "not finite"):
        feddrm.fit(changed(fed, x, fed.clients[0].train.y), out=tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()
    feddrm.fit(fed, out=tmp_path / "run")


def test_a_singular_gram_matrix_leaves_nothing(tmp_path: Path):
    fed = embeddings()
    clients = tuple(
        replace(
            client, **{part: Split(torch.cat([s.x, s.x[:, :1]], 1), s.y)
                       for part, s in (("train", client.train), ("test", client.test))}
        )
        for client in fed.clients
    )  # fmt: skip
    twice = replace(fed, clients=clients, columns=tuple("abcdefg"))
    with refused("7 features is singular with ridge=0", "--ridge 0.01"):
        feddrm.fit(twice, Fed3R(ridge=0.0), out=tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_oddities_are_logged_in_one_line_each(tmp_path: Path, caplog):
    fed = embeddings()
    clients = tuple(
        replace(client, train=Split(torch.cat([client.train.x, torch.ones(len(client.train), 1)], 1), client.train.y),
                test=Split(torch.cat([client.test.x, torch.ones(len(client.test), 1)], 1), client.test.y))
        for client in fed.clients
    )  # fmt: skip
    feddrm.fit(replace(fed, clients=clients, columns=tuple("abcdefg")), out=tmp_path / "run")
    assert [record.message for record in caplog.records] == [
        "own: g is constant: no head uses what is constant; leave it out"
    ]


def test_values_that_the_router_would_not_answer_are_warned_of(tmp_path: Path, caplog):
    fed = embeddings()
    first, *others = fed.clients
    x = first.train.x.clone()
    x[0, 2] = 1e3
    clients = (replace(first, train=Split(x, first.train.y)), *others)
    feddrm.fit(replace(fed, clients=clients), out=tmp_path / "run")
    (record,) = caplog.records
    assert "more than 8 standard deviations" in record.message
    assert "The router will give no answer to such queries" in record.message


def test_frozen_models_cannot_be_trained(tmp_path: Path):
    with pytest.raises(SettingError, match="'identity' is frozen and cannot be trained: use 'feddrm fit'"):
        feddrm.train(embeddings(), "fedavg", out=tmp_path / "run", model="identity", rounds=1)
    for rounds in ({"rounds": 3}, {}):
        with pytest.raises(SettingError, match="fed3r has no rounds"):
            feddrm.train(embeddings(), "fed3r", out=tmp_path / "run", **rounds)
    with pytest.raises(SettingError, match="rounds=0"):
        feddrm.train(embeddings(), "fed3r", out=tmp_path / "run", rounds=0)
    with pytest.raises(SettingError, match="fed3r has no rounds"):
        feddrm.tune(embeddings(), "fed3r", out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_the_summary_is_valid_json(run: Run):
    assert json.loads((run.path / "summary.json").read_text())["router"]["converged"] is True
