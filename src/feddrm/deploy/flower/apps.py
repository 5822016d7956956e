"""Flower's two apps: the ClientApp passes messages to the site, the ServerApp runs the server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from feddrm.deploy.flower.pauses import IdlePause
from feddrm.deploy.rotating_log import log
from feddrm.deploy.server.federation_server import Server
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.site_keys import KEYS, NODES, read_site_keys
from feddrm.deploy.server.status import ServerStatus
from feddrm.deploy.site.site import Site
from feddrm.deploy.site.without_places import without_places
from feddrm.deploy.wire.channel import Channel, Refusal
from feddrm.deploy.wire.key_files import load_private_key
from feddrm.errors import FeddrmError
from feddrm.io.text import read_json

SERVER_FOLDER = "FEDDRM_SERVER"  # the environment variable with the server's folder, for the ServerApp
POLL_SECONDS, LOOK_SECONDS = 0.1, 2.0
RECORD = "letter"  # part of the wire format: the name stays
SHORT = 2**20  # bytes

client_app = ClientApp()
server_app = ServerApp()


def wrap(content: bytes) -> RecordDict:
    """Bytes as Flower carries them: short ones as one value, long ones as an array, which Flower sends in pieces.

    Flower fetches a message part by part, with one request for each. An array has three parts more than a value.
    """
    if len(content) <= SHORT:
        return RecordDict({RECORD: ConfigRecord({RECORD: content})})
    return RecordDict({RECORD: ArrayRecord({RECORD: Array(np.frombuffer(content, dtype=np.uint8))})})


def unwrap(records: RecordDict) -> bytes:
    """The inverse of :func:`wrap`."""
    record = records.get(RECORD)
    value = record.get(RECORD) if isinstance(record, ConfigRecord | ArrayRecord) else None
    if isinstance(value, Array):
        return value.numpy().tobytes()
    if isinstance(value, bytes):
        return value
    raise FeddrmError("a Flower message without content: both ends need the same feddrm")


@lru_cache(maxsize=8)
def site_at(folder: str) -> Site:
    """The site of a folder; a process reads its data once."""
    return Site(folder)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a message of a round."""
    return _answer(message, context)


@client_app.query()
def query(message: Message, context: Context) -> Message:
    """Answer any other message: hello, the router's fit, the end."""
    return _answer(message, context)


def _answer(message: Message, context: Context) -> Message:
    folder = str(context.node_config["site"])
    try:
        site = site_at(folder)
    except FeddrmError as error:  # the reason goes to the server
        log.error("%s", error)
        raise FeddrmError(without_places(str(error), Path(folder))) from error
    return Message(wrap(site.handle(unwrap(message.content))), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
    """Train what ``federation.yaml`` says, from the last finished round on."""
    folder = os.environ.get(SERVER_FOLDER)
    if not folder:
        raise FeddrmError(f"{SERVER_FOLDER} is not set: start the server with 'feddrm deploy server'")
    run_over_grid(Path(folder), grid)


def run_over_grid(folder: Path, grid: Grid) -> None:
    """Run the server of a folder over Flower's grid."""
    settings = FederationSettings.read(folder)
    keys = folder / KEYS
    channel = Channel(
        GridTransport(grid, folder / NODES),
        load_private_key(keys / "server.key"),
        lambda: read_site_keys(keys),
        ServerStatus(folder).record,
    )
    for name in settings.clients:
        if name not in channel.site_keys:
            raise FeddrmError(f"{keys / name}.pub is missing: put it back, or use 'feddrm deploy remove-site'")
    try:
        Server(settings, folder / "runs" / settings.run, channel).go()
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:  # the run ends, the server does not
        log.exception("a fault ends the run")
        raise FeddrmError(f"{type(error).__name__} in the server: its log has more") from error


class GridTransport:
    """Carries messages over Flower's grid. Replies that come after the deadline are never fetched.

    The longer a round, the longer the pauses between two looks for replies: each keeps the SuperLink busy.
    """

    def __init__(self, grid: Grid, nodes: Path, sleep: Callable[[float], None] = time.sleep) -> None:
        self.grid, self.node_file, self.sleep = grid, nodes, sleep

    def nodes(self) -> set[int]:
        return set(self.grid.get_node_ids())

    def ask(
        self, messages: Mapping[int, bytes], deadline: float, kind: str, on_wait: Callable[[set[int]], None]
    ) -> dict[int, bytes | Refusal]:
        end, pause = time.monotonic() + deadline, IdlePause(POLL_SECONDS, clock=time.monotonic)
        wrapped = [
            # Flower drops a message that waited longer than its deadline: nobody would read the reply.
            Message(wrap(content), dst_node_id=node, message_type=kind, ttl=deadline)
            for node, content in messages.items()
        ]
        pushed = zip(self.grid.push_messages(wrapped), messages, strict=True)
        waiting = {message_id: node for message_id, node in pushed if message_id}
        replies: dict[int, bytes | Refusal] = {}
        look = time.monotonic() + LOOK_SECONDS
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None and reply.has_content():
                    replies[node] = _content(reply)
                elif node is not None and reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
                    replies[node] = self._refusal(node, reply)
            if waiting:
                self.sleep(max(0.0, min(pause.seconds, end - time.monotonic())))
            if time.monotonic() > look:  # do not wait for a site that has gone
                present, look = self.nodes(), time.monotonic() + LOOK_SECONDS
                waiting = {message_id: node for message_id, node in waiting.items() if node in present}
                on_wait(set(waiting.values()))
        return replies

    def _refusal(self, node: int, reply: Message) -> Refusal:
        """Why a node does not take our message, with the name under which its key is registered."""
        names = read_json(self.node_file, "start the server again") if self.node_file.exists() else {}
        return Refusal(names.get(str(node), f"node {node}"), reply.error.reason or "it gives no reason")


def _content(reply: Message) -> bytes:
    """The bytes of a reply, empty if it has none: they fail the check of the signature, which names the site."""
    try:
        return unwrap(reply.content)
    except Exception:  # Flower's arrays raise errors of many types
        return b""
