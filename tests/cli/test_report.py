"""Tests of the command ``feddrm report``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from feddrm.cli.report import report
from feddrm.data import load
from run_folders import write_run

FILES = ["report.html", "table.csv", "table.tex"]


def test_one_run_and_several_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.command()(report)
    runner = CliRunner()
    monkeypatch.setattr("feddrm.report.report_page.report_page", lambda table: "page")  # drawn in other tests
    digits = load("digits", clients=4, seed=0)
    first, second = write_run(tmp_path / "first", digits), write_run(tmp_path / "second", digits, method="fedavg")
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["first"])
    assert result.exit_code == 0, result.output
    assert "accuracy in percent" in result.output
    assert f"wrote {Path('first') / 'report.html'}" in result.output
    assert (first / "report.html").read_text() == "page"
    result = runner.invoke(app, ["first", "second", "--json"])
    assert [row["method"] for row in json.loads(result.output)] == ["feddrm", "fedavg"]
    assert sorted(p.name for p in (tmp_path / "report").iterdir()) == FILES
    result = runner.invoke(app, ["second", "--out", "elsewhere"])
    assert sorted(p.name for p in (tmp_path / "elsewhere").iterdir()) == FILES
    assert not (second / "report.html").exists()
    assert runner.invoke(app, []).exit_code == 2
    help_text = runner.invoke(app, ["--help"]).output
    assert "Example: feddrm report runs/first" in help_text
