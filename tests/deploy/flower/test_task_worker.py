"""The control of a real SuperLink by its server and by others."""

from __future__ import annotations

import socket
import ssl
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
from flwr.supercore.retry import make_simple_http_retry_invoker

from deployment import NAMES, Deployed, until
from feddrm.deploy.flower.daemon import free_port, superlink_command
from feddrm.deploy.flower.supervisor import Supervisor
from feddrm.deploy.flower.task_worker import FlowerConnection, register_sites, without_exit
from feddrm.deploy.provision.certificates import write_key_pair
from feddrm.deploy.wire.key_files import load_public_key
from refusal import refused

pytestmark = pytest.mark.slow


def test_only_the_server_controls_its_superlink(deployed: Callable[..., Deployed], tmp_path: Path) -> None:
    """An outsider who knows the address and ca.crt can register no node, remove none, and see nothing."""
    made = deployed(port=free_port())
    home = made.folder / "server"
    keys = {name: home / "keys" / f"{name}.pub" for name in NAMES}
    address = f"127.0.0.1:{made.settings.port}"
    ours = FlowerConnection(address, home / "secret", home / "ca.crt")
    write_key_pair(tmp_path, "outsider")
    (tmp_path / "secret").write_bytes(b"guessed")
    theirs = FlowerConnection(address, tmp_path / "secret", made.folder / "sites" / "oslo" / "ca.crt")
    superlink = Supervisor(superlink_command(home, made.settings), home)
    try:
        until(lambda: reachable(made.settings.port))
        register_sites(ours, keys)
        register_sites(ours, keys)  # again: registered sites stay registered
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
        with refused("does not register sites"):
            register_sites(theirs, keys)

        with ours.control() as control:
            control.RegisterNode(RegisterNodeRequest(public_key=stranger, name="has left"))
        register_sites(ours, keys)
        with ours.control() as control:
            left = [n.name for n in control.ListNodes(ListNodesRequest()).nodes_info if n.status == "unregistered"]
            assert left == ["has left"], "a node whose key is no longer in keys/ is removed"
            control.UnregisterNode(UnregisterNodeRequest(node_id=nodes[0].node_id))
        with refused(f"the key of {nodes[0].name} was removed", "link.db"):
            register_sites(ours, keys)
    finally:
        superlink.stop()


def reachable(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_refused_token_is_an_error_and_not_the_end_of_the_process() -> None:
    """Flower's own retries would end this process by a signal."""
    retry = without_exit(make_simple_http_retry_invoker())
    assert retry.should_giveup is not None

    def error(status: int) -> httpx.HTTPStatusError:
        request = httpx.Request("POST", "http://127.0.0.1:9")
        return httpx.HTTPStatusError("refused", request=request, response=httpx.Response(status, request=request))

    assert retry.should_giveup(error(401))
    assert not retry.should_giveup(error(503))  # it may be back in a moment
