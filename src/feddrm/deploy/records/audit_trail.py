"""The audit trail of a run: what the server decided, one JSON object per line, each with the hash of the one before.

A changed, removed, inserted or moved line breaks the chain. Lines cut off at the end leave a whole chain. So its end
(number of lines, hash of the last) is also kept elsewhere: every message to a site carries it, the site writes it to
its own event log, and ``summary.json`` has the last one.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from feddrm.deploy.rotating_log import utc
from feddrm.errors import FeddrmError
from feddrm.io.text import json_line, read_bytes

AUDIT = "audit.jsonl"
START = "0" * 64  # stands for the hash before the first line


@dataclass(frozen=True)
class TrailEnd:
    """Where a trail ends: the number of its lines and the hash of the last."""

    lines: int = 0
    hash: str = START

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class AuditTrail:
    """Appends to a trail. Every line is on disk before :meth:`append` returns."""

    def __init__(self, path: Path) -> None:
        self.path, mended = path, 0
        if path.exists():
            content = read_bytes(path, "give it to the user of the server")
            mended = len(content) - (content.rfind(b"\n") + 1)
            if mended:  # a crash cut the last line off
                os.truncate(path, len(content) - mended)
        entries = verify_trail(path) if path.exists() else []
        self.end = TrailEnd(len(entries), entries[-1]["hash"]) if entries else TrailEnd()
        if mended:
            self.append("mended", {"bytes_dropped": mended})

    def append(self, event: str, details: Mapping[str, Any]) -> None:
        """Add a line. If it cannot be written, nothing of it stays, and the run stops."""
        number = self.end.lines + 1
        entry = {"number": number, "time": utc(time.time()), "previous": self.end.hash, "event": event, **details}
        digest = _digest(entry)
        before = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("ab") as file:
                file.write(json_line({**entry, "hash": digest}))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, before)
            raise FeddrmError(
                f"cannot write {self.path} ({error.strerror}): free the disk, then 'feddrm deploy run' goes on"
            ) from error
        self.end = TrailEnd(number, digest)

    def stamp(self) -> dict[str, Any]:
        """The field of a message's header that tells a site the trail's end."""
        return {"audit": self.end.as_dict()}


def verify_trail(path: Path) -> list[dict[str, Any]]:
    """All lines of a trail, if they form one chain; the first that does not is named.

    A last line without its end was cut off by a crash, and is left out: the server's next start removes it.
    """
    lines = read_bytes(path, "only runs of this version and later have an audit trail").split(b"\n")[:-1]
    entries: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        previous = entries[-1]["hash"] if entries else START
        if reason := _fault(line, number, previous):
            raise FeddrmError(f"{path}, line {number}: {reason}: compare it with a copy")
        entries.append(json.loads(line))
    return entries


def _fault(line: bytes, number: int, previous: str) -> str | None:
    """What is wrong with a line, None if nothing is."""
    try:
        entry = json.loads(line)
        changed = line + b"\n" != json_line(entry) or entry.pop("hash") != _digest(entry)
        stated = entry["number"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        changed, stated = True, number
    if changed:
        return "it was changed, because its hash is not that of its content"
    if stated != number:
        return f"it says that it is line {stated}, so a line was removed, inserted or moved"
    return None if entry["previous"] == previous else "it does not continue the line before it, so one was replaced"


def check_anchors(entries: list[dict[str, Any]], anchors: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Refuse a trail that lacks an end which was noted elsewhere; each comes with the place where it was noted."""
    for place, end in anchors:
        lines = end["lines"]
        if lines > len(entries):
            raise FeddrmError(
                f"the trail ends after line {len(entries)}, and {place} knows {lines} lines: "
                f"lines were cut off from line {len(entries) + 1} on: compare it with a copy"
            )
        if lines and entries[lines - 1]["hash"] != end["hash"]:
            raise FeddrmError(f"line {lines} is not the one that {place} knows: it was replaced: compare with a copy")


def _digest(entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(json_line(entry)).hexdigest()
