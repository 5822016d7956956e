"""The supervisor of a Flower process: it restarts the process, and the process ends with it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deployment import until
from feddrm.deploy.flower.supervisor import FLOWER_LOG, Supervisor

pytestmark = pytest.mark.slow

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    supervisor = Supervisor(SLEEPER, tmp_path)
    until(lambda: supervisor.process is not None)
    first = supervisor.process
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: supervisor.process is not first)
    second = supervisor.process
    assert second is not None
    assert second.poll() is None
    supervisor.stop()
    assert second.poll() is not None


def test_the_reason_why_a_process_ended_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The SuperNode of Flower 1.41 logs an exit code and a reason, and then more lines."""
    words = "ERROR: Exit Code: 305\nFailed to initialize.\ncertificate verify failed\n\nFor more, visit\nINFO: Finished"
    count = tmp_path / "count"
    script = f"print({words!r}); open({str(count)!r}, 'a').write('x')"
    supervisor = Supervisor([sys.executable, "-c", script], tmp_path)
    until(lambda: count.exists() and len(count.read_text()) == 2)
    supervisor.stop()
    reason = "Failed to initialize. certificate verify failed"
    assert [record.getMessage() for record in caplog.records if record.name == "feddrm.deploy"] == [
        f"Flower's process ended and is started again: {reason}"
    ]


def test_lines_are_logged_with_their_time_and_without_colours_and_notes_are_passed_on(tmp_path: Path) -> None:
    notes: list[str] = []
    script = "print('\x1b[92mINFO \x1b[0m: ready'); print('2026-11-16T08:00:00.123Z INFO [uvicorn] up');"
    script += "from feddrm.deploy.flower.supervisor import note; note('connected'); import time; time.sleep(60)"
    supervisor = Supervisor([sys.executable, "-c", script], tmp_path, notes.append)
    until(lambda: notes)
    supervisor.stop()
    first, second = (tmp_path / FLOWER_LOG).read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO : ready", first)
    assert second == "2026-11-16T08:00:00.123Z INFO [uvicorn] up", "the time is not written twice"
    assert notes == ["connected"]


def test_notes_of_many_threads_stay_apart(tmp_path: Path) -> None:
    notes: list[str] = []
    script = "import threading; from feddrm.deploy.flower.supervisor import note\nfor i in range(4000): "
    script += "threading.Thread(target=note, args=('a node is refused',)).start()"
    supervisor = Supervisor([sys.executable, "-c", script], tmp_path, notes.append)
    until(lambda: len(notes) >= 4000)
    supervisor.stop()
    assert set(notes) == {"a node is refused"}


def test_only_their_owner_can_read_what_the_process_writes(tmp_path: Path) -> None:
    script = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(60)"
    supervisor = Supervisor([sys.executable, "-c", script, str(tmp_path / "link.db")], tmp_path)
    until((tmp_path / "link.db").exists)
    supervisor.stop()
    assert (tmp_path / "link.db").stat().st_mode & 0o777 == 0o600


def test_a_restart_is_not_reported_as_an_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor(SLEEPER, tmp_path)
    until(lambda: supervisor.process is not None)
    first = supervisor.process
    supervisor.restart()
    until(lambda: supervisor.process is not first)
    supervisor.stop()
    assert not caplog.records


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux does that")
def test_the_process_ends_with_its_supervisor(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from feddrm.deploy.flower.supervisor import Supervisor;"
        f"supervisor = Supervisor({SLEEPER!r}, Path({str(tmp_path)!r}));"
        "time.sleep(0.5); print(supervisor.process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.communicate()
    until(lambda: not alive(pid))
