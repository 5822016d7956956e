"""Atomic writes and file locks: after a crash a file holds its old content or its new content, whole."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from feddrm.errors import FeddrmError


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write under a temporary name, wait until the disk has the bytes, then rename.

    Only the owner can read a ``private`` file, from the first byte on, whatever the umask is.
    """
    part = temporary(path)
    try:
        if private:
            part.unlink(missing_ok=True)  # others might be able to read a file left by a crash
            part.touch(mode=0o600, exist_ok=False)
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with suppress(OSError):  # a read-only disk refuses this too
            part.unlink(missing_ok=True)
        raise FeddrmError(
            f"cannot write {path} ({error.strerror}): free the disk or choose another --out; "
            f"what was written before is whole"
        ) from error


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write several files under temporary names, and rename them once all are written. Missing folders are made."""
    parts = {path: temporary(path) for path in files}
    try:
        for path, content in files.items():
            if path.is_dir():
                raise IsADirectoryError(None, "a folder has this name")
            path.parent.mkdir(parents=True, exist_ok=True)
            parts[path].write_bytes(content)
        for path, part in parts.items():
            part.replace(path)
    except OSError as error:
        raise FeddrmError(f"cannot write {path} ({error.strerror}): free the disk or choose another folder") from error
    finally:
        for part in parts.values():
            with suppress(OSError):
                part.unlink(missing_ok=True)


def temporary(path: Path) -> Path:
    """The name under which a file is written before it takes its place."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Whether the lock was free. If so, it is held until the end of the block or of the process.

    On a disk without locks (some network disks of clusters), the lock is always free.
    """
    try:
        file = path.open("a")
    except OSError as error:
        raise FeddrmError(
            f"cannot write {path} ({error.strerror}): free the disk or make its folder writable"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                raise
        yield True
