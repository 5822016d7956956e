"""The worker that takes Flower's tasks, one by one, from the local SuperNode or SuperLink.

Flower would start a process per message and run in it the app that the run was submitted with. This worker stays
in one process, so imports and data are loaded once, and it only runs the installed
:mod:`feddrm.deploy.flower.apps`. The app that comes with a run is never executed.

This module uses internal parts of Flower, which may change with every release; hence ``flwr>=1.41,<1.42``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
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
from flwr.supercore.retry import RetryInvoker, make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from feddrm.deploy.flower.apps import client_app, server_app
from feddrm.deploy.flower.control_token import TokenInterceptor, control_token
from feddrm.deploy.rotating_log import log
from feddrm.deploy.wire.key_files import load_public_key
from feddrm.deploy.wire.messages import digest
from feddrm.errors import FeddrmError

ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
HEARTBEAT_SECONDS = 10.0
TRIES = 8

_one_at_a_time = threading.Lock()

LinkError = (httpx.HTTPError, RuntimeError, OSError)  # raised by a SuperLink that is not reachable


class FlowerConnection:
    """The address of a SuperNode or SuperLink, and the secret that allows this process to take its tasks."""

    def __init__(self, address: str, secret: Path, authority: Path | None) -> None:
        self.address, self.insecure = address, authority is None
        self.certificates = None if authority is None else authority.read_bytes()
        self.secret = secret.read_bytes()

    def client(self, token: str | None = None) -> RuntimeHttpClient:
        """A client for one task with its ``token``; without a token, one that may take tasks."""
        retry = without_exit(make_simple_http_retry_invoker())
        retry.max_tries = TRIES if token else 1
        credentials = (
            RuntimeTokenHttpInterceptor(token)
            if token
            else SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=ACQUIRE)
        )
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.insecure,
            root_certificates=self.certificates,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), credentials],
            retry_invoker=retry,
        )

    def control(self) -> ControlHttpClient:
        """A client that may register nodes and start runs."""
        return ControlHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.insecure,
            root_certificates=self.certificates,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
                TokenInterceptor(control_token(self.secret)),
            ],
        )


def without_exit(retry: RetryInvoker) -> RetryInvoker:
    """Flower's retries, but a refused token is an error. Flower would end this process with a signal.

    A token is refused after the local SuperNode or SuperLink was started again; it gives out new tasks.
    """
    gives_up = retry.should_giveup
    assert gives_up is not None

    def gives_up_on(error: Exception) -> bool:
        refused = isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 401
        return refused or gives_up(error)

    retry.should_giveup = gives_up_on
    return retry


def take_task(client: RuntimeHttpClient, kind: TaskType) -> str | None:
    """Take a waiting task: its token, None if there is no task."""
    reply = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind], agentapp_fab_hashes=[]))
    return str(reply.token) if reply.HasField("task") and reply.token else None


def run_client_task(connection: FlowerConnection, token: str) -> None:
    """On a site: answer one message.

    Runs in a thread of its own, because a message of a run that broke off may never arrive in full, and
    Flower waits for it for minutes. Messages that have arrived are answered one at a time.
    """
    client = connection.client(token)
    try:
        with _heartbeat(client):
            message, context, _, _ = pull_task_input(client)
            status, details = SubStatus.COMPLETED, ""
            try:
                with _one_at_a_time:
                    reply = client_app(message=message, context=context)
            except FeddrmError as error:  # no message of our server: the sender learns why, and nothing else
                status, details = SubStatus.FAILED, str(error)
                log.error(details)
                reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)
            push_message(client, reply, context)
            push_task_output(client, context, status, details)
    except (*LinkError, ObjectPullError):
        return  # the server has given up on this message, or the connection is down: it will ask again
    finally:
        client.close()


def run_server_task(connection: FlowerConnection, token: str) -> None:
    """On the server: do what is left of a run."""
    from flwr.superlink.grid import HttpGrid  # with a database, for which no site should wait

    grid = HttpGrid(connection.address, connection.insecure, connection.certificates, token=token)
    without_exit(grid._retry_invoker).max_tries = TRIES
    client = grid._runtime_client
    status, details, context = SubStatus.FAILED, "interrupted", None
    try:
        with _heartbeat(client):
            task = client.PullTaskInput(PullTaskInputRequest())
            TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
            TaskIdentity.node_id = task.context.node_id
            grid.set_run(run_from_proto(task.run))
            context = context_from_proto(task.context)
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


def start_run(connection: FlowerConnection, app: Path) -> None:
    """Stop the runs that a killed server left, and submit a new one.

    Without the stop, Flower would keep the old runs for about 45 s, and nodes would wait that long for the rest
    of their messages.
    """
    content = build_fab_from_disk(app)
    with connection.control() as control:
        for number, run in control.ListRuns(ListRunsRequest()).run_dict.items():
            if run.status.status != Status.FINISHED:
                with suppress(httpx.HTTPStatusError):  # it has just ended by itself
                    control.StopRun(StopRunRequest(run_id=number))
        control.StartRun(StartRunRequest(fab=fab_to_proto(Fab(digest(content), content, {})), override_config={}))


def register_sites(connection: FlowerConnection, keys: Mapping[str, Path]) -> dict[int, str]:
    """Register the nodes with these keys, and remove all others; returns the names of nodes.

    Registered ones stay registered.
    """
    wanted = {public_key_to_bytes(load_public_key(path)): name for name, path in keys.items()}
    try:
        with connection.control() as control:
            known = {node.public_key: node for node in control.ListNodes(ListNodesRequest()).nodes_info}
            for key, name in wanted.items():
                if key not in known:
                    control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
                elif known[key].status == NodeStatus.UNREGISTERED:
                    raise FeddrmError(
                        f"the key of {name} was removed, and Flower does not accept it again: make a new one with "
                        f"'feddrm deploy keygen', or stop the server, delete its link.db, and start it"
                    )
            for key, node in known.items():
                if key not in wanted and node.status != NodeStatus.UNREGISTERED:
                    control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
            nodes = control.ListNodes(ListNodesRequest()).nodes_info
            return {node.node_id: wanted[node.public_key] for node in nodes if node.public_key in wanted}
    except httpx.HTTPStatusError as error:
        raise FeddrmError(f"the SuperLink does not register sites ({error.response.text}): see flower.log") from error


@contextmanager
def _heartbeat(client: RuntimeHttpClient) -> Iterator[None]:
    """Send heartbeats meanwhile: Flower gives up on a task without them."""
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
