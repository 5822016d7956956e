"""Tests of writing a report's files: all of them or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from feddrm.errors import FeddrmError, SettingError
from feddrm.report.report_files import build_report
from feddrm.report.run_table import report_table

MakeRun = Callable[..., Path]


def test_a_failure_leaves_no_files_behind(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddrm.report.report_files.report_page", lambda table: "page")  # drawn in other tests
    good, bad = make_run("good"), make_run("bad")
    (bad / "summary.json").write_text("{")
    out = tmp_path / "out"
    with pytest.raises(FeddrmError, match=r"summary.json is broken"):
        build_report([good, bad], out)
    assert not out.exists()
    (out / "table.tex").mkdir(parents=True)
    with pytest.raises(FeddrmError, match=r"cannot write .*table.tex \(a folder has this name\)"):
        build_report([good], out)
    assert [p.name for p in out.iterdir()] == ["table.tex"]
    with pytest.raises(SettingError, match=r"is a file: name a folder"):
        build_report([good], good / "config.yaml")
    with pytest.raises(FeddrmError, match="cannot write"):
        build_report([good], good / "config.yaml" / "deeper")
    with pytest.raises(SettingError, match="name at least one run folder"):
        report_table([])

    def full(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    before = sorted(good.iterdir())
    with pytest.raises(FeddrmError, match=r"cannot write .*report.html \(No space left on device\): free the disk"):
        build_report([good], good)
    assert sorted(good.iterdir()) == before
