"""The audit trail: every kind of tampering is found, and a crash is not taken for one."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from feddrm.deploy.records import audit_trail
from feddrm.deploy.records.audit_trail import START, AuditTrail, TrailEnd, check_anchors, verify_trail
from refusal import refused


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A trail of five lines."""
    trail = AuditTrail(tmp_path / "audit.jsonl")
    for number in range(5):
        trail.append("round", {"round": number, "answered": ["Zürich"], "loss": 0.1 * number})
    return trail.path


def test_a_whole_trail_is_a_chain_and_goes_on_after_a_restart(path: Path) -> None:
    entries = verify_trail(path)
    assert [entry["number"] for entry in entries] == [1, 2, 3, 4, 5]
    assert [entry["previous"] for entry in entries] == [START, *(entry["hash"] for entry in entries[:-1])]
    again = AuditTrail(path)
    assert again.end == TrailEnd(5, entries[-1]["hash"])
    again.append("finished", {})
    assert [entry["event"] for entry in verify_trail(path)] == ["round"] * 5 + ["finished"]
    assert again.stamp() == {"audit": {"lines": 6, "hash": verify_trail(path)[-1]["hash"]}}


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def rewritten(line: bytes) -> bytes:
    """A line with other content and the hash of that content, as somebody writes it who knows the code."""
    entry = json.loads(line)
    del entry["hash"]
    entry["answered"] = ["lima"]
    return json.dumps({**entry, "hash": audit_trail._digest(entry)}, ensure_ascii=False).encode() + b"\n"


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (lambda lines: [*lines[:2], lines[2].replace(b'"round": 2', b'"round": 7'), *lines[3:]], 3, "was changed"),
        (lambda lines: [*lines[:2], lines[2].replace(b": ", b":"), *lines[3:]], 3, "was changed"),
        (lambda lines: [*lines[:2], b"nonsense\n", *lines[3:]], 3, "was changed"),
        (lambda lines: [*lines[:2], b"[]\n", *lines[3:]], 3, "was changed"),
        (lambda lines: [*lines[:2], rewritten(lines[2]), *lines[3:]], 4, "does not continue the line before"),
        (lambda lines: [*lines[:2], *lines[3:]], 3, "says that it is line 4"),
        (lambda lines: lines[1:], 1, "says that it is line 2"),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3, "says that it is line 2"),
        (lambda lines: [*lines[:2], lines[3], lines[2], lines[4]], 3, "says that it is line 4"),
    ],
    ids=["value", "spaces", "no JSON", "no object", "rewritten", "removed", "first removed", "inserted", "moved"],
)  # fmt: skip
def test_the_first_bad_line_is_named(change, line: int, words: str, path: Path) -> None:  # type: ignore[no-untyped-def]
    path.write_bytes(b"".join(change(lines_of(path))))
    with refused(f"audit.jsonl, line {line}: ", words):
        verify_trail(path)
    with refused(f"line {line}"):
        AuditTrail(path)


def test_lines_cut_off_at_the_end_are_found_by_the_ends_that_others_keep(path: Path) -> None:
    entries = verify_trail(path)
    ends = [("oslo", {"lines": 3, "hash": entries[2]["hash"]}), ("summary.json", {"lines": 5, **_hash(entries[4])})]
    check_anchors(entries, ends)
    path.write_bytes(b"".join(lines_of(path)[:4]))
    short = verify_trail(path)
    check_anchors(short, ends[:1])
    with refused("ends after line 4", "summary.json knows 5 lines", "from line 5 on"):
        check_anchors(short, ends)
    with refused("line 3 is not the one that oslo knows"):
        check_anchors(short, [("oslo", {"lines": 3, **_hash(entries[1])})])


def _hash(entry: dict[str, str]) -> dict[str, str]:
    return {"hash": entry["hash"]}


@pytest.mark.parametrize("kept", [1, 40, -1], ids=["one byte", "some", "all but the end of the line"])
def test_a_line_that_a_crash_cut_off_is_no_alarm_and_is_mended(kept: int, path: Path) -> None:
    *whole, last = lines_of(path)
    path.write_bytes(b"".join(whole) + last[:kept])
    assert len(verify_trail(path)) == 4
    trail = AuditTrail(path)
    trail.append("continued", {})
    entries = verify_trail(path)
    assert [entry["event"] for entry in entries] == ["round"] * 4 + ["mended", "continued"]
    assert entries[4]["bytes_dropped"] == len(last[:kept])


def test_a_full_disk_leaves_no_half_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trail, before = AuditTrail(path), path.read_bytes()

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with refused("No space left", "free the disk"):
            trail.append("round", {"round": 5})
    assert path.read_bytes() == before
    trail.append("round", {"round": 5})
    assert len(verify_trail(path)) == 6


def test_a_run_without_a_trail_is_told_so(tmp_path: Path) -> None:
    with refused("cannot read", "only runs of this version and later"):
        verify_trail(tmp_path / "audit.jsonl")
