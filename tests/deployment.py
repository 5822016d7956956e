"""Deployed federations for tests: real projects on disk, whose messages travel as Flower messages without a network."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import numpy as np
import torch
import yaml
from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from safetensors import safe_open

from feddrm.data import load
from feddrm.deploy.flower.apps import client_app, site_at, unwrap, wrap
from feddrm.deploy.server.federation_server import Server
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.site_keys import read_site_keys
from feddrm.deploy.server.training import ServerState, Training
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.site.site import Site
from feddrm.deploy.wire.channel import Channel
from feddrm.deploy.wire.key_files import load_private_key
from feddrm.deploy.wire.messages import unpack
from feddrm.engine import Plan, RoundSchedule, State, cpu_kernels, federate, first_state, functional
from feddrm.methods import Method
from feddrm.models import Model, is_head

NAMES = ("oslo", "lima", "pune")
QUICK_ROUTING = {"features": "raw", "path_rounds": 1, "rounds": 1}


def until(condition: Callable[[], Any], what: str = "", seconds: float = 20.0) -> Any:
    """Wait for a condition; returns its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {seconds} s for {what or condition}"
        time.sleep(0.05)
    return value


def serialised(message: Message) -> Message:
    """The message after Flower has taken it apart into bytes and put it together again."""
    with no_object_id_recompute():  # as Flower does it
        number = message.metadata.__dict__["_message_id"] = message.object_id
        contents = {key: value.deflate() for key, value in get_all_nested_objects(message).items()}
        again = inflate_object_from_contents(number, contents)
    assert isinstance(again, Message)
    again.metadata.__dict__["_message_id"] = number
    return again


@dataclass
class DirectTransport:
    """Calls the ClientApp in this process. ``away`` sites train but their replies are lost; all messages are kept."""

    folder: Path
    away: Callable[[str, int], bool] = lambda name, count: False
    messages: list[tuple[str, str, bytes]] = field(default_factory=list)
    asked: int = 0
    names: tuple[str, ...] = NAMES
    gone: Callable[[str], bool] = lambda name: False  # whose node is not connected

    def nodes(self) -> set[int]:
        return {node for node, name in enumerate(self.names) if not self.gone(name)}

    def ask(
        self, messages: Mapping[int, bytes], deadline: float, kind: str, on_wait: Callable[[set[int]], None]
    ) -> dict[int, bytes]:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.asked += 1
        replies = {}
        for node, content in messages.items():
            name = self.names[node]
            self.messages.append(("to", name, content))
            message = serialised(Message(wrap(content), dst_node_id=node, message_type=kind, ttl=deadline))
            config = {"site": str(self.folder / "sites" / name)}
            context = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})
            reply = serialised(client_app(message=message, context=context))
            if self.away(name, self.asked):
                continue
            replies[node] = unwrap(reply.content)
            self.messages.append(("from", name, replies[node]))
        return replies


