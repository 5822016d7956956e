from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from feddrm.errors import FeddrmError
from feddrm.io.atomic import locked, write_atomically


def refuse(*_: object, **__: object) -> None:
    """What a read-only disk says to everything, to removing what is not there too."""
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_read_only_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(FeddrmError, match=r"cannot write .*x.json \(Read-only file system\)"):
        write_atomically(tmp_path / "x.json", b"{}")
    with (
        pytest.raises(FeddrmError, match=r"cannot write .*lock \(Read-only file system\)"),
        locked(tmp_path / "lock"),
    ):
        pass


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("open_umask")
def test_a_private_file_is_its_owners_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under its temporary name, too, and where a crash or an older version left files open to all."""
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
def test_other_files_are_as_the_umask_says(tmp_path: Path) -> None:
    write_atomically(tmp_path / "x", b"{}")
    assert mode(tmp_path / "x") == 0o666
