"""Atomic writes and locks: files are whole or absent, private files are private, full disks are one line."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from feddrm.io import atomic
from feddrm.io.atomic import changing, locked, write_atomically, write_together
from refusal import refused


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def read_only(*_: object, **__: object) -> None:
    """The error that a read-only disk raises for every operation, even for removing a file that is not there."""
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# One file


def test_a_file_is_replaced_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content in (b"old", b"", b"new\0\xff"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_is_whole_if_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with refused(f"cannot write {path} (No space left on device)", "free the disk", "what was written before is whole"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_reaches_the_disk_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: (events.append("fsync"), fsync(number)))
    monkeypatch.setattr(Path, "replace", lambda self, to: (events.append("rename"), replace(self, to)))
    write_atomically(tmp_path / "x", b"new")
    assert events == ["fsync", "rename", "fsync"]  # the file, then its name in the folder


def test_a_read_only_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(Path, "open", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    with refused(f"cannot write {tmp_path / 'x.json'} (Read-only file system)", "free the disk"):
        write_atomically(tmp_path / "x.json", b"{}")
    with (
        refused(f"cannot write {tmp_path / 'lock'} (Read-only file system)", "make its folder writable"),
        locked(tmp_path / "lock"),
    ):
        pass


@pytest.mark.usefixtures("open_umask")
def test_a_private_file_is_readable_by_its_owner_only_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its temporary file too, and also where a crash or an older version left files that all can read."""
    path, part = tmp_path / "x", tmp_path / ".x.part"
    for old in (path, part):
        old.write_bytes(b"old")
        assert mode(old) == 0o666
    seen: list[tuple[int, int]] = []
    fsync = os.fsync

    def look(number: int) -> None:
        seen.extend((mode(part), part.stat().st_size) for _ in range(part.exists()))
        fsync(number)

    monkeypatch.setattr(os, "fsync", look)
    write_atomically(path, b"secret", private=True)
    assert seen == [(0o600, 6)]
    assert (mode(path), path.read_bytes()) == (0o600, b"secret")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("open_umask")
def test_the_umask_decides_over_other_files(tmp_path: Path) -> None:
    write_atomically(tmp_path / "x", b"{}")
    assert mode(tmp_path / "x") == 0o666


# Several files


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_files_are_written_together_and_folders_are_made(tmp_path: Path) -> None:
    write_together({tmp_path / "a": b"1", tmp_path / "new" / "folder" / "b": b"2"})
    write_together({tmp_path / "a": b"3"})
    assert contents(tmp_path) == {"a": b"3", "new/folder/b": b"2"}


def test_no_file_changes_if_one_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    write_together({a: b"old a", b: b"old b"})
    create = atomic._create

    def no_space_for_c(part: Path, mode: int) -> BinaryIO:
        if part.name == ".c.part":
            full_disk()
        return create(part, mode)

    monkeypatch.setattr(atomic, "_create", no_space_for_c)
    with refused(f"cannot write {c} (No space left on device)", "choose another folder"):
        write_together({a: b"new a", b: b"new b", c: b"new c"})
    assert contents(tmp_path) == {"a": b"old a", "b": b"old b"}


def test_no_file_changes_if_a_folder_has_the_name_of_one(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    b.mkdir()
    for files in ({a: b"1", b: b"2"}, {b: b"2", a: b"1"}):
        with refused(f"cannot write {b} (a folder has this name)"):
            write_together(files)
    assert contents(tmp_path) == {}


# Locks


def lock_elsewhere(path: Path) -> str:
    """Whether another process finds the lock free."""
    code = (
        "import sys; from pathlib import Path; from feddrm.io.atomic import locked\n"
        "with locked(Path(sys.argv[1])) as free: print(free)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    return result.stdout.strip()


@pytest.mark.slow
def test_a_lock_is_held_by_one_process_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path) as free:
        assert free
        assert lock_elsewhere(path) == "False"
    assert lock_elsewhere(path) == "True"


def test_a_disk_without_locks_counts_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(number: int) -> None:
        def flock(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)

    failing(errno.ENOLCK)
    with locked(tmp_path / "lock") as free:
        assert free
    failing(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"), locked(tmp_path / "lock"):
        pass


# Several processes

WRITER = """
import sys
from pathlib import Path
from feddrm.io.atomic import write_atomically
path, letter = Path(sys.argv[1]), sys.argv[2].encode()
for size in range(300):
    write_atomically(path, letter * (1000 + size))
"""


@pytest.mark.slow
def test_of_several_writers_every_file_is_that_of_one(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a" * 1000)
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, letter], stderr=subprocess.PIPE) for letter in "abc"]
    while any(writer.poll() is None for writer in writers):
        content = path.read_bytes()
        assert len(content) >= 1000
        assert len(set(content)) == 1, "a mixture of two"
    assert [writer.communicate()[1] for writer in writers] == [b"", b"", b""]
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_crash_left_is_replaced_and_what_another_writes_is_not(tmp_path: Path) -> None:
    path, part = tmp_path / "x", tmp_path / ".x.part"
    part.write_bytes(b"half of a much longer file")
    write_atomically(path, b"1")
    assert contents(tmp_path) == {"x": b"1"}
    with part.open("wb") as other:
        other.write(b"of another process")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        write_atomically(path, b"2")
        write_together({path: b"3", tmp_path / "y": b"4"})
    assert contents(tmp_path) == {"x": b"3", "y": b"4", ".x.part": b"of another process"}


def test_a_writer_whose_new_file_was_taken_for_an_old_one_takes_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its creation and its lock, another process locks and deletes it."""
    path, part = tmp_path / "x", tmp_path / ".x.part"
    flock, taken = fcntl.flock, []

    def late(file: Any, operation: int) -> None:
        if not taken and part.exists():
            taken.append(part.unlink())
            part.write_bytes(b"of another process")
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    write_atomically(path, b"1")
    assert contents(tmp_path) == {"x": b"1", ".x.part": b"of another process"}


def test_changes_of_a_folder_wait_for_each_other(tmp_path: Path) -> None:
    order, begun = [], threading.Event()

    def second() -> None:
        begun.set()
        with changing(tmp_path):
            order.append("second")

    with changing(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        begun.wait()
        time.sleep(0.05)  # long enough to overtake, were it not for the lock
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []
    with (
        refused(f"cannot open the folder {tmp_path / 'x'} (No such file or directory)", "create it"),
        changing(tmp_path / "x"),
    ):
        pass
