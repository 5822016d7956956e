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
    first = write_run(tmp_path / "first", digits)
    second = write_run(tmp_path / "second", digits, method="fedavg", metrics=True)
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["first"])
    assert result.exit_code == 0, result.output
    shown = result.output.splitlines()
    assert shown[0] == (
        "A query of unknown origin: 66 % answered rightly when guided, 64 % by one global model, "
        "78 % at its own client."
    )
    assert shown[2].strip() == "accuracy in percent"
    assert shown[4].split() == [
        *("run", "answered", "by", "unknown", "origin", "global", "model", "own", "client", "right", "client")
    ]
    assert "head, posterior" not in result.output, "only with --all"
    assert "AUROC" not in result.output, "a run of an older version has no metrics"
    assert f"wrote {Path('first') / 'report.html'}" in result.output
    assert (first / "report.html").read_text() == "page"
    result = runner.invoke(app, ["first", "second", "--json"])
    assert [row["method"] for row in json.loads(result.output)] == ["feddrm", "fedavg"]
    assert sorted(p.name for p in (tmp_path / "report").iterdir()) == FILES
    result = runner.invoke(app, ["second", "--out", "elsewhere"])
    assert "own: AUROC" not in result.output
    result = runner.invoke(app, ["second", "--out", "elsewhere", "--all"])
    assert "system (head, posterior)" in result.output
    assert sorted(p.name for p in (tmp_path / "elsewhere").iterdir()) == FILES
    assert "own: AUROC" in result.output
    assert "98.77 [96.77, 99.77]" in result.output
    assert not (second / "report.html").exists()
    monkeypatch.setattr("feddrm.report.report_page.figure_contents", lambda table, folder: {folder / "x.pdf": b"%PDF"})
    result = runner.invoke(app, ["second", "--out", "elsewhere", "--figures"])
    assert f"wrote {Path('elsewhere') / 'report.html'} and {Path('elsewhere') / 'figures'}" in result.output
    assert (tmp_path / "elsewhere" / "figures" / "x.pdf").read_bytes() == b"%PDF"
    assert runner.invoke(app, []).exit_code == 2
    help_text = runner.invoke(app, ["--help"]).output
    assert "Example: feddrm report runs/first" in help_text


def test_a_folder_of_seeds_is_reported_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddrm.report.report_page.report_page", lambda table: "page")  # drawn in other tests
    app = typer.Typer()
    app.command()(report)
    digits = load("digits", clients=4, seed=0)
    for method, skill in (("fedavg", 0.7), ("feddrm", 0.8)):
        for seed in range(3):
            folder = tmp_path / "runs" / method / f"seed-{seed}"
            write_run(folder, digits, method=method, skill=skill + seed * skill / 20, seed=seed)
    result = CliRunner().invoke(app, [str(tmp_path / "runs"), "--all"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("A query of unknown origin, mean of 3 seeds: ")
    assert "* is better than every other by paired differences" in result.output
    assert "fedavg less feddrm" in result.output
    assert (tmp_path / "runs" / "report.html").exists()
    result = CliRunner().invoke(app, [str(tmp_path / "runs"), "--json"])
    one, other = json.loads(result.output)
    assert (one["run"], one["seeds"], other["seeds"]) == ("fedavg", [0, 1, 2], [0, 1, 2])
    difference = one["differences"][0]
    assert (difference["less"], difference["accuracy"], difference["seeds"]) == ("feddrm", "average_accuracy", 3)
    assert difference["interval"][0] < difference["mean"] < difference["interval"][1] < 0
