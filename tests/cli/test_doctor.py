"""``feddrm doctor`` as a person calls it, on machines that lack something."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import call
from feddrm.checks import machine, ports
from feddrm.checks.ports import why_taken
from feddrm.io.official_files import HEART

pytest.importorskip("cryptography")

from feddrm.deploy.provision import certificates


@pytest.fixture(autouse=True)
def sound_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a test breaks is broken: free ports, no GPU, no data, and the current folder is new."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDDRM_DATA", raising=False)
    monkeypatch.setenv("FEDDRM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "NVIDIA", ("no-such-program",))
    monkeypatch.setattr(ports, "why_taken", lambda host, port: None)


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = call(capsys, "doctor", "--json", *words)
    return code, {finding["what"]: finding for finding in json.loads(out)}


def test_a_sound_machine_has_no_problem_and_missing_data_are_notes(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = doctor(capsys)
    assert code == 0
    assert {"Python", "torch", "cores", "GPU", "data heart", "runs", "disk", "clock", "port 8080"} <= set(found)
    assert (found["torch"]["level"], found["data heart"]["level"]) == ("ok", "note")
    code, out, err = call(capsys, "doctor")
    assert (code, err) == (0, "")
    assert out.split()[:3] == ["what", "level", "result"]


def test_a_folder_of_runs_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    code, found = doctor(capsys, "--runs", "taken/runs")
    assert (code, found["runs"]["level"]) == (1, "problem")
    assert "taken is a file: choose another" in found["runs"]["text"]
    assert "port 8080" in found, "a problem does not end the rest"


def test_a_port_in_use(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "why_taken", why_taken)
    with socket.socket() as other:
        other.bind((ports.LOOPBACK, 0))
        other.listen()
        monkeypatch.setattr(machine, "USERS", {other.getsockname()[1]: "feddrm serve"})
        _, found = doctor(capsys)
    (port,) = [finding for what, finding in found.items() if what.startswith("port ")]
    assert port["level"] == "warning"
    assert port["text"].startswith("cannot be used (Address already in use)")


def test_a_data_file_that_was_changed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for remote in HEART:
        (tmp_path / remote.filename).write_text("1,2,3\n")
    code, found = doctor(capsys, "--data-dir", str(tmp_path))
    assert (code, found["data heart"]["level"]) == (1, "problem")
    assert HEART[0].url in found["data heart"]["text"]


def test_dates_of_certificates(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    code, found = doctor(capsys, "--certificates", str(folder))
    assert (code, "there is no .crt in it" in found["certificates"]["text"]) == (1, True)
    certificates.write_certificates(tmp_path / "authority", folder, ["localhost"])
    code, found = doctor(capsys, "--certificates", str(folder))
    assert (code, found["certificate"]["level"]) == (0, "ok")
    monkeypatch.setattr(certificates, "SERVER_DAYS", -0.5)  # it begins a day ago and has ended since
    certificates.renew_certificate(tmp_path / "authority", folder, ["localhost"])
    code, found = doctor(capsys, "--certificates", str(folder))
    assert (code, found["certificate"]["level"]) == (1, "problem")
    assert "it has expired, renew it" in found["certificate"]["text"]
