"""Staged files: a reader sees the old files or the new ones, and what was left waiting is finished or undone."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from feddrm.errors import FeddrmError
from feddrm.io import staging
from feddrm.io.run_files import RunFiles
from feddrm.io.staging import Snapshot, read_whole, replace_together, settle_run
from feddrm.io.text import read_bytes
from kill_points import contents, count_operations, kill
from refusal import refused

OLD = {
    "router/manifest.json": b"old",
    "summary.json": b"old summary",
    "clients/oslo/head": b"old head",
    "clients/fitted-0.safetensors": b"old shard",
}
NEW = {name: content.replace(b"old", b"new") for name, content in OLD.items()}


def write(run: Path, files: dict[str, bytes]) -> None:
    public = {run / name: content for name, content in files.items() if "clients" not in name}
    private = {run / name: content for name, content in files.items() if "clients" in name}
    replace_together(run / "router", public, private)


def read(run: Path) -> dict[str, bytes]:
    now = Snapshot.of(run / "router")
    return {name: now.read(run / name, lambda path: read_bytes(path, "")) for name in OLD if now.has(run / name)}


def visible(run: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(run).items() if name != "router/.commit"}


@pytest.mark.usefixtures("open_umask")
def test_files_take_their_places_and_private_ones_are_their_owners(tmp_path: Path) -> None:
    for files in (OLD, NEW):
        write(tmp_path, files)
        assert visible(tmp_path) == read(tmp_path) == files
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in NEW}
    assert modes == {name: 0o600 if "clients" in name else 0o666 for name in NEW}


@pytest.mark.parametrize("before", [{}, OLD], ids=["first", "again"])
def test_files_are_old_or_new_and_settle_to_what_was_read(before: dict[str, bytes], tmp_path: Path) -> None:
    def begin(name: str) -> Path:
        if before:
            write(tmp_path / name, before)
        return tmp_path / name

    first, seen = begin("count"), []
    for point in range(count_operations(lambda: write(first, NEW))):
        run = begin(f"run-{point}")
        kill(lambda run=run: write(run, NEW), point)
        now = read(run)
        assert now in (before, NEW)
        seen.append(now == NEW)
        settle_run(RunFiles(run))
        assert visible(run) == read(run) == now
        kill(lambda run=run: write(run, NEW), 3)
        write(run, NEW)
        assert visible(run) == NEW
    assert seen == sorted(seen), "there is one moment at which all change"
    assert set(seen) == {False, True}


def test_nothing_changes_if_a_file_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, OLD)
    really: Callable[..., None] = staging.write_atomically

    def full(path: Path, content: bytes, *, private: bool = False) -> None:
        if content == b"new head":
            raise FeddrmError("the disk is full")
        really(path, content, private=private)

    monkeypatch.setattr(staging, "write_atomically", full)
    with refused("the disk is full"):
        write(tmp_path, NEW)
    assert visible(tmp_path) == OLD


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "clients").write_text("a file")
    with refused(f"cannot create {tmp_path / 'clients' / 'oslo'}", "choose another folder"):
        write(tmp_path, NEW)


def test_a_reader_starts_again_if_the_files_are_replaced_meanwhile(tmp_path: Path) -> None:
    """Also if it failed because of that."""
    write(tmp_path, OLD)
    for fails in (False, True):
        attempts: list[dict[str, bytes]] = []

        def read_slowly(now: Snapshot, fails: bool = fails, attempts: list[dict[str, bytes]] = attempts) -> bytes:
            first = now.read(tmp_path / "summary.json", lambda path: read_bytes(path, ""))
            if not attempts:
                write(tmp_path, NEW if first == b"old summary" else OLD)
            attempts.append(read(tmp_path))
            if fails and len(attempts) == 1:
                raise FeddrmError("the files differ")
            return first

        assert read_whole(tmp_path / "router", read_slowly) == attempts[1]["summary.json"]
        assert len(attempts) == 2


def test_an_error_of_an_unchanged_folder_is_raised(tmp_path: Path) -> None:
    def fail(_: Snapshot) -> None:
        raise FeddrmError("broken")

    with refused("broken"):
        read_whole(tmp_path, fail)


def test_a_waiting_file_may_take_its_place_while_it_is_read(tmp_path: Path) -> None:
    path, now = tmp_path / "x", Snapshot("0123456789ab")
    waiting = tmp_path / ".x.0123456789ab.new"
    waiting.write_bytes(b"new")

    def read_late(place: Path) -> bytes:
        waiting.rename(path) if waiting.exists() else None
        return read_bytes(place, "")

    assert now.read(path, read_late) == b"new"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"../../passwd", b"", b"0123456789ab\n", b"0123456789AB"])
def test_a_damaged_commit_is_named_and_a_missing_one_is_not_needed(content: bytes, tmp_path: Path) -> None:
    write(tmp_path, OLD)
    commit = tmp_path / "router" / ".commit"
    commit.write_bytes(content)
    for use in (lambda: read(tmp_path), lambda: settle_run(RunFiles(tmp_path))):
        with refused(f"{commit} is broken (expected 12 hexadecimal digits)", "remove it and fit the router again"):
            use()
    with refused(f"{commit} is broken"):
        read_whole(tmp_path / "router", lambda now: now)
    commit.unlink()
    assert read(tmp_path) == OLD
    commit.write_bytes(content)
    write(tmp_path, NEW)
    assert visible(tmp_path) == read(tmp_path) == NEW, "another commit replaces it"
