"""Atomic writes and file locks: after a crash a file holds its old content or its new content, whole."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from feddrm.errors import FeddrmError


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write under a temporary name, wait until the disk has the bytes, then rename.

    Only the owner can read a ``private`` file, from the first byte on, whatever the umask is. Of several processes that
    write at once, the last one's content stays.
    """
    part = None
    try:
        part, file = _new_part(path, 0o600 if private else 0o666)
        with file:
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
        if part is not None:
            _unlink(part)
        raise FeddrmError(
            f"cannot write {path} ({error.strerror}): free the disk or choose another place; "
            f"what was written before is whole"
        ) from error


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write several files under temporary names, and rename them once all are written. Missing folders are made."""
    parts: dict[Path, Path] = {}
    try:
        with ExitStack() as opened:
            for path, content in files.items():
                if path.is_dir():
                    raise IsADirectoryError(None, "a folder has this name")
                path.parent.mkdir(parents=True, exist_ok=True)
                parts[path], file = _new_part(path, 0o666)
                opened.enter_context(file).write(content)
                file.flush()
            for path in files:
                parts[path].replace(path)
    except OSError as error:
        raise FeddrmError(f"cannot write {path} ({error.strerror}): free the disk or choose another folder") from error
    finally:
        for part in parts.values():
            _unlink(part)


def temporary(path: Path) -> Path:
    """The name under which a file is written before it takes its place."""
    return path.with_name(f".{path.name}.part")


def _new_part(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """A new file to write into, locked until it is closed, under a temporary name.

    A file of that name without a lock was left by a crash, and goes. Where another process writes it, or a disk has no
    locks to ask, the name is a random one.
    """
    part = temporary(path)
    with suppress(OSError), part.open("rb") as left:
        fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _names(part, left):
            part.unlink()
    try:
        return part, _create(part, mode)
    except FileExistsError:
        part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
        return part, _create(part, mode)


def _create(part: Path, mode: int) -> BinaryIO:
    file = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        own = _names(part, file)
    except BlockingIOError:
        own = False
    except OSError:  # a disk without locks
        own = True
    if not own:  # before it was locked, another process took it for one left by a crash, and deletes it
        file.close()
        raise FileExistsError(part)
    return file


def _names(part: Path, file: BinaryIO) -> bool:
    """Whether the path is still that of the open file."""
    try:
        return os.path.samestat(part.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _unlink(part: Path) -> None:
    with suppress(OSError):  # a read-only disk refuses this too
        part.unlink(missing_ok=True)


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """One process at a time, for the change of a file in this folder by what it holds; others wait."""
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise FeddrmError(f"cannot open the folder {folder} ({error.strerror}): create it first") from error
    try:
        with suppress(OSError):  # some network disks have no locks
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[bool]:
    """Whether the lock was free. If so, it is held until the end of the block or of the process.

    Whoever only looks takes it ``shared``: two that look at once do not take each other for its owner.

    On a disk without locks (some network disks of clusters), the lock is always free.
    """
    try:
        file = path.open("a+")  # network disks share only what can be read
    except OSError as error:
        raise FeddrmError(
            f"cannot write {path} ({error.strerror}): free the disk or make its folder writable"
        ) from error
    with file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                raise
        yield True
