"""Findings: what a check has found, with its remedy; and the checks of folders and clocks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from feddrm.errors import FeddrmError

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"
LITTLE, TOO_LITTLE, BLOCK = 2**30, 100 * 2**20, 4096  # bytes of free disk; of its smallest part
AHEAD_SECONDS, BEHIND_SECONDS = 5.0, 300.0  # Flower refuses requests of a clock that differs by more


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: ``level`` is ok, note, warning or problem. A note names something optional."""

    what: str
    level: str
    text: str


def collect(steps: Mapping[str, Callable[[], Iterable[Finding]]]) -> list[Finding]:
    """All findings; one that is a problem does not end the rest."""
    findings: list[Finding] = []
    for what, step in steps.items():
        try:
            findings += step()
        except FeddrmError as error:
            findings.append(Finding(what, PROBLEM, str(error)))
    return findings


def require_writable(place: Path) -> float:
    """Refuse a folder that cannot be written into; returns the time that its file system gave a new file."""
    try:
        with NamedTemporaryFile(dir=place, buffering=0) as file:
            file.write(bytes(BLOCK))  # a full disk may have room for an empty file
            return Path(file.name).stat().st_mtime
    except OSError as error:
        remedy = "free the disk, or give it to the user who runs this"
        raise FeddrmError(f"cannot write into {place} ({error.strerror}): {remedy}") from error


def check_disk(folder: Path) -> Iterator[Finding]:
    """The free space of the folder's disk."""
    free = shutil.disk_usage(folder).free
    level = PROBLEM if free < TOO_LITTLE else WARNING if free < LITTLE else OK
    remedy = "" if level == OK else ": free some, a run stops when its disk is full"
    yield Finding("disk", level, f"{free / 2**30:.1f} GiB are free{remedy}")


def clock_finding(difference: float, whose: str, remedy: str) -> Finding:
    """How far this machine's clock is ahead of another one, in seconds."""
    text = f"{abs(difference):.0f} s {'ahead of' if difference > 0 else 'behind'} {whose}"
    if difference > AHEAD_SECONDS or difference < -BEHIND_SECONDS:
        return Finding("clock", PROBLEM, f"{text}: {remedy}")
    return Finding("clock", OK, text)
