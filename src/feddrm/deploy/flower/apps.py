"""Flower's two apps: the ClientApp hands letters to the site, the ServerApp plays the server's rounds."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from feddrm.deploy.server.federation_settings import ServerSettings
from feddrm.deploy.server.training import Server
from feddrm.deploy.site.site import Site
from feddrm.deploy.wire.messages import load_private_key, load_public_key
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically

SERVER_FOLDER = "FEDDRM_SERVER"  # the environment variable that tells the ServerApp where the server's folder is
POLL_SECONDS, LOOK_SECONDS = 0.1, 2.0
LETTER = "letter"
COMPLAINTS = "complaints.log"
SHORT = 2**20  # bytes

client_app = ClientApp()
server_app = ServerApp()


def wrap(letter: bytes) -> RecordDict:
    """A letter as Flower carries it: a short one as one value; a long one as an array, which is sent in pieces.

    Flower fetches a message part by part, a request for each: an array is three parts more than a value.
    """
    if len(letter) <= SHORT:
        return RecordDict({LETTER: ConfigRecord({LETTER: letter})})
    return RecordDict({LETTER: ArrayRecord({LETTER: Array(np.frombuffer(letter, dtype=np.uint8))})})


def unwrap(content: RecordDict) -> bytes:
    """The inverse of :func:`wrap`."""
    record = content.get(LETTER)
    value = record.get(LETTER) if isinstance(record, ConfigRecord | ArrayRecord) else None
    if isinstance(value, Array):
        return value.numpy().tobytes()
    if isinstance(value, bytes):
        return value
    raise FeddrmError("a message without a letter: both ends need the same feddrm")


@lru_cache(maxsize=8)
def site_at(folder: str) -> Site:
    """The site, its data read once per process."""
    return Site(folder)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """A round."""
    return _answer(message, context)


@client_app.query()
def query(message: Message, context: Context) -> Message:
    """Everything else: hello, the router's fit, the end."""
    return _answer(message, context)


def _answer(message: Message, context: Context) -> Message:
    site = site_at(str(context.node_config["site"]))
    return Message(wrap(site.handle(unwrap(message.content))), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
    """Train what ``federation.yaml`` says, from wherever it was left off."""
    folder = os.environ.get(SERVER_FOLDER)
    if not folder:
        raise FeddrmError(f"{SERVER_FOLDER} is not set: start the server with 'feddrm deploy server'")
    serve(Path(folder), grid)


def serve(folder: Path, grid: Grid) -> None:
    """The server's rounds over a grid."""
    settings = ServerSettings.read(folder)
    status = Status(folder)
    server = Server(
        settings,
        folder / "runs" / settings.run,
        GridCourier(grid),
        load_private_key(folder / "keys" / "server.key"),
        {name: load_public_key(folder / "keys" / f"{name}.pub") for name in settings.clients},
        status.tell,
    )
    try:
        server.go()
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:  # the run ends, the server does not
        traceback.print_exc()
        raise FeddrmError(f"{type(error).__name__} in the server: its log has more") from error


class GridCourier:
    """Letters over Flower's grid: pushed at once, answers fetched as they come, the late ones never."""

    def __init__(self, grid: Grid, sleep: Callable[[float], None] = time.sleep) -> None:
        self.grid, self.sleep = grid, sleep

    def nodes(self) -> set[int]:
        return set(self.grid.get_node_ids())

    def ask(self, letters: Mapping[int, bytes], deadline: float, kind: str) -> dict[int, bytes]:
        end = time.monotonic() + deadline
        messages = [
            # A letter that waited past its deadline is thrown away by Flower: nobody would read the answer.
            Message(wrap(letter), dst_node_id=node, message_type=kind, ttl=deadline)
            for node, letter in letters.items()
        ]
        pushed = zip(self.grid.push_messages(messages), letters, strict=True)
        waiting = {number: node for number, node in pushed if number}
        found: dict[int, bytes] = {}
        look = time.monotonic() + LOOK_SECONDS
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None and reply.has_content():
                    found[node] = _letter(reply)
            if waiting:
                self.sleep(POLL_SECONDS)
            if time.monotonic() > look:  # nobody waits for a site that has gone
                here, look = self.nodes(), time.monotonic() + LOOK_SECONDS
                waiting = {number: node for number, node in waiting.items() if node in here}
        return found


def _letter(reply: Message) -> bytes:
    """Its letter, or one that nobody has signed: whatever a node sends, its site is complained of by name."""
    try:
        return unwrap(reply.content)
    except Exception:  # Flower's arrays raise all sorts
        return b""


class Status:
    """``status.json`` and ``complaints.log`` in the server's folder: what ``feddrm deploy status`` shows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.heard = folder, set[str]()

    def tell(self, what: str, more: Mapping[str, Any]) -> None:
        """A complaint is written down once, however often it is heard; why a run failed, every time."""
        if what == "failed" or (what == "complaint" and more["text"] not in self.heard):
            with (self.folder / COMPLAINTS).open("a") as file:
                file.write(f"{time.strftime('%F %T')} {more['text']}\n")
            self.heard.add(more["text"])
        if what == "complaint":
            return
        entry = {"time": time.time(), "what": what, **more}
        write_atomically(self.folder / "status.json", json.dumps(entry).encode())
