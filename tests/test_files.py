from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from feddrm.errors import FeddrmError
from feddrm.files import locked, write_atomically


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
