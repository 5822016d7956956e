"""The public Python names: they complete in a notebook, and their objects describe themselves."""

from __future__ import annotations

import dataclasses
import doctest
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feddrm
import plugin_files
from feddrm.engine import Plan
from feddrm.runs import Evaluation
from refusal import refused

ASKS_A_GATEWAY = {"GatewayClient"}  # its example runs in tests/serve/test_gateway_client.py
UNEXPLAINED = {"__version__", "drm", "router"}  # a text, and packages
EXPLAINED = [name for name in feddrm.__all__ if name not in UNEXPLAINED | ASKS_A_GATEWAY]


def test_every_public_name_completes_and_resolves() -> None:
    assert dir(feddrm) == sorted(feddrm.__all__)
    for name in feddrm.__all__:
        assert getattr(feddrm, name) is not None


@pytest.mark.slow
def test_the_packages_of_the_reference_need_no_import_of_their_own() -> None:
    code = "import feddrm; print(feddrm.drm.analyse.__name__, feddrm.router.leave.__name__)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "analyse leave\n"


def test_objects_describe_themselves(tmp_path: Path) -> None:
    federation = feddrm.load("digits", clients=3, seed=0)
    sizes = ", ".join(f"{c.name} {len(c.train)}+{len(c.test)}" for c in federation.clients)
    assert repr(federation) == f"Federation('digits', 10 classes, samples of 1x8x8, train+test: {sizes})"
    client = federation.clients[0]
    assert f"train=Split({len(client.train)} samples of 1x8x8)" in repr(client)
    out = tmp_path / "r"
    run = feddrm.train(federation, rounds=2, out=out, model={"hidden": [8]})
    assert run.config["model"]["hidden"] == [8]
    assert run.summary is not None
    average = f"average accuracy {run.summary['average_accuracy']['mean']:.1%}"
    begin = f"Run('{out}', data='digits', method='feddrm', model='mlp', "
    assert repr(run) == f"{begin}2 rounds, no router, {average})"
    router = run.fit_router(federation, heads=False, features="raw")
    assert repr(router) == f"Router(raw, samples of 1x8x8, 3 clients: {', '.join(federation.names)})"
    assert repr(router.route(client.test.x[:5], available=[])) == "Decision(5 samples, 3 clients, 5 abstain)"
    assert repr(feddrm.GatewayClient("http://127.0.0.1:8080", key="k")) == "GatewayClient('http://127.0.0.1:8080')"
    assert "exact_density" in run.summary["system_accuracy"]  # the run need not be opened again
    assert repr(run) == f"{begin}2 rounds, router, {average})"
    (out / "summary.json").write_text("{}")
    assert repr(run) == f"{begin}2 rounds, no router)"
    (out / "summary.json").unlink()
    assert repr(run) == f"{begin}unfinished: round 2 of 2)"


@pytest.mark.parametrize("name", EXPLAINED)
def test_the_example_in_the_docstring_of_every_public_name_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plugin_files.write_examples(tmp_path)
    of_its_own = doctest.DocTestFinder(recurse=False).find(getattr(feddrm, name), name, globs={})
    (example,) = (found for found in of_its_own if found.examples)
    example.globs.update(feddrm=feddrm, np=np)
    with plugin_files.new_process(monkeypatch):
        results = doctest.DocTestRunner().run(example)
    assert results.attempted >= 1
    assert not results.failed, capsys.readouterr().out


FRAME = types.SimpleNamespace(columns=["a"], iloc=None)  # what a data frame has
WRONG = [None, 3, Path("digits"), [np.zeros((4, 2))], {"a": (np.zeros((4, 2)), [0, 1, 0, 1])}, FRAME, b"digits"]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize(
    "call",
    [
        lambda wrong: feddrm.load(wrong),
        lambda wrong: feddrm.Method.make(wrong),
        lambda wrong: feddrm.train(wrong, out="runs/a"),
        lambda wrong: feddrm.train_seeds(wrong, seeds=[1], out="runs/a"),
        lambda wrong: feddrm.fit(wrong, out="runs/a"),
        lambda wrong: feddrm.tune(wrong, out="runs/a"),
        lambda wrong: feddrm.train("digits", wrong, out="runs/a"),
        lambda wrong: feddrm.tune("digits", "fedavg", goal=wrong, out="runs/a"),
        lambda wrong: feddrm.Federation.from_flamby(wrong, 2),
        lambda wrong: feddrm.DensityRatioModel(wrong),
        lambda wrong: feddrm.GatewayClient(wrong),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_in_one_line(
    call: Callable[[Any], Any], wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused():
        call(wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [None, 3, [np.zeros((4, 2))], FRAME, b"runs"], ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize(
    "call",
    [
        feddrm.Run.open,
        feddrm.load_plugin,
        feddrm.router.load_router,
        feddrm.Federation.from_npz,
        feddrm.Federation.from_folders,
        feddrm.Federation.from_leaf,
        lambda wrong: feddrm.train("digits", out=wrong),
    ],
)
def test_a_path_of_a_wrong_type_is_refused_in_one_line(call: Callable[[Any], Any], wrong: Any) -> None:
    with refused("give a path"):
        call(wrong)


def test_a_federation_of_many_clients_names_the_first() -> None:
    x, y = np.zeros((4, 2)), [0, 1, 0, 1]
    many = feddrm.Federation.from_arrays({f"c{i}": (x, y) for i in range(1000)})
    assert repr(many).endswith(", c29 2+2, ...; 1,000 in all)")


def test_help_names_every_setting_of_a_training() -> None:
    text = feddrm.train.__doc__ or ""
    names = [field.name for kind in (Plan, Evaluation) for field in dataclasses.fields(kind)]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
