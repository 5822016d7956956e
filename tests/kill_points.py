"""A process that ends at a chosen file operation, played in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

FIRST, SPREAD = 10, 10  # points of every test run; FEDDRM_LONG=1 tries all


class Killed(BaseException):
    """The process is dead. Nothing catches this."""


class _File:
    """A file whose content reaches the disk in two halves, as a kill in the midst of a write leaves it."""

    def __init__(self, file: Any, step: Callable[[], None]) -> None:
        self.file, self.step = file, step

    def write(self, content: Any) -> int:
        half = len(content) // 2
        self.file.write(content[:half])
        self.file.flush()
        self.step()
        self.file.write(content[half:])
        self.file.flush()
        return len(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class FileOperations:
    """Counts what changes the disk. The operation number ``limit``, from 0, is not done any more, nor is any later one.

    A dead process cleans up nothing, so neither does a ``finally`` after the kill.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.count, self.limit = 0, limit

    def step(self) -> None:
        if self.limit is not None and self.count >= self.limit:
            raise Killed
        self.count += 1

    @contextmanager
    def __call__(self) -> Iterator[FileOperations]:
        """Count, or kill, within the block."""
        really_open = Path.open

        def open_file(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
            if set(mode) & set("wax+"):
                self.step()
                return _File(really_open(path, mode, *rest, **more), self.step)
            return really_open(path, mode, *rest, **more)

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def operation(*arguments: Any, **options: Any) -> Any:
                self.step()
                return real(*arguments, **options)

            return operation

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "open", open_file)
            for owner, name in [(Path, n) for n in ("replace", "rename", "unlink", "mkdir", "touch")] + [(os, "fsync")]:
                patch.setattr(owner, name, counted(getattr(owner, name)))
            yield self


def count_operations(work: Callable[[], object]) -> int:
    """The number of file operations of undisturbed work."""
    with FileOperations()() as operations:
        work()
    return operations.count


def kill(work: Callable[[], object], point: int) -> None:
    """Do the work until this file operation."""
    with suppress(Killed), FileOperations(point)():
        work()
        raise AssertionError(f"the work ended before its file operation {point}")


def points(total: int) -> list[int]:
    """The file operations to end at: all of them, or the first ones and some up to the last."""
    if os.environ.get("FEDDRM_LONG") or total <= FIRST + SPREAD:
        return list(range(total))
    return [*range(FIRST), *(total - 1 - round(i * (total - FIRST) / SPREAD) for i in reversed(range(SPREAD)))]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
