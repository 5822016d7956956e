"""Files appear whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from feddrm.errors import FeddrmError


def write_whole(files: Mapping[Path, bytes]) -> None:
    """Write every file under a temporary name first; rename only once all of them are on the disk."""
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
