"""Atomic writes: after a crash a file is the old one or the new one. And a lock for whoever writes."""

from __future__ import annotations

import errno
import fcntl
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from feddrm.errors import FeddrmError

# What NumPy makes of an .npz file that is cut off, damaged, or something else.
BROKEN_NPZ = (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write under a temporary name, reach the disk, then rename: a crash leaves the old file whole.

    A ``private`` file is readable by its owner only, from the first byte on, whatever the umask says.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        if private:
            part.unlink(missing_ok=True)  # what a crash left may be open to others
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
        with suppress(OSError):  # a disk that takes nothing refuses this too
            part.unlink(missing_ok=True)
        raise FeddrmError(
            f"cannot write {path} ({error.strerror}): free the disk or choose another --out; "
            f"what was written before is whole"
        ) from error


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write several files under temporary names; rename them only once all are written. Folders are made."""
    parts = {path: path.with_name(f".{path.name}.part") for path in files}
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


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Whether the lock was free; if so it is held meanwhile, and let go with the process at the latest.

    A disk that knows no locks (some of those that clusters share) counts as free.
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
