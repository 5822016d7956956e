"""The wheel and the source distribution: what they hold, and a fresh environment that has the wheel alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
import yaml

from feddrm import __version__

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.package, pytest.mark.slow]


def call(*arguments: str | Path, cwd: Path = ROOT) -> str:
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(a) for a in arguments], cwd=cwd, env=plain, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment."""
    folder = tmp_path_factory.mktemp("environment")
    call(sys.executable, "-m", "venv", folder)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def dist(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of wheel and source distribution; the wheel is built from the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    call(python, "-m", "pip", "install", "--quiet", "build")
    call(python, "-m", "build", "--outdir", folder, ROOT)
    return folder


def test_the_distributions_hold_the_package_and_no_more(dist: Path) -> None:
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert wheel.name == f"feddrm-{__version__}-py3-none-any.whl"
    assert source.name == f"feddrm-{__version__}.tar.gz"
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        header = HeaderParser().parsestr(file.read(metadata).decode())
    inside = {name.removeprefix("feddrm/") for name in names if name.startswith("feddrm/")}
    package = ROOT / "src" / "feddrm"
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert inside == {str(path.relative_to(package)) for path in files}
    assert all(name.startswith(("feddrm/", "feddrm-")) for name in names)
    assert header["Requires-Python"] == ">=3.11"
    assert {"serve", "deploy", "export"} <= set(header.get_all("Provides-Extra", []))
    with tarfile.open(source) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"src", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= tops
    assert not tops & {"results", "tests", "docs", "benchmarks", ".ci"}


def test_the_wheel_alone_runs_the_demo(python: Path, dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    constrained = ("-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt")
    call(python, *constrained, "torch")
    call(python, *constrained, wheel)
    feddrm = python.with_name("feddrm")
    assert __version__ in call(feddrm, "--version", cwd=tmp_path)
    assert "exact" in call(feddrm, "demo", "--rounds", "2", "--out", tmp_path / "demo", cwd=tmp_path)
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    missing = subprocess.run([feddrm, "serve", tmp_path / "demo"], capture_output=True, text=True, cwd=tmp_path)
    assert missing.returncode != 0
    assert "pip install 'feddrm[serve]'" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    released = re.search(r"^## \[(\d[^\]]*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert released is not None
    assert released.groups() == (citation["version"], str(citation["date-released"]))
    assert released[1] == __version__
