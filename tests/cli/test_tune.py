"""``feddrm tune``: what it prints and writes, and that its best settings can be trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from cli.conftest import assert_one_line, call

pytestmark = pytest.mark.slow
WORDS = ["--data", "digits", "--clients", "3", "--rounds", "8", "--seed", "1", "--cost", "2"]


def test_the_best_settings_and_the_front_are_shown_and_can_be_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "tune")
    words = ["tune", *WORDS, "--try", "lr=0.02,0.1", "--goal", "both", "--out", out]
    code, text, _ = call(capsys, *words, "--json")
    assert code == 0
    found = json.loads(text)
    assert found["finished"]
    rate = found["best"]["feddrm"]["lr"]
    front = found["front"]["feddrm"]
    assert {frozenset(member["scores"]) for member in front} == {frozenset({"average", "system"})}
    code, text, _ = call(capsys, *words)  # nothing is trained again
    assert code == 0
    rows = [line for line in text.splitlines() if " front " in line]
    assert len(rows) == len(front)
    for row, member in zip(rows, front, strict=True):
        assert f"lr={member['settings']['lr']:g}" in row
        assert f"system {100 * member['scores']['system']:.2f}" in row
    assert found["verdicts"]["feddrm"] in " ".join(text.split())
    assert f"lr={rate:g}" in next(line for line in text.splitlines() if " picked " in line)
    assert all(name in text for name in ("tune.html", "best.yaml", "best-average.yaml", "best-system.yaml"))
    code, text, _ = call(capsys, "train", "--config", f"{out}/best.yaml", "--out", str(tmp_path / "run"), "--json")
    assert code == 0
    assert f"lr: {rate}" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--try", "lr="], 2, "there is nothing to try"),
        (["--try", "lr"], 2, "write it as lr=0.01,0.1"),
        (["--try", "lr=0.1,0.2", "--try", "lr=0.3"], 2, "--try lr is given twice: write --try lr=0.1,0.2,0.3"),
        (["--try", "method.mu=1"], 2, "'feddrm' has no setting 'mu'"),
        (["--set", "method.lam=0.5"], 2, "a search tries settings of methods: write --try method.lam=0.5"),
        (["--set", "model.hidden=[4]"], 2, "no settings of 'model' here: write data.hidden or training.hidden"),
        (["--set", "training.participation=2"], 2, "participation=2.0: the fraction of clients must lie in (0, 1]"),
        (["--goal", "fame"], 2, "unknown goal 'fame'"),
        (["--budget", "soon"], 2, "--budget 'soon'"),
        (["--method", "fedravg"], 2, "did you mean 'fedavg'?"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_one_line(call(capsys, "tune", *WORDS, "--out", str(tmp_path / "x"), *words), code, says)
    assert not (tmp_path / "x").exists()


def test_settings_of_the_training_are_those_of_trials_and_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rates that are good with all clients need not be good with half of them."""
    words = [
        "--try",
        "lr=0.02,0.1",
        "--set",
        "training.participation=0.5",
        "--set",
        "local_steps=3",
        "--set",
        "alpha=2",
    ]
    code, _, _ = call(capsys, "tune", *WORDS, *words, "--out", str(tmp_path / "tune"))
    assert code == 0
    for file in (tmp_path / "tune" / "best.yaml", tmp_path / "tune" / "trials" / "feddrm" / "lr=0.1" / "config.yaml"):
        config = yaml.safe_load(file.read_text())
        assert (config["participation"], config["local_steps"], config["data"]["alpha"]) == (0.5, 3, 2.0)
