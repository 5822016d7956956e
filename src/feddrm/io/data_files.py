"""Dataset files: the folders where they are searched, and their download."""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from feddrm.errors import FeddrmError

BLOCK = 1 << 18


@dataclass(frozen=True)
class Remote:
    """A file to download, and the checksum that it must have."""

    url: str
    md5: str

    @property
    def filename(self) -> str:
        return self.url.rsplit("/", 1)[1]


def cache_folder() -> Path:
    """The folder for downloads: FEDDRM_CACHE, or feddrm in the user's cache folder."""
    if folder := os.environ.get("FEDDRM_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feddrm"


def search_folders(data_dir: str | Path | None) -> list[Path]:
    """The folders to search, in order: ``data_dir``, FEDDRM_DATA, the user's cache."""
    if data_dir is not None and not Path(data_dir).is_dir():
        raise FeddrmError(f"data folder '{data_dir}' does not exist: give an existing folder or leave it out")
    given = [Path(p) for p in (data_dir, os.environ.get("FEDDRM_DATA")) if p]
    return [*given, cache_folder()]


def find(alternatives: Sequence[Sequence[str]], data_dir: str | Path | None) -> list[Path] | None:
    """The first complete set of files: in each folder, each set of ``alternatives`` is tried in turn."""
    for folder in search_folders(data_dir):
        for names in alternatives:
            paths = [folder / name for name in names]
            if all(p.exists() for p in paths):
                return paths
    return None


def obtain(
    dataset: str,
    alternatives: Sequence[Sequence[str]],
    remotes: Sequence[Remote],
    *,
    data_dir: str | Path | None,
    download: bool,
) -> list[Path]:
    """Find a dataset's files, or download them if that is allowed; otherwise the error says what to do."""
    if paths := find(alternatives, data_dir):
        return paths
    if download and remotes:
        target = Path(data_dir) if data_dir is not None else cache_folder()
        return [fetch(remote, target) for remote in remotes]
    folders = ", ".join(str(f) for f in search_folders(data_dir))
    files = " or ".join(" + ".join(names) for names in alternatives)
    remedy = f"put {files} into one of them (or point --data-dir or FEDDRM_DATA at it)"
    if remotes:
        remedy += f", or allow the download with --download ({remotes[0].url})"
    raise FeddrmError(f"no files of '{dataset}' in {folders}: {remedy}")


def fetch(remote: Remote, folder: Path) -> Path:
    """Download a file with a progress bar. An interrupted download continues where it stopped.

    The file gets its own name only when it is complete and its checksum is right.
    """
    target = folder / remote.filename
    part = target.with_name(target.name + ".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if target.exists() and file_md5(target) == remote.md5:
            return target
        _receive(remote.url, part)
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise FeddrmError(
            f"could not download {remote.url} ({reason}): check the network and run again to resume, "
            f"or put {remote.filename} into {folder} yourself"
        ) from error
    except OSError as error:
        raise FeddrmError(
            f"could not write {error.filename or part} ({error.strerror}): free it or choose another --data-dir"
        ) from error
    if (md5 := file_md5(part)) != remote.md5:
        part.unlink()
        raise FeddrmError(
            f"{remote.url} arrived with md5 {md5}, expected {remote.md5}: it was removed; run again, "
            f"or put the official {remote.filename} into {folder}"
        )
    part.replace(target)
    return target


def file_md5(path: Path) -> str:
    """The MD5 checksum of a file, as the official sites publish it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _receive(url: str, part: Path) -> None:
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the server has no more bytes; the checksum then decides
            return
        raise
    with response:
        resumed = response.status == 206
        start = start if resumed else 0
        length = response.headers.get("Content-Length")
        total = int(length) + start if length else None
        with _progress() as bar, part.open("ab" if resumed else "wb") as file:
            task = bar.add_task(part.name.removesuffix(".part"), total=total, completed=start)
            while block := response.read(BLOCK):
                file.write(block)
                bar.advance(task, len(block))
            if total is not None and file.tell() < total:
                raise ConnectionError(f"connection closed after {file.tell()} of {total} bytes")
            file.flush()
            os.fsync(file.fileno())


def _progress() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
