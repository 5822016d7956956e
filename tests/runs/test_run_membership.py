"""Clients that leave a run's router: the new artifact decides, answers and serves as if they had never been in it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray

from feddrm.data import Federation
from feddrm.methods import Method
from feddrm.predictor.predictor import Predictor
from feddrm.router import join_client, leave, load_heads, load_router, read_manifest
from feddrm.router.fit.head_problems import joint_classes
from feddrm.router.solver.client_statistics import logits_at
from feddrm.runs import Run, RunFolder, run_membership, train
from feddrm.runs.run_membership import TRAINED_CLIENTS, join_run_router, leave_run_router
from refusal import refused
from runs.conftest import QUICK_FIT, SMALL

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fitted(digits: Federation, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = train(digits, "feddrm", out=tmp_path_factory.mktemp("runs") / "run", **SMALL)
    run.fit_router(joint=True, **QUICK_FIT)
    return run.folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_new_artifact_is_the_router_without_the_client(
    fitted: RunFolder, digits: Federation, tmp_path: Path
) -> None:
    before = contents(fitted.path)
    remaining = leave_run_router(fitted, ["negative"], tmp_path / "smaller")
    assert remaining.names == ("flatbed", "fax")
    assert contents(fitted.path) == before
    samples = torch.cat([client.test.x for client in digits.clients])
    again, expected = load_router(tmp_path / "smaller"), leave(load_router(fitted.router), "negative")
    for rule in ("density", "posterior"):
        decided = again.route(samples, rule=rule).probabilities
        assert torch.equal(decided, expected.route(samples, rule=rule).probabilities)
    old, new = read_manifest(fitted.router), read_manifest(tmp_path / "smaller")
    assert new["notes"] == {**old["notes"], TRAINED_CLIENTS: ["flatbed", "negative", "fax"]}
    for key in ("format", "features", "model", "classes", "input", "calibration"):
        assert new[key] == old[key]


def test_the_heads_stay_and_the_joint_model_loses_the_client_s_rows(fitted: RunFolder, tmp_path: Path) -> None:
    leave_run_router(fitted, ["negative"], tmp_path / "smaller")
    old, new = load_heads(fitted.router), load_heads(tmp_path / "smaller")
    assert set(old) == set(new) == {"mean", "scale", "probe", "joint"}
    for name in ("mean", "scale", "probe"):
        assert torch.equal(old[name], new[name])
    x = torch.randn(5, len(old["mean"]), generator=torch.Generator().manual_seed(0))
    pairs = logits_at(x, old["joint"]).view(5, 3, 10)[:, [0, 2]].flatten(1)
    assert torch.allclose(joint_classes(logits_at(x, new["joint"]), 2), joint_classes(pairs, 2), atol=1e-5)


def test_the_run_s_own_router_can_be_replaced(fitted: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(fitted.path, tmp_path / "copy")
    folder = RunFolder(tmp_path / "copy")
    leave_run_router(folder, ["fax"])
    assert Run.open(folder.path).router().names == ("flatbed", "negative")
    changed = {name for name, content in contents(folder.path).items() if content != contents(fitted.path)[name]}
    assert changed == {
        f"router/{name}" for name in (".commit", "manifest.json", "router.safetensors", "heads.safetensors")
    }
    with folder.exclusive(), refused("another process is at work in"):
        leave_run_router(folder, ["flatbed"])


def test_the_remaining_clients_are_served_as_before(digits: Federation, tmp_path: Path) -> None:
    """FedPAC as first published sends every client its own mixture of heads, addressed by its number in training."""
    run = train(digits, Method.make("fedpac", variant="original"), out=tmp_path / "run", **SMALL)
    run.fit_router(digits, heads=False, features="raw")
    samples = [("inputs", digits.clients[2].test.x.numpy())]

    def answer() -> NDArray[np.float64]:
        return Predictor.load(run.folder.client("fax").path)(samples)[0]

    before = answer()
    leave_run_router(run.folder, ["flatbed"])
    assert np.array_equal(answer(), before)


def test_a_demo_starts_the_remaining_clients_only(
    fitted: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = pytest.importorskip("feddrm.serve.server", reason="pip install 'feddrm[serve]' to run this")
    monkeypatch.setattr(server, "_demo_client", lambda *_: None)
    shutil.copytree(fitted.path, tmp_path / "copy")
    leave_run_router(RunFolder(tmp_path / "copy"), ["negative"])
    with server.demo_clients(tmp_path / "copy") as clients:
        assert set(yaml.safe_load(clients.read_text())) == {"flatbed", "fax"}


def test_the_order_of_training_is_kept_when_clients_leave_one_after_another(tmp_path: Path) -> None:
    rows = [[j / 9, j % 2] for j in range(20)]
    clients = {name: (np.array(rows) + i, [j % 2 for j in range(20)]) for i, name in enumerate("abcd")}
    federation = Federation.from_arrays(clients)
    run = train(federation, "fedavg", out=tmp_path / "run", **SMALL)
    run.fit_router(federation, heads=False)
    for name in ("a", "c"):
        leave_run_router(run.folder, [name])
    assert run.router().names == ("b", "d")
    assert read_manifest(run.folder.router)["notes"][TRAINED_CLIENTS] == ["a", "b", "c", "d"]


def test_several_clients_may_leave_but_two_stay(fitted: RunFolder, tmp_path: Path) -> None:
    with refused("'fax' cannot leave: one client alone needs no router"):
        leave_run_router(fitted, ["negative", "fax"], tmp_path / "none")
    with refused("unknown client 'rome' (there are: flatbed, negative, fax)"):
        leave_run_router(fitted, ["rome"], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_folder_with_other_files_is_refused(fitted: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for out in (tmp_path, tmp_path / "thesis.txt", fitted.router):
        with refused("is not an empty folder: choose another --out, or change the run with --in-place"):
            leave_run_router(fitted, ["fax"], out)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict[str, Path]]:
    """A run on three tables, and a fourth table of a client that was not there."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "clients").mkdir()
    rng = np.random.default_rng(0)
    paths = {}
    for number, name in enumerate(("oslo", "lima", "pune", "lyon")):
        rows = rng.normal(1.5 * number, 1, (60, 3))
        lines = ["a,b,c,label", *(f"{a:.4f},{b:.4f},{c:.4f},{i % 2}" for i, (a, b, c) in enumerate(rows))]
        paths[name] = folder / ("clients" if name != "lyon" else "") / f"{name}.csv"
        paths[name].write_text("\n".join(lines if name != "lyon" else [line.rpartition(",")[0] for line in lines]))
    settings = {"path": str(folder / "clients"), "label": "label"}
    run = train("csv", "fedavg", out=folder / "run", data_settings=settings, **SMALL)
    run.fit_router(joint=True)
    return run.folder, paths


