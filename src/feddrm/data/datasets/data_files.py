"""Where dataset files are looked for, and how they are fetched when that is allowed."""

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
    """A file on the network, trusted only if its checksum agrees."""

    url: str
    md5: str

    @property
    def filename(self) -> str:
        return self.url.rsplit("/", 1)[1]


def cache_folder() -> Path:
    """Where downloads go: FEDDRM_CACHE, or feddrm under the user's cache folder."""
    if own := os.environ.get("FEDDRM_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feddrm"


def search_folders(data_dir: str | Path | None) -> list[Path]:
    """Folders to look in, in order: the one asked for, FEDDRM_DATA, the per-user cache."""
    if data_dir is not None and not Path(data_dir).is_dir():
        raise FeddrmError(f"data folder '{data_dir}' does not exist: give an existing folder or leave it out")
    named = [Path(p) for p in (data_dir, os.environ.get("FEDDRM_DATA")) if p]
    return [*named, cache_folder()]


def find(alternatives: Sequence[Sequence[str]], data_dir: str | Path | None) -> list[Path] | None:
    """The first complete set of files, trying each folder with each set in turn."""
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
    """Find a dataset's files, fetch them where allowed, or say in one line what to do."""
    if found := find(alternatives, data_dir):
        return found
    if download and remotes:
        target = Path(data_dir) if data_dir is not None else cache_folder()
        return [fetch(remote, target) for remote in remotes]
    looked = ", ".join(str(f) for f in search_folders(data_dir))
    wanted = " or ".join(" + ".join(names) for names in alternatives)
    remedy = f"put {wanted} into one of them (or point --data-dir or FEDDRM_DATA at it)"
    if remotes:
        remedy += f", or allow the download with --download ({remotes[0].url})"
    raise FeddrmError(f"no files of '{dataset}' in {looked}: {remedy}")


def fetch(remote: Remote, folder: Path) -> Path:
    """Download with a progress bar; an interrupted one goes on where it stopped.

    The file appears under its own name only when it is complete and its checksum agrees.
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
    if (got := file_md5(part)) != remote.md5:
        part.unlink()
        raise FeddrmError(
            f"{remote.url} arrived with md5 {got}, expected {remote.md5}: it was removed; run again, "
            f"or put the official {remote.filename} into {folder}"
        )
    part.replace(target)
    return target


def file_md5(path: Path) -> str:
    """The checksum under which the official sites publish their files."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _receive(url: str, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing left to send: the checksum decides
            return
        raise
    with response:
        resumed = response.status == 206
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = int(length) + have if length else None
        with _progress() as bar, part.open("ab" if resumed else "wb") as file:
            task = bar.add_task(part.name.removesuffix(".part"), total=total, completed=have)
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
