"""Staged files: several files of a router and a run that change together, old or new as a whole.

The new contents are written under waiting names, which carry their common checksum. Then one small file in the
router's folder, the commit, is replaced by this checksum: from now on the new contents count. They take their places. A
reader looks under the waiting names of the commit first, so no reader sees a mixture, even if the process ends in
between.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from feddrm.errors import FeddrmError
from feddrm.io.atomic import temporary, write_atomically
from feddrm.io.run_files import COMMIT, RunFiles
from feddrm.io.text import broken

WAITING = re.compile(r"\.+(.+)\.([0-9a-f]{12})\.new(\..*part)?")  # .part: the process ended while it was written
CHECKSUM = re.compile(rb"[0-9a-f]{12}")
T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot:
    """The files that one commit made the current ones; '' before the first commit."""

    commit: str

    @classmethod
    def of(cls, router: Path) -> Snapshot:
        """The current snapshot of a router's folder and of the run that it belongs to."""
        path = router / COMMIT
        try:
            content = path.read_bytes()
        except OSError:
            return cls("")
        if not CHECKSUM.fullmatch(content):
            remedy = "put it back from a copy, or remove it and fit the router again"
            raise broken(path, "expected 12 hexadecimal digits", remedy)
        return cls(content.decode())

    def has(self, path: Path) -> bool:
        """Whether there is such a file, in its place or under its waiting name."""
        return _waiting(path, self.commit).exists() or path.exists()

    def read(self, path: Path, read: Callable[[Path], T]) -> T:
        """What ``read`` returns for the file, which may not have taken its place yet."""
        waiting = _waiting(path, self.commit)
        if waiting.exists():
            with suppress(FeddrmError):  # it has just taken its place; other errors are raised below
                return read(waiting)
        return read(waiting if waiting.exists() else path)

    def settle(self, folder: Path) -> None:
        """Let the waiting files of this snapshot take their places, and delete what others have left waiting."""
        for waiting in sorted(folder.glob(".*.new*")):
            match = WAITING.fullmatch(waiting.name)
            with suppress(OSError):  # a file that cannot be moved goes on waiting, and is read there
                if match and match[2] == self.commit and not match[3]:
                    waiting.replace(folder / match[1])
                elif match:
                    waiting.unlink()


def settle_run(run: RunFiles) -> None:
    """Finish or undo what a process has left that ended while it replaced files."""
    with suppress(OSError):
        temporary(run.commit_file).unlink()
    for folder in (run.path, run.router, run.clients, *run.clients.glob("*")):
        Snapshot.of(run.router).settle(folder)


def replace_together(router: Path, public: Mapping[Path, bytes], private: Mapping[Path, bytes]) -> None:
    """Replace files of a router's folder and of its run as a whole. Missing folders are made.

    If a file cannot be written, all stay as they were. Only the owner may read the ``private`` ones.
    """
    contents = {**public, **private}
    checksums = [f"{path.name} {hashlib.sha256(content).hexdigest()}" for path, content in contents.items()]
    commit = checksum("\n".join(checksums).encode())
    try:
        for path, content in contents.items():
            _make_folder(path.parent)
            write_atomically(_waiting(path, commit), content, private=path in private)
        write_atomically(router / COMMIT, commit.encode())
    finally:
        for folder in sorted({path.parent for path in contents}):
            Snapshot.of(router).settle(folder)


def read_whole(router: Path, read: Callable[[Snapshot], T]) -> T:
    """What ``read`` returns for the current snapshot; it reads again if another was committed meanwhile."""
    while True:
        before = Snapshot.of(router)
        try:
            result = read(before)
        except FeddrmError:
            if Snapshot.of(router) == before:
                raise
        else:
            if Snapshot.of(router) == before:
                return result


def checksum(content: bytes) -> str:
    """A short name for a content: the beginning of its SHA-256."""
    return hashlib.sha256(content).hexdigest()[:12]


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FeddrmError(f"cannot create {folder} ({error.strerror}): choose another folder") from error


def _waiting(path: Path, commit: str) -> Path:
    return path.with_name(f".{path.name}.{commit}.new")
