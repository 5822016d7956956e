"""Findings, and the checks of folders and clocks."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from feddrm.checks import findings
from feddrm.checks.findings import Finding, check_disk, clock_finding, collect, require_writable
from feddrm.errors import FeddrmError
from full_disk import no_room
from refusal import refused


@pytest.mark.parametrize(("free", "level"), [(2**33, "ok"), (2**29, "warning"), (2**20, "problem")])
def test_little_free_disk_is_told(free: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    (finding,) = check_disk(tmp_path)
    assert finding.level == level
    assert ("free some" in finding.text) == (level != "ok")


def test_a_problem_does_not_end_the_rest() -> None:
    def fails() -> list[Finding]:
        raise FeddrmError("it is broken: mend it")

    good = Finding("b", "ok", "fine")
    assert collect({"a": fails, "b": lambda: [good]}) == [Finding("a", "problem", "it is broken: mend it"), good]


def test_a_folder_is_tried_by_a_file_that_is_removed_again(tmp_path: Path) -> None:
    assert abs(require_writable(tmp_path) - time.time()) < 60
    assert not list(tmp_path.iterdir())
    with refused("cannot write into", str(tmp_path / "none"), "give it to the user"):
        require_writable(tmp_path / "none")


def test_a_folder_without_room_for_a_block_is_refused(tmp_path: Path) -> None:
    """A full disk often has room for an empty file: a site was started there, and ended without a word."""
    with no_room(), refused(f"cannot write into {tmp_path}", "free the disk"):
        require_writable(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("seconds", "level", "words"),
    [(0.4, "ok", "0 s ahead of"), (6, "problem", "6 s ahead of"), (-300, "ok", "behind"), (-301, "problem", "behind")],
)
def test_a_clock_may_be_far_behind_but_not_ahead(seconds: float, level: str, words: str) -> None:
    finding = clock_finding(seconds, "the server's", "set both by NTP")
    assert (finding.what, finding.level) == ("clock", level)
    assert words in finding.text
    assert finding.text.endswith(": set both by NTP") == (level == "problem")
