"""Federations whose letters travel as real Flower messages, taken apart into bytes and put together again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from safetensors import safe_open

from feddrm.deploy.flower.apps import client_app, site_at, unwrap, wrap
from feddrm.deploy.provision.project import make_project
from feddrm.deploy.server.federation_settings import ServerSettings
from feddrm.deploy.server.training import Server
from feddrm.deploy.wire.messages import load_private_key, load_public_key
from feddrm.models import is_head

NAMES = ("oslo", "lima", "pune")


def sent(message: Message) -> Message:
    """The message after it was serialised as Flower does, object by object."""
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {key: value.deflate() for key, value in get_all_nested_objects(message).items()}
    again = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(again, Message)
    again.metadata.__dict__["_message_id"] = message.object_id
    return again


@dataclass
class HandCourier:
    """Calls the ClientApp itself; ``away`` sites do not answer, and every letter is kept for inspection."""

    folder: Path
    away: Callable[[str, int], bool] = lambda name, count: False
    letters: list[tuple[str, str, bytes]] = field(default_factory=list)
    asked: int = 0

    def nodes(self) -> set[int]:
        return set(range(len(NAMES)))

    def ask(self, letters: Mapping[int, bytes], deadline: float, kind: str) -> dict[int, bytes]:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.asked += 1
        found = {}
        for node, letter in letters.items():
            name = NAMES[node]
            self.letters.append(("to", name, letter))
            message = sent(Message(wrap(letter), dst_node_id=node, message_type=kind, ttl=deadline))
            config = {"site": str(self.folder / "sites" / name)}
            context = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})
            reply = sent(client_app(message=message, context=context))
            if self.away(name, self.asked):
                continue
            found[node] = unwrap(reply.content)
            self.letters.append(("from", name, found[node]))
        return found


@dataclass
class Deployed:
    """A project on disk, and a server over it that can be started again as often as one likes."""

    folder: Path
    settings: ServerSettings
    complaints: list[str] = field(default_factory=list)

    def server(self, courier: HandCourier | None = None, **changes: Any) -> Server:
        keys = self.folder / "server" / "keys"

        def say(what: str, more: Mapping[str, Any]) -> None:
            if what == "complaint":
                self.complaints.append(more["text"])

        return Server(
            replace(self.settings, **changes),
            self.folder / "server" / "runs" / self.settings.run,
            courier or HandCourier(self.folder),
            load_private_key(keys / "server.key"),
            {name: load_public_key(keys / f"{name}.pub") for name in NAMES},
            say,
            lambda seconds: None,
        )

    def restart_sites(self) -> None:
        """As after a kill: nothing is left but what is on disk."""
        site_at.cache_clear()


@pytest.fixture
def deployed(tmp_path: Path) -> Callable[..., Deployed]:
    """Make a project of three shares of the digits."""

    def make(data: Mapping[str, Any] | None = None, **settings: Any) -> Deployed:
        site_at.cache_clear()
        training = {"rounds": 2, "local_steps": 4, "batch_size": 16, **settings.pop("training", {})}
        chosen = ServerSettings(clients=NAMES, training=training, **settings)
        make_project(tmp_path / "federation", chosen, data=data or {"dataset": "digits", "seed": 7})
        return Deployed(tmp_path / "federation", chosen)

    return make


def private_leaves(folder: Path) -> list[str]:
    """Names of private leaves in any file of tensors under a folder: FedDRM's class heads."""
    found = []
    for path in folder.rglob("*.safetensors"):
        with safe_open(str(path), framework="pt") as file:
            found += [f"{path}: {name}" for name in file.keys() if is_head(name.split("/")[-1])]  # noqa: SIM118
    return found
