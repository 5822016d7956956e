"""The installed feddrm as a wheel, so that every site can install the very same code from a file."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path

from feddrm._version import __version__
from feddrm.errors import FeddrmError

NAME = f"feddrm-{__version__}-py3-none-any.whl"
DATE = (2020, 1, 1, 0, 0, 0)  # the same files give the same bytes, and so the same checksum
TAGS = b"Wheel-Version: 1.0\nGenerator: feddrm\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@cache
def wheel() -> bytes:
    """The wheel's bytes: the package as it is imported, with the metadata of its installation.

    It is packed here and not built, so that it needs neither a network nor a source tree.
    """
    content = _package()
    folder = f"feddrm-{__version__}.dist-info"
    content |= {f"{folder}/{name}": text for name, text in _metadata().items()}
    record = "".join(f"{name},sha256={_hash(data)},{len(data)}\n" for name, data in content.items())
    content[f"{folder}/RECORD"] = f"{record}{folder}/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, data)
    return packed.getvalue()


def checksum() -> str:
    """The wheel's SHA-256, as ``sha256sum`` shows it."""
    return hashlib.sha256(wheel()).hexdigest()


def _package() -> dict[str, bytes]:
    root = Path(str(files("feddrm")))
    paths = (path for path in sorted(root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {f"feddrm/{path.relative_to(root).as_posix()}": path.read_bytes() for path in paths}


def _metadata() -> dict[str, bytes]:
    try:
        installed = distribution("feddrm")
    except PackageNotFoundError as error:
        raise FeddrmError("feddrm is not installed, so it cannot be packed for sites: pip install it first") from error
    about = installed.read_text("METADATA") or ""
    # In an editable installation the metadata may be older than the source.
    about = re.sub(r"^Version: .*$", f"Version: {__version__}", about, count=1, flags=re.MULTILINE)
    texts = {"METADATA": about, "entry_points.txt": installed.read_text("entry_points.txt") or ""}
    return {**{name: text.encode() for name, text in texts.items()}, "WHEEL": TAGS}


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
