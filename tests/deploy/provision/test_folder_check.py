"""What is checked in every folder: versions, dates. More is in the tests of sites and servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from feddrm._version import __version__
from feddrm.deploy.provision import folder_check
from feddrm.deploy.provision.folder_check import check_versions


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
