"""``feddrm tune``: what it prints and writes, and that its best settings can be trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import assert_one_line, call

pytestmark = pytest.mark.slow
WORDS = ["--data", "digits", "--clients", "3", "--rounds", "8", "--seed", "1", "--cost", "2"]


def test_the_best_settings_can_be_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "tune")
    code, text, _ = call(capsys, "tune", *WORDS, "--try", "lr=0.02,0.1", "--out", out, "--json")
    assert code == 0
    found = json.loads(text)
    assert found["finished"]
    rate = found["best"]["feddrm"]["lr"]
    code, text, _ = call(capsys, "tune", *WORDS, "--try", "lr=0.02,0.1", "--out", out)  # nothing is trained again
    assert code == 0
    assert f"lr={rate:g}" in text
    assert "tune.html" in text
    code, text, _ = call(capsys, "train", "--config", f"{out}/best.yaml", "--out", str(tmp_path / "run"), "--json")
    assert code == 0
    assert f"lr: {rate}" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--try", "lr="], 2, "there is nothing to try"),
        (["--try", "lr"], 2, "write it as lr=0.01,0.1"),
        (["--try", "method.mu=1"], 2, "'feddrm' has no setting 'mu'"),
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
