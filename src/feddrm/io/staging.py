"""Staged files: several files that change together with a router's manifest, old or new as a whole.

The new contents are written under waiting names, which carry the checksum of the new manifest. Replacing the manifest
commits all of them in one step. Then they take their places. A reader looks under the waiting name of the manifest
that it has read, so it matters to nobody if the process ends in between.
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
from feddrm.io.atomic import write_atomically
from feddrm.io.run_files import MANIFEST

WAITING = re.compile(r"\.+(.+)\.([0-9a-f]{12})\.new(\.part)?")  # .part: the process ended while it was written
T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot:
    """The files that belong to one manifest, by its ``version``: the beginning of its checksum, '' without any."""

    version: str

    @classmethod
    def of(cls, router: Path) -> Snapshot:
        """The snapshot that is committed in a router's folder."""
        try:
            return cls(version_of((router / MANIFEST).read_bytes()))
        except OSError:
            return cls("")

    def has(self, path: Path) -> bool:
        """Whether there is such a file, in its place or under its waiting name."""
        return _waiting(path, self.version).exists() or path.exists()

    def read(self, path: Path, read: Callable[[Path], T]) -> T:
        """What ``read`` returns for the file, which may not have taken its place yet."""
        waiting = _waiting(path, self.version)
        if waiting.exists():
            with suppress(FeddrmError):  # it has just taken its place; other errors are raised below
                return read(waiting)
        return read(waiting if waiting.exists() else path)

    def settle(self, folder: Path) -> None:
        """Let the waiting files of this snapshot take their places, and delete what others have left waiting."""
        for waiting in sorted(folder.glob(".*.new*")):
            match = WAITING.fullmatch(waiting.name)
            with suppress(OSError):  # a file that cannot be moved goes on waiting, and is read there
                if match and match[2] == self.version and not match[3]:
                    waiting.replace(folder / match[1])
                elif match:
                    waiting.unlink()


def version_of(manifest: bytes) -> str:
    """The beginning of a manifest's checksum."""
    return hashlib.sha256(manifest).hexdigest()[:12]


def replace_together(
    router: Path, manifest: bytes, public: Mapping[Path, bytes], private: Mapping[Path, bytes]
) -> None:
    """Replace the manifest in a router's folder and with it, as a whole, other files. Missing folders are made.

    If a file cannot be written, all stay as they were. Only the owner may read the ``private`` ones.
    """
    version, contents = version_of(manifest), {**public, **private}
    try:
        for path, content in contents.items():
            _make_folder(path.parent)
            write_atomically(_waiting(path, version), content, private=path in private)
        _make_folder(router)
        write_atomically(router / MANIFEST, manifest)
    finally:
        for folder in sorted({path.parent for path in contents}):
            Snapshot.of(router).settle(folder)


def read_whole(router: Path, read: Callable[[Snapshot], T]) -> T:
    """What ``read`` returns for the committed snapshot; it reads again if another was committed meanwhile."""
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


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FeddrmError(f"cannot create {folder} ({error.strerror}): choose another folder") from error


def _waiting(path: Path, version: str) -> Path:
    return path.with_name(f".{path.name}.{version}.new")
