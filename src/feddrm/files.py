"""Writing a file so that a crash leaves the old one or the new one, never a part; and who may write."""

from __future__ import annotations

import errno
import fcntl
import os
import zipfile
import zlib
from collections.abc import Iterator
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
