"""What is told of this machine, and of machines that lack something."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from feddrm.checks import machine, ports
from feddrm.checks.findings import Finding
from refusal import refused


def levels(findings: Sequence[Finding]) -> dict[str, str]:
    return {finding.what: finding.level for finding in findings}


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> metadata.Distribution:
    """feddrm as if it were installed with these requirements; the versions are those of this environment."""
    lines = [
        "Name: feddrm", "Requires-Python: >=3.11", "Requires-Dist: numpy>=1.26", "Requires-Dist: torch>=2.11",
        "Requires-Dist: no-such-package>=2", "Provides-Extra: serve", "Provides-Extra: odd", "Provides-Extra: dev",
        "Requires-Dist: httpx>=0.27; extra == 'serve'",
        "Requires-Dist: also-missing[all]>=1; (sys_platform != 'win32') and extra == 'odd'",
        "Requires-Dist: numpy<1; extra == 'odd'", "Requires-Dist: missing-too; extra == 'dev'",
    ]  # fmt: skip

    class Package(metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            return "\n".join(lines) if filename == "METADATA" else None

        def locate_file(self, path: Any) -> Any:
            return path

    monkeypatch.setattr(machine, "_distribution", Package)
    return Package()


def test_packages_are_compared_with_what_feddrm_requires(
    package: metadata.Distribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(machine.check_python())
    assert levels(found) == {"Python": "ok", "torch": "ok", "no-such-package": "problem"}
    assert found[1].text == metadata.version("torch")
    assert found[2].text == "no-such-package is missing: pip install 'no-such-package>=2'"
    monkeypatch.setattr(sys, "version_info", (3, 10, 9))
    assert next(machine.check_python()).text == "3.10.9: feddrm needs >=3.11: make the environment with another Python"


def test_a_missing_extra_is_a_note_with_its_remedy(package: metadata.Distribution) -> None:
    serve, odd = machine.check_extras()
    assert serve == Finding("extra serve", "ok", "installed")
    assert (odd.what, odd.level) == ("extra odd", "note")
    numpy = metadata.version("numpy")
    assert odd.text == f"also-missing is missing, numpy {numpy} does not fit numpy<1: pip install 'feddrm[odd]'"


@pytest.mark.parametrize(
    ("version", "bounds", "fits"),
    [
        ("2.11.0+cu130", "torch>=2.11", True),
        ("2.9", "torch>=2.11", False),
        ("0.49.1", "uvicorn>=0.49,<0.50", True),
        ("0.50.0", "uvicorn>=0.49,<0.50", False),
        ("3.0rc1", "x>=3.0", True),
        ("1", "x", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, bounds: str, fits: bool) -> None:
    assert machine._fits(version, bounds) == fits


def test_source_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with refused("feddrm is not installed", "pip install feddrm"):
        list(machine.check_extras())


def test_threads_that_cannot_be_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [finding.level for finding in machine.check_cores()] == ["ok"]
    for given in ("0", "many", "100000"):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        (finding,) = machine.check_cores()
        assert (finding.level, f"OMP_NUM_THREADS is {given}: give a number from 1" in finding.text) == ("warning", True)


@pytest.mark.parametrize(
    ("torch", "output", "code", "level", "words"),
    [
        ("2.11.0+cu130", "NVIDIA H200, 143771 MiB, 580.1\n", 0, "ok", "NVIDIA H200, 143771 MiB, 580.1 (by nvidia-smi)"),
        ("2.11.0+cpu", "NVIDIA H200, 143771 MiB, 580.1\n", 0, "warning", "install a CUDA build"),
        ("2.11.0", "Driver/library version mismatch\n", 18, "warning", "mismatch: repair the driver"),
    ],
)
def test_a_gpu_is_named_by_nvidia_smi(
    torch: str, output: str, code: int, level: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = subprocess.CompletedProcess(machine.NVIDIA, code, output, "")
    monkeypatch.setattr(machine.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    monkeypatch.setattr(machine, "_version", lambda name: torch)
    (finding,) = machine.check_gpu()
    assert (finding.level, words in finding.text) == (level, True)


def test_a_machine_without_a_gpu_uses_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "NVIDIA", ("no-such-program",))
    (finding,) = machine.check_gpu()
    if not Path("/proc/driver/nvidia/version").exists():
        assert (finding.level, "the CPU is used" in finding.text) == ("note", True)


def test_runs_may_be_written_into_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    found = list(machine.check_runs(tmp_path / "new" / "runs"))
    assert [finding.what for finding in found] == ["runs", "disk", "clock"]
    assert levels(found)["runs"] == levels(found)["clock"] == "ok"
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    if Path("/proc/self").exists():  # nobody can write there, not even root
        with refused("cannot write into /proc", "give it to the user"):
            list(machine.check_runs(Path("/proc/none/runs")))
    (tmp_path / "file").touch()
    with refused(f"{tmp_path / 'file'} is a file", "choose another"):
        list(machine.check_runs(tmp_path / "file" / "runs"))


def test_a_clock_that_is_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    for wrong, words in ((0.0, "1970-01-01 00:00 UTC, before feddrm was installed"), (now + 90, "ahead of the file")):
        monkeypatch.setattr(time, "time", lambda wrong=wrong: wrong)
        clock = next(finding for finding in machine.check_runs(tmp_path) if finding.what == "clock")
        assert (clock.level, words in clock.text) == ("problem", True)


def test_a_port_in_use_is_a_warning_that_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {ports.PREDICTOR: "Address already in use"}
    monkeypatch.setattr(ports, "why_taken", lambda host, port: taken.get(port))
    assert levels(list(machine.check_ports())) == {"port 8080": "ok", "port 9000": "warning", "port 8000": "ok"}
    finding = list(machine.check_ports())[1]
    assert "(Address already in use): stop what uses it, or give 'feddrm serve-client --port' another" in finding.text
    assert os.sep not in finding.text
