"""What looks after Flower's processes: they are started again, end with whoever started them, and need their port."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from feddrm.deploy.flower import daemon
from feddrm.deploy.flower.daemon import Supervisor, free_port
from feddrm.deploy.flower.task_worker import Connection, register
from feddrm.deploy.provision.certificates import write_key_pair
from feddrm.deploy.wire.messages import load_public_key
from feddrm.errors import FeddrmError
from refusal import refused

from .conftest import NAMES, Deployed

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
    child = Supervisor(SLEEPER, tmp_path)
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
    (tmp_path / daemon.FLOWER_LOG).write_text("Exit Code: 1\nof another time\n\n")
    count = tmp_path / "count"
    script = f"print({words!r}); open({str(count)!r}, 'a').write('x')"
    child = Supervisor([sys.executable, "-c", script], tmp_path)
    until(lambda: count.exists() and len(count.read_text()) == 2)
    child.stop()
    told = capfd.readouterr().err
    assert told == "Flower's process ended and is started again: Failed to initialize. certificate verify failed\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel sees to it on Linux alone")
def test_a_flower_process_ends_with_whoever_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from feddrm.deploy.flower.daemon import Supervisor;"
        f"child = Supervisor({SLEEPER!r}, Path({str(tmp_path)!r}));"
        "time.sleep(0.5); print(child.process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.communicate()
    until(lambda: not alive(pid))


def test_only_the_server_commands_its_superlink(deployed: Callable[..., Deployed], tmp_path: Path) -> None:
    """An outsider knows the address and the public ca.crt: he registers no node, strikes none off, sees nothing."""
    made = deployed(port=free_port())
    home = made.folder / "server"
    keys = {name: home / "keys" / f"{name}.pub" for name in NAMES}
    address = f"127.0.0.1:{made.settings.port}"
    ours = Connection(address, home / "secret", home / "ca.crt")
    write_key_pair(tmp_path, "outsider")
    (tmp_path / "secret").write_bytes(b"guessed")
    theirs = Connection(address, tmp_path / "secret", made.folder / "sites" / "oslo" / "ca.crt")
    link = Supervisor(daemon.link_command(home, made.settings), home)
    try:
        until(lambda: reachable(made.settings.port))
        register(ours, keys)
        register(ours, keys)  # again: those already known stay known
        with ours.control() as control:
            nodes = list(control.ListNodes(ListNodesRequest()).nodes_info)
        assert sorted(node.name for node in nodes) == sorted(NAMES)

        stranger = public_key_to_bytes(load_public_key(tmp_path / "outsider.pub"))
        with theirs.control() as control:
            for call, words in (
                (control.RegisterNode, RegisterNodeRequest(public_key=stranger, name="outsider")),
                (control.UnregisterNode, UnregisterNodeRequest(node_id=nodes[0].node_id)),
                (control.ListNodes, ListNodesRequest()),
                (control.ListRuns, ListRunsRequest()),
                (control.StopRun, StopRunRequest(run_id=1)),
                (control.StartRun, StartRunRequest()),
            ):
                with pytest.raises(httpx.HTTPStatusError) as refusal:
                    call(words)
                assert refusal.value.response.status_code == 401
        trusting = ssl.create_default_context(cafile=str(home / "ca.crt"))
        bare = httpx.post(f"https://{address}/v1/control/list-nodes", verify=trusting)  # no token at all
        assert bare.status_code == 401
        with refused("registers no sites"):
            register(theirs, keys)

        with ours.control() as control:
            control.RegisterNode(RegisterNodeRequest(public_key=stranger, name="has left"))
        register(ours, keys)
        with ours.control() as control:
            left = [n.name for n in control.ListNodes(ListNodesRequest()).nodes_info if n.status == "unregistered"]
            assert left == ["has left"], "whose key is not in keys/ any more is struck off"
            control.UnregisterNode(UnregisterNodeRequest(node_id=nodes[0].node_id))
        with refused(f"the key of {nodes[0].name} was struck off", "link.db"):
            register(ours, keys)
    finally:
        link.stop()


def reachable(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_port_that_others_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "PORT_SECONDS", 0.2)
    port = free_port()
    daemon._wait_for_port("127.0.0.1", port)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(FeddrmError, match=f"port {port} cannot be used"):
            daemon._wait_for_port("127.0.0.1", port)


def test_a_process_is_ready_when_it_says_so(tmp_path: Path) -> None:
    assert daemon.running(tmp_path) is None
    with daemon._alone(tmp_path) as ready:
        assert daemon.running(tmp_path) == os.getpid()
        assert daemon.running(tmp_path, ready=True) is None
        ready()
        assert daemon.running(tmp_path, ready=True) == daemon.running(tmp_path) == os.getpid()
        with pytest.raises(FeddrmError, match="already running"), daemon._alone(tmp_path):
            pass
    assert daemon.running(tmp_path) is None
    with daemon._alone(tmp_path):
        assert daemon.running(tmp_path, ready=True) is None  # nothing of the one before is left
