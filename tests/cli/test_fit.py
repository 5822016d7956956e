"""``feddrm fit``: frozen features from the command line, and its one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from cli.conftest import assert_one_line, call


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(3, 5))
    y, owner = np.arange(120) % 3, np.arange(120) // 40
    np.savez(tmp_path / "all.npz", x=centres[y] + owner[:, None] + rng.normal(size=(120, 5)), y=y,
             client=np.array(["oslo", "lima", "suva"])[owner])  # fmt: skip
    return tmp_path / "all.npz"


@pytest.mark.slow
def test_arrays_become_a_run_that_other_commands_take(arrays: Path, tmp_path: Path, capsys):
    out = str(tmp_path / "run")
    code, text, err = call(capsys, "fit", "--data", "npz", "--set", f"data.path={arrays}", "--out", out)
    assert (code, err) == (0, "")
    assert "every client sent one message of at most" in text
    assert "average" in text
    code, text, _ = call(capsys, "evaluate", out, "--json")
    assert json.loads(text)["rounds"] == 0
    np.savez(tmp_path / "queries.npz", x=np.load(arrays)["x"][:4])
    code, text, _ = call(capsys, "route", out, str(tmp_path / "queries.npz"), "--json")
    assert code == 0
    assert len(json.loads(text)) == 4
    code, text, _ = call(capsys, "predict", out, str(tmp_path / "queries.npz"), "--json")
    assert code == 0
    code, text, _ = call(capsys, "report", out, "--out", str(tmp_path / "report"))
    assert code == 0
    assert (tmp_path / "report" / "report.html").exists()


def test_every_option_reaches_the_configuration(arrays: Path, tmp_path: Path, capsys):
    words = ["--method", "fedlda", "--features", "9", "--ridge", "0.2", "--polish", "3", "--half", "--seed", "4"]
    extra = ["--set", f"data.path={arrays}", "--set", "method.router=ridge", "--set", "test_fraction=0.5"]
    code, text, _ = call(capsys, "fit", "--data", "npz", *words, *extra, "--out", str(tmp_path / "run"), "--json")
    assert code == 0
    summary = json.loads(text)
    assert summary["router"]["ridge"] == 0.2
    assert summary["router"]["rounds"] == 3
    assert summary["router"]["message"]["type"] == "float16"
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["method"] == {"name": "fedlda", "router": "ridge", "ridge": 0.2, "polish": 3, "half": True}
    assert config["model"] == {"name": "identity", "features": 9}
    assert (config["seed"], config["data"]["seed"], config["data"]["test_fraction"]) == (4, 4, 0.5)


def test_features_that_tell_nothing_are_not_blamed_on_a_learning_rate(tmp_path: Path, capsys):
    np.savez(tmp_path / "all.npz", x=np.ones((60, 2)), y=np.arange(60) // 2 % 2, client=np.array(["oslo", "lima"] * 30))
    words = ["--data", "npz", "--set", f"data.path={tmp_path / 'all.npz'}", "--out", str(tmp_path / "run")]
    code, _, err = call(capsys, "fit", *words)
    assert code == 0
    assert "run: one answer to all queries: its features do not tell the classes apart" in err
    assert "--lr" not in err


@pytest.mark.slow
def test_the_cost_of_float16_is_said(arrays: Path, tmp_path: Path, capsys):
    words = ["fit", "--data", "npz", "--set", f"data.path={arrays}", "--half", "--out", str(tmp_path / "run")]
    _, text, _ = call(capsys, *words)
    assert "(float16)" in text
    assert "held-out squared error: 0." in text
    assert "by float64" in text


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--data", "digits"], 2, "give --out FOLDER"),
        (["--out", "x"], 2, "--data NAME"),
        (["--data", "digits", "--out", "x", "--method", "fed3"], 2, "did you mean 'fed3r'?"),
        (["--data", "digits", "--out", "x", "--method", "fedavg"], 2, "method 'fedavg' has rounds: train it"),
        (["--data", "digits", "--out", "x", "--model", "mlp"], 2, "needs frozen features"),
        (["--data", "digits", "--out", "x", "--model", "onnx"], 2, "model.path=extractor.onnx"),
        (["--data", "digits", "--out", "x", "--ridge", "-1"], 2, "ridge=-1.0"),
        (["--data", "digits", "--out", "x", "--polish", "-1"], 2, "polish=-1"),
        (["--data", "digits", "--out", "x", "--features", "0"], 1, "features=0"),
        (["--data", "digits", "--out", "x", "--set", "method.ridgee=1"], 2, "no setting 'ridgee'"),
        (["--data", "npz", "--out", "x"], 2, "data.path"),
    ],
)
def test_mistakes_are_one_line(words, code, says, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_one_line(call(capsys, "fit", *words), code, says)
    assert not (tmp_path / "x" / "config.yaml").exists()


def test_training_names_the_command(tmp_path: Path, capsys):
    words = ["train", "--data", "digits", "--method", "fed3r", "--rounds", "3", "--out", str(tmp_path / "x")]
    assert_one_line(call(capsys, *words), 2, "fed3r has no rounds, not 3: fit it with 'feddrm fit'")
