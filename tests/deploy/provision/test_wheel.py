"""The wheel that sites install."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from feddrm._version import __version__
from feddrm.deploy.provision import wheel
from feddrm.deploy.provision.wheel import NAME, checksum
from refusal import refused


def test_the_same_code_gives_the_same_bytes() -> None:
    first = wheel.wheel()
    wheel.wheel.cache_clear()
    assert wheel.wheel() == first
    assert hashlib.sha256(first).hexdigest() == checksum()


def test_it_holds_the_package_and_no_compiled_files() -> None:
    with zipfile.ZipFile(BytesIO(wheel.wheel())) as archive:
        names = archive.namelist()
        about = archive.read(f"feddrm-{__version__}.dist-info/METADATA").decode()
    assert {"feddrm/__init__.py", "feddrm/deploy/flower/apps.py"} <= set(names)
    assert any(name.startswith("feddrm/serve/console/static/") for name in names)
    assert not [name for name in names if "__pycache__" in name]
    assert f"\nVersion: {__version__}\n" in about


def test_without_an_installation_there_is_no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise wheel.PackageNotFoundError(name)

    monkeypatch.setattr(wheel, "distribution", missing)
    with refused("not installed", "pip install"):
        wheel._metadata()


@pytest.mark.slow
def test_pip_installs_it_and_the_command_is_there(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(wheel.wheel())
    words = [
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "here"),
        str(tmp_path / NAME),
    ]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    script = "import feddrm, feddrm.deploy; print(feddrm.__version__, feddrm.__file__)"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(tmp_path / "here")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == [__version__, str(tmp_path / "here" / "feddrm" / "__init__.py")]
    assert "feddrm.cli:main" in (tmp_path / "here" / f"feddrm-{__version__}.dist-info" / "entry_points.txt").read_text()