def test_a_client_joins_with_unlabelled_samples(tables: tuple[RunFolder, dict[str, Path]], tmp_path: Path) -> None:
    folder, paths = tables
    before = contents(folder.path)
    config = Run.open(folder.path).config
    joined = join_run_router(folder, config, "lyon", [paths["lyon"]], tmp_path / "larger")
    assert joined.names == ("lima", "oslo", "pune", "lyon")
    assert contents(folder.path) == before
    again = load_router(tmp_path / "larger")
    queries = torch.full((5, 3), 4.5)
    assert torch.equal(again.route(queries).probabilities, joined.route(queries).probabilities)
    assert (again.route(queries).probabilities.argmax(1) == 3).all(), "queries like its samples go to the new client"
    manifest = read_manifest(tmp_path / "larger")
    assert manifest["notes"][TRAINED_CLIENTS] == ["lima", "oslo", "pune"]
    assert set(load_heads(tmp_path / "larger")) == {"mean", "scale", "probe"}
    assert manifest["notes"]["stacks"] == {}
    shutil.copytree(folder.path, tmp_path / "copy")
    copy = RunFolder(tmp_path / "copy")
    join_run_router(copy, config, "lyon", [paths["lyon"]])
    assert load_router(copy.router).names == joined.names
    with refused("no samples of 'lyon'", "let it leave"):
        join_run_router(copy, config, "nice", [paths["lyon"]], tmp_path / "x")
    with refused("knows a client 'oslo' already"):
        join_run_router(folder, config, "oslo", [paths["lyon"]], tmp_path / "x")


def test_samples_that_a_newcomer_was_fitted_on_are_no_test_samples(
    tables: tuple[RunFolder, dict[str, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, paths = tables
    given = []

    def spy(*arguments: Any) -> Any:
        given.append(arguments)
        return join_client(*arguments)

    monkeypatch.setattr(run_membership, "join_client", spy)
    joined = join_run_router(folder, Run.open(folder.path).config, "lyon", [paths["lyon"]], tmp_path / "larger")
    router, federation, ridge, settings, test = given[0]
    assert federation.names == joined.names
    assert sorted(set(test.origin.tolist())) == [0, 1, 2]
    assert settings.views == 1
    by_samples_it_saw = join_client(router, federation, ridge, settings)
    assert by_samples_it_saw.calibration.conformal != joined.calibration.conformal


def test_a_client_that_leaves_meanwhile_does_not_come_back(
    tables: tuple[RunFolder, dict[str, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tables[0].path, tmp_path / "run")
    folder, path = RunFolder(tmp_path / "run"), tables[1]["lyon"]

    def leaves_meanwhile(*arguments: Any) -> Any:
        with refused("another process is at work"):
            leave_run_router(RunFolder(tmp_path / "run"), ["oslo"])
        return join_client(*arguments)

    monkeypatch.setattr(run_membership, "join_client", leaves_meanwhile)
    join_run_router(folder, Run.open(folder.path).config, "lyon", [path])
    leave_run_router(folder, ["oslo"])
    assert load_router(folder.router).names == ("lima", "pune", "lyon")
    (tmp_path / "empty").mkdir()
    with refused(f"{tmp_path / 'empty'}: no files of samples"):
        join_run_router(tables[0], Run.open(folder.path).config, "nice", [tmp_path / "empty"], tmp_path / "x")
