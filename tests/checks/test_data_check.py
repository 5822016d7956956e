"""Datasets that are found, missing and damaged."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from feddrm.checks import data_check
from feddrm.checks.data_check import check_data
from feddrm.checks.findings import Finding
from feddrm.io.data_files import Remote, file_md5
from feddrm.io.official_files import HEART, TEN


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No dataset of this machine is seen."""
    monkeypatch.setenv("FEDDRM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDDRM_DATA", raising=False)
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def found(folder: Path | None) -> dict[str, Finding]:
    return {finding.what.removeprefix("data "): finding for finding in check_data(folder)}


def test_missing_datasets_are_notes_with_their_remedy(empty_cache: Path) -> None:
    findings = found(empty_cache)
    assert {finding.level for finding in findings.values()} == {"note"}
    assert str(empty_cache) in findings["heart"].text
    assert "--download" in findings["cifar10"].text
    assert "FLamby" in findings["tcga_brca"].text


def test_a_folder_of_data_that_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDRM_DATA", str(tmp_path / "none"))
    assert found(None)["data"].level == "problem"


def test_files_are_compared_with_the_official_checksums(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remotes = []
    for remote in HEART:
        (empty_cache / remote.filename).write_text(remote.url)
        remotes.append(Remote(remote.url, file_md5(empty_cache / remote.filename)))
    bad = found(empty_cache)["heart"]
    assert (bad.level, f"{HEART[0].filename} is not the official file" in bad.text) == ("problem", True)
    assert bad.text.endswith(f"replace it by {HEART[0].url}")
    monkeypatch.setattr(data_check, "HEART", tuple(remotes))
    assert found(empty_cache)["heart"].level == "ok"
    with (empty_cache / HEART[3].filename).open("a") as file:
        file.write("x")
    assert HEART[3].filename in found(empty_cache)["heart"].text


def test_a_damaged_packed_file_is_found(empty_cache: Path) -> None:
    paths = [empty_cache / name for name in TEN.alternatives[0]]
    for path in paths:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("blob.npy", b"0123456789" * 100)
    assert found(empty_cache)["cifar10"].level == "ok"
    content = bytearray(paths[1].read_bytes())
    content[200] ^= 1
    paths[1].write_bytes(content)
    bad = found(empty_cache)["cifar10"]
    assert (bad.level, bad.text) == ("problem", f"{paths[1]} is damaged (blob.npy): remove it and fetch it again")
    paths[1].write_bytes(content[:300])
    assert f"{paths[1]} is damaged" in found(empty_cache)["cifar10"].text


def test_an_archive_and_a_folder_of_cifar(empty_cache: Path) -> None:
    (empty_cache / TEN.archive.filename).write_bytes(b"not the archive")
    assert found(empty_cache)["cifar10"].text.endswith(TEN.archive.url)
    (empty_cache / TEN.archive.filename).unlink()
    folder = empty_cache / TEN.folder
    folder.mkdir()
    for name in TEN.parts:
        (folder / name).touch()
    assert found(empty_cache)["cifar10"].level == "ok"
    (folder / TEN.parts[2]).unlink()
    assert f"has no {TEN.parts[2]}" in found(empty_cache)["cifar10"].text


@pytest.mark.data
def test_the_real_files_are_the_official_ones(real_data: Path) -> None:
    assert {finding.level for finding in check_data(real_data)} <= {"ok", "note"}


def test_an_empty_file_is_told(empty_cache: Path) -> None:
    for name in ("brca.csv", "centers.csv", "train_test_split.csv"):
        (empty_cache / name).write_text("pid\n")
    assert found(empty_cache)["tcga_brca"].level == "ok"
    (empty_cache / "centers.csv").write_text("")
    assert "centers.csv is empty" in found(empty_cache)["tcga_brca"].text
    shutil.rmtree(empty_cache)