@dataclass
class Deployed:
    """A project on disk, and servers over it: each is like a server process that has just been started."""

    folder: Path
    settings: FederationSettings
    complaints: list[str] = field(default_factory=list)

    @property
    def run(self) -> Path:
        """The server's run folder."""
        return self.folder / "server" / "runs" / self.settings.run

    def site_folder(self, name: str) -> Path:
        return self.folder / "sites" / name

    def server(self, transport: DirectTransport | None = None, **changes: Any) -> Server:
        keys = self.folder / "server" / "keys"

        def on_event(event: str, details: Mapping[str, Any]) -> None:
            if event == "complaint":
                self.complaints.append(details["text"])

        channel = Channel(
            transport or DirectTransport(self.folder, names=self.settings.clients),
            load_private_key(keys / "server.key"),
            lambda: read_site_keys(keys),
            on_event,
        )
        return Server(replace(self.settings, **changes), self.run, channel, lambda seconds: None)

    def site(self, name: str) -> Site:
        """The site that answers messages, as long as it is not restarted."""
        return site_at(str(self.site_folder(name)))

    def restart_sites(self) -> None:
        """As after a kill: nothing is left but what is on disk."""
        site_at.cache_clear()

    def change_site(self, name: str, **settings: Any) -> None:
        """Edit a site.yaml, and restart the sites."""
        path = self.site_folder(name) / "site.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **settings}))
        self.restart_sites()

    def give_share(self, name: str, client: int) -> None:
        """Give a site another share of the dataset, and restart the sites."""
        data = yaml.safe_load((self.site_folder(name) / "site.yaml").read_text())["data"]
        self.change_site(name, data={**data, "client": client})

    def give_few_samples(self, subjects: int | None = None) -> None:
        """Give every site 90 rows of six numbers: a fit takes a tenth of its time, its messages stay the same.

        Sites and their three classes overlap, so that no model and no router is always right. The rows may be
        of so many subjects.
        """
        whose = {} if subjects is None else {"subject": np.arange(90) % subjects}
        rng, y = np.random.default_rng(7), np.arange(90) % 3
        for number, name in enumerate(self.settings.clients):
            x = rng.normal(size=(90, 6)) + 0.4 * number
            x[:, :3] += 1.5 * np.eye(3)[y]
            np.savez(self.site_folder(name) / "samples.npz", x=x.astype(np.float32), y=y, **whose)
            self.change_site(name, data={"npz": "samples.npz"})

    def samples(self) -> list[torch.Tensor]:
        """The training samples of every site."""
        datasets = [self.site(name).dataset for name in NAMES]
        return [dataset.client(dataset.classes).train.x for dataset in datasets]


def play_round(server: Server) -> ServerState:
    """One round, saved as the server saves it."""
    training = Training(server.settings, server.run_spec(), server.channel)
    state = training.next_round(server.state(training))
    assert state is not None
    state.save(server.checkpoint)
    return state


def fit_steps(transport: DirectTransport) -> list[str]:
    """The steps of a fit, one for every message that oslo got."""
    sent = [signed for way, name, signed in transport.messages if (way, name) == ("to", "oslo")]
    headers = [unpack(signed[2 + int.from_bytes(signed[:2], "big") :]).header for signed in sent]
    return [header["step"] for header in headers if header["kind"] == "fit"]


def private_leaves(folder: Path) -> list[str]:
    """Names of private leaves in all safetensors files under a folder: FedDRM's class heads."""
    leaves = []
    for path in folder.rglob("*.safetensors"):
        with safe_open(str(path), framework="pt") as file:
            leaves += [f"{path}: {name}" for name in file.keys() if is_head(name.split("/")[-1])]  # noqa: SIM118
    return leaves


def in_one_process(
    method: str | Method, plan: Plan, only: list[list[int]] | None = None, model: Model | None = None
) -> State:
    """The final state of the same training in one process; ``only`` names the clients of every round."""
    federation = load("digits", clients=3, seed=7)
    chosen = Method.make(method) if isinstance(method, str) else method
    net = (model or Model.make("mlp")).build(federation.shape, 10, 3 if chosen.client_branch else None, plan.seed)
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    state, schedule = first_state(chosen, leaves, 3), RoundSchedule(chosen, plan, 3, only)
    with cpu_kernels(net, plan.batch_size):
        for result in federate(schedule, functional(net), federation, state):
            state = result.state
    return state


def assert_same(deployment: Deployed, expected: State) -> None:
    """Compare all shared and private leaves to the last bit."""
    state = ServerState.load(deployment.run / "checkpoint.safetensors")
    assert state.round == expected.round
    assert list(state.shared) == list(expected.shared)
    for leaf, value in expected.shared.items():
        assert torch.equal(state.shared[leaf], value), f"{leaf}: {(state.shared[leaf] - value).abs().max()}"
    for number, name in enumerate(NAMES):
        store = PrivateStore(deployment.site_folder(name) / "runs" / deployment.settings.run)
        accepted = state.accepted[name]
        if accepted == 0:
            continue
        private = store.load(accepted)
        assert set(private) == set(expected.private[number])
        for slot, leaves in expected.private[number].items():
            assert set(private[slot]) == set(leaves)
            for leaf, value in leaves.items():
                assert torch.equal(private[slot][leaf], value), f"{name}: {leaf}"
