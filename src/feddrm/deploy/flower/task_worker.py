"""Flower's apps in processes that stay: tasks are taken from the local SuperNode or SuperLink one by one.

Flower would start a process per message and run in it whatever app the run was submitted with. Here
the process stays (no imports, no reading of data per message) and only ever runs the installed
:mod:`feddrm.deploy.flower.apps`: the app that comes with a run names these parts and is never executed.

This file uses parts of Flower that it does not promise to keep, hence ``flwr>=1.41,<1.42``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from flwr.app import Error, Message
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode, Status, SubStatus
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import NodeStatus, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from feddrm.deploy.flower.apps import client_app, server_app
from feddrm.deploy.flower.superlink import ShowsTheToken, control_token
from feddrm.deploy.wire.messages import digest, load_public_key
from feddrm.errors import FeddrmError

ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
HEARTBEAT_SECONDS = 10.0
TRIES = 8

_answering = threading.Lock()

LinkError = (httpx.HTTPError, RuntimeError, OSError)  # what a link that is gone, or not yet there, raises


class Connection:
    """How to reach a SuperNode or a SuperLink, and the secret that lets this process take its tasks."""

    def __init__(self, address: str, secret: Path, authority: Path | None) -> None:
        self.address, self.insecure = address, authority is None
        self.certificates = None if authority is None else authority.read_bytes()
        self.secret = secret.read_bytes()

    def client(self, token: str | None = None) -> RuntimeHttpClient:
        """With a task's token, or with the right to take tasks."""
        retry = make_simple_http_retry_invoker()
        retry.max_tries = TRIES if token else 1
        who = (
            RuntimeTokenHttpInterceptor(token)
            if token
            else SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=ACQUIRE)
        )
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.insecure,
            root_certificates=self.certificates,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), who],
            retry_invoker=retry,
        )

    def control(self) -> ControlHttpClient:
        """With the right to register nodes and to start runs."""
        return ControlHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.insecure,
            root_certificates=self.certificates,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
                ShowsTheToken(control_token(self.secret)),
            ],
        )


def take_task(client: RuntimeHttpClient, kind: TaskType) -> str | None:
    """The token of a waiting task, None where there is none."""
    found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind], agentapp_fab_hashes=[]))
    return str(found.token) if found.HasField("task") and found.token else None


def answer_one(line: Connection, token: str) -> None:
    """On a site: one message in, one out.

    Meant for a thread of its own: a message of a run that broke off may never arrive in full, and
    Flower waits for it for minutes. Whatever arrives is answered one at a time.
    """
    client = line.client(token)
    try:
        with _heartbeat(client):
            message, context, _, _ = pull_task_input(client)
            status, details = SubStatus.COMPLETED, ""
            try:
                with _answering:
                    reply = client_app(message=message, context=context)
            except FeddrmError as error:  # not signed by our server, not a letter: nothing is told but that
                status, details = SubStatus.FAILED, str(error)
                reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "refused"), reply_to=message)
            push_message(client, reply, context)
            push_task_output(client, context, status, details)
    except (*LinkError, ObjectPullError):
        return  # the server has given up on this message, or the line is down: it will ask again
    finally:
        client.close()


def serve_one(line: Connection, token: str) -> None:
    """On the server: a whole run, or what is left of it."""
    grid = HttpGrid(line.address, line.insecure, line.certificates, token=token)
    grid._retry_invoker.max_tries = TRIES
    client = grid._runtime_client
    status, details, context = SubStatus.FAILED, "interrupted", None
    try:
        with _heartbeat(client):
            given = client.PullTaskInput(PullTaskInputRequest())
            TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
            TaskIdentity.node_id = given.context.node_id
            grid.set_run(run_from_proto(given.run))
            context = context_from_proto(given.context)
            try:
                server_app(grid=grid, context=context)
                status, details = SubStatus.COMPLETED, ""
            except FeddrmError as error:
                details = str(error)
                raise
    finally:
        with suppress(*LinkError):
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        grid.close()


def start_run(line: Connection, app: Path) -> None:
    """Submit a run, which a server that takes tasks will find; it ends those of a server that was killed.

    Flower would believe in them for some 45 s more, and nodes would wait that long for what is left of their messages.
    """
    content = build_fab_from_disk(app)
    with line.control() as control:
        for number, run in control.ListRuns(ListRunsRequest()).run_dict.items():
            if run.status.status != Status.FINISHED:
                with suppress(httpx.HTTPStatusError):  # it has ended by itself just now
                    control.StopRun(StopRunRequest(run_id=number))
        control.StartRun(StartRunRequest(fab=fab_to_proto(Fab(digest(content), content, {})), override_config={}))


def register(line: Connection, keys: dict[str, Path]) -> None:
    """Let the nodes with these keys in, and nobody else; those already known stay known."""
    ours = {public_key_to_bytes(load_public_key(path)): name for name, path in keys.items()}
    try:
        with line.control() as control:
            known = {node.public_key: node for node in control.ListNodes(ListNodesRequest()).nodes_info}
            for key, name in ours.items():
                if key not in known:
                    control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
                elif known[key].status == NodeStatus.UNREGISTERED:
                    raise FeddrmError(
                        f"the key of {name} was struck off, and Flower does not take it again: "
                        f"stop the server, remove its link.db, and start it"
                    )
            for key, node in known.items():
                if key not in ours and node.status != NodeStatus.UNREGISTERED:
                    control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
    except httpx.HTTPStatusError as error:
        raise FeddrmError(f"the SuperLink registers no sites ({error.response.text}): see flower.log") from error


@contextmanager
def _heartbeat(client: RuntimeHttpClient) -> Iterator[None]:
    """Flower gives up on a task that has not been heard of for a while."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            with suppress(*LinkError):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
