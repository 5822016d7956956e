"""Writing a file so that a crash leaves the old one or the new one, never a part."""

from __future__ import annotations

import os
from pathlib import Path

from feddrm.errors import FeddrmError


def write_atomically(path: Path, content: bytes) -> None:
    """Write under a temporary name, reach the disk, then rename: a crash leaves the old file whole."""
    part = path.with_name(f".{path.name}.part")
    try:
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
        part.unlink(missing_ok=True)
        raise FeddrmError(
            f"cannot write {path} ({error.strerror}): free the disk or choose another --out; "
            f"what was written before is whole"
        ) from error
