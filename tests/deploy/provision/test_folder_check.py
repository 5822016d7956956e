"""What is checked in every folder: disk, versions, dates. More is in the tests of sites and servers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from feddrm._version import __version__
from feddrm.deploy.provision import folder_check
from feddrm.deploy.provision.folder_check import Finding, check_disk, check_versions, collect
from feddrm.errors import FeddrmError


@pytest.mark.parametrize(("free", "level"), [(2**33, "ok"), (2**29, "warning"), (2**20, "problem")])
def test_little_free_disk_is_told(free: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_check.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    (finding,) = check_disk(tmp_path)
    assert finding.level == level
    assert ("free some" in finding.text) == (level != "ok")


def test_versions_that_do_not_fit_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [finding.level for finding in check_versions(tmp_path)] == ["ok"]
    (tmp_path / "feddrm-0.0.1-py3-none-any.whl").touch()
    (other,) = check_versions(tmp_path)
    assert (other.level, "the folder has feddrm-0.0.1-py3-none-any.whl" in other.text) == ("warning", True)
    assert f"feddrm {__version__}, " in other.text
    monkeypatch.setattr(folder_check, "version", lambda name: "1.40.0")
    (flower,) = check_versions(tmp_path)
    assert flower.level == "problem"
    assert "pip install 'feddrm[deploy]'" in flower.text


def test_a_problem_does_not_end_the_rest() -> None:
    def fails() -> list[Finding]:
        raise FeddrmError("it is broken: mend it")

    good = Finding("b", "ok", "fine")
    assert collect({"a": fails, "b": lambda: [good]}) == [Finding("a", "problem", "it is broken: mend it"), good]
