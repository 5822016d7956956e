"""What looks after Flower's processes: they are started again, end with whoever started them, and need their port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from feddrm.deploy import services
from feddrm.deploy.services import Child, free_port
from feddrm.errors import FeddrmError

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_flower_process_that_is_killed_is_started_again(tmp_path: Path) -> None:
    child = Child(SLEEPER, tmp_path)
    until(lambda: child.process is not None)
    first = child.process
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: child.process is not first)
    second = child.process
    assert second is not None
    assert second.poll() is None
    child.stop()
    assert second.poll() is not None


def test_why_a_flower_process_ended_stands_in_our_own_log_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As the SuperNode of Flower 1.41 ends, which then shuts down with more lines."""
    words = "ERROR: Exit Code: 305\nFailed to initialize.\ncertificate verify failed\n\nFor more, visit\nINFO: Finished"
    (tmp_path / services.FLOWER_LOG).write_text("Exit Code: 1\nof another time\n\n")
    count = tmp_path / "count"
    script = f"print({words!r}); open({str(count)!r}, 'a').write('x')"
    child = Child([sys.executable, "-c", script], tmp_path)
    until(lambda: count.exists() and len(count.read_text()) == 2)
    child.stop()
    told = capfd.readouterr().err
    assert told == "Flower's process ended and is started again: Failed to initialize. certificate verify failed\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel sees to it on Linux alone")
def test_a_flower_process_ends_with_whoever_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from feddrm.deploy.services import Child;"
        f"child = Child({SLEEPER!r}, Path({str(tmp_path)!r}));"
        "time.sleep(0.5); print(child.process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.communicate()
    until(lambda: not alive(pid))


def test_a_port_that_others_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "PORT_SECONDS", 0.2)
    port = free_port()
    services._wait_for_port("127.0.0.1", port)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(FeddrmError, match=f"port {port} cannot be used"):
            services._wait_for_port("127.0.0.1", port)


def test_a_process_is_ready_when_it_says_so(tmp_path: Path) -> None:
    assert services.running(tmp_path) is None
    with services._alone(tmp_path) as ready:
        assert services.running(tmp_path) == os.getpid()
        assert services.running(tmp_path, ready=True) is None
        ready()
        assert services.running(tmp_path, ready=True) == services.running(tmp_path) == os.getpid()
        with pytest.raises(FeddrmError, match="already running"), services._alone(tmp_path):
            pass
    assert services.running(tmp_path) is None
    with services._alone(tmp_path):
        assert services.running(tmp_path, ready=True) is None  # nothing of the one before is left
