from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from feddrm.data import Federation, load
from feddrm.models import Mlp
from feddrm.runs import train

SMALL = {"rounds": 2, "local_steps": 2, "batch_size": 16, "seed": 3, "model": Mlp(hidden=(16,), branch=8)}


def feddrm(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "feddrm", *map(str, words)], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    federation = load("digits", clients=3, seed=3)
    train(federation, "feddrm", out=folder / "run", **SMALL)
    for client in federation.clients:
        Image.fromarray(client.test.x[0, 0].numpy()).save(folder / f"{client.name}.png")
    return folder / "run"


def test_the_commands_of_the_documentation(run: Path, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "router.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
    commands = [line.split() for block in blocks for line in block.splitlines()]
    assert [c[1] for c in commands] == ["fit-router", "route"]
    shutil.copytree(run, tmp_path / "runs" / "first")
    shutil.copy(run.parent / "fax.png", tmp_path)
    for command in commands:
        found = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr
        assert found.stdout.strip()


def test_fit_then_route(run: Path) -> None:
    fitted = feddrm("fit-router", run, "--features", "raw+colour", "--no-heads", "--json")
    assert fitted.returncode == 0, fitted.stderr
    assert {"exact_density", "exact_posterior"} <= set(json.loads(fitted.stdout)["system_accuracy"])
    names = ("flatbed", "negative", "fax")
    routed = feddrm("route", run, *(run.parent / f"{name}.png" for name in names), "--json")
    assert routed.returncode == 0, routed.stderr
    answers = json.loads(routed.stdout)
    assert [a["client"] for a in answers] == list(names)
    other = json.loads(feddrm("route", run, run.parent / "fax.png", "--without", "fax", "--json").stdout)
    assert other[0]["client"] in {"flatbed", "negative"}
    table = feddrm("route", run, run.parent / "fax.png")
    assert "fax" in table.stdout
    assert "margin" in table.stdout
    sets = feddrm("route", run, run.parent / "fax.png", "--miss", "0.01", "--json")
    assert "fax" in json.loads(sets.stdout)[0]["within"]
    assert "one of, but for 0.01" in feddrm("route", run, run.parent / "fax.png", "--miss", "0.01").stdout


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (["fit-router", "nowhere"], 1, ["nowhere is no run", "feddrm train"]),
        (["fit-router", "RUN", "--features", "colours"], 2, ["unknown feature 'colours'", "did you mean 'colour'"]),
        (["fit-router", "RUN", "--device", "tpu"], 2, ["unknown device 'tpu'", "(known: cpu, cuda)"]),
        (["route", "RUN", "missing.png"], 1, ["missing.png"]),
        (["route", "RUN", "PNG", "--without", "rome"], 1, ["unknown client 'rome'"]),
        (["route", "RUN", "PNG", "--rule", "odds"], 2, ["unknown rule 'odds'"]),
        (["route", "RUN", "PNG", "--miss", "0.3"], 2, ["miss=0.3", "choose 0.01, 0.05, 0.1, 0.2"]),
    ],
)
def test_mistakes(run: Path, words: list[str], code: int, parts: list[str]) -> None:
    if words[0] == "route" and not (run / "router" / "manifest.json").exists():
        feddrm("fit-router", run, "--features", "raw", "--no-heads")
    given = [{"RUN": run, "PNG": run.parent / "fax.png"}.get(word, word) for word in words]
    found = feddrm(*given)
    assert found.returncode == code, found.stderr
    assert found.stderr.count("\n") == 1
    for part in parts:
        assert part in found.stderr


def test_tables_by_their_columns(tmp_path: Path) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    x = {"oslo": rng.normal(0, 1, (60, 3)), "lima": rng.normal(3, 1, (50, 3))}
    arrays = {name: (rows.astype(np.float32), (rows[:, 0] > rows[:, 0].mean()).astype(int)) for name, rows in x.items()}
    federation = Federation.from_arrays(arrays, columns=["age", "pulse", "weight"])
    train(federation, "feddrm", out=tmp_path / "run", **SMALL).fit_router(federation, heads=False)
    (tmp_path / "q.csv").write_text("weight,age,pulse\n0,0,0\n3,3,3\n")
    routed = feddrm("route", tmp_path / "run", tmp_path / "q.csv", "--json")
    assert routed.returncode == 0, routed.stderr
    assert [a["client"] for a in json.loads(routed.stdout)] == ["oslo", "lima"]
    (tmp_path / "bad.csv").write_text("weight,age\n0,0\n")
    bad = feddrm("route", tmp_path / "run", tmp_path / "bad.csv")
    assert bad.returncode == 1
    assert "no column 'pulse'" in bad.stderr
