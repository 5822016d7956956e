"""``feddrm bench``: options, printed figures and committed results. Measuring itself needs a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import feddrm.bench.engine as engine
from feddrm.cli.app import app
from feddrm.errors import FeddrmError, SettingError

FIGURES = {
    "ms_per_client_step": 2.0,
    "ratio_to_eager": 5.0,
    "ways": {
        "eager fp32": {
            "ms_per_client_step": 10.0,
            "images_per_second": 12800.0,
            "tflops": 40.0,
            "of_matrix_product": 0.05,
            "peak_memory_gib": 2.0,
            "capture_seconds": 0.01,
        }
    },
    "scaling": {"8": 2.0},
    "hardware": "a card",
    "versions": {},
    "date": "2026-01-01",
}


def test_bench_serve_is_refused_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    result = CliRunner().invoke(app, ["bench", "serve"])
    assert isinstance(result.exception, FeddrmError)
    assert str(result.exception).endswith("pip install 'feddrm[serve]'")
    assert "training" not in result.output


def test_bench_engine_is_refused_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(FeddrmError, match="needs a CUDA GPU"):
        engine.bench_engine()


@pytest.mark.parametrize("words", ["", "x", "0", "4,-1", "1.5"])
def test_impossible_numbers_are_refused(words: str) -> None:
    result = CliRunner().invoke(app, ["bench", "engine", "--streams", words])
    assert isinstance(result.exception, SettingError)
    assert "--streams" in str(result.exception)


def test_figures_are_printed_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options_given: dict[str, object] = {}

    def measured(**options: object) -> dict[str, object]:
        options_given.update(options)
        return FIGURES

    monkeypatch.setattr(engine, "bench_engine", measured)
    out = tmp_path / "engine.json"
    words = ["bench", "engine", "--no-paper", "--scaling", "8,16", "--out", str(out)]
    plain = CliRunner().invoke(app, words)
    assert plain.exit_code == 0
    assert "5.0 times as fast" in plain.output
    assert options_given["scaling"] == [8, 16]
    assert json.loads(out.read_text()) == FIGURES
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).output) == FIGURES


def test_the_committed_result_meets_its_targets() -> None:
    figures = json.loads((Path(__file__).parents[2] / "results" / "bench" / "engine.json").read_text())
    assert figures["paper_run_seconds"] <= 170
    assert figures["ratio_to_eager"] >= 4
    steps = [figures["scaling"][m] for m in ("8", "16", "32")]
    assert max(steps) <= 1.15 * min(steps)
    assert abs(100 * figures["paper_run"]["average_accuracy"]["mean"] - 80.26) <= 1
    assert abs(100 * figures["paper_run"]["system_accuracy"]["head_posterior"]["mean"] - 62.78) <= 1
