"""The server after a crash at any moment, and what its messages and files do not contain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from deployment import NAMES, Deployed, DirectTransport, assert_same, in_one_process, private_leaves
from feddrm.deploy.server.training import ServerState
from feddrm.deploy.site.site_fit import ROW_STEPS
from feddrm.deploy.wire.messages import Message, unpack
from feddrm.engine import Plan
from feddrm.models import is_head
from plugin_files import new_process, write_examples
from refusal import refused

pytestmark = pytest.mark.slow

Make = Callable[..., Deployed]
PLAN = Plan(rounds=4, local_steps=4, batch_size=16, lr=0.05)


CARELESS = """
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch.nn.functional import cross_entropy

from feddrm.methods import FedAvg, Phase, Stage


@dataclass(frozen=True)
class Careless(FedAvg):
    \"\"\"The mean loss counts the empty places of a batch.\"\"\"

    name: ClassVar[str] = "careless"

    def phases(self, stage: Stage) -> Sequence[Phase]:
        return [Phase(stage.steps, lambda net, slots, b: cross_entropy(net(slots["model"], b.x).logits, b.y))]
"""


class Crash(Exception):
    """Stands for kill -9: nothing is tidied up."""


@pytest.mark.parametrize("crash_at", [2, 3, 4])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_server_continues_after_a_crash(
    crash_at: int, moment: str, deployed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It crashes with all replies in hand, right before or right after its checkpoint; the sites crash with it."""
    deployment = deployed(training={"rounds": 4}, router=False)
    save = ServerState.save

    def crash(self: ServerState, path: Any) -> None:
        if self.round == crash_at and moment == "before":
            raise Crash
        save(self, path)
        if self.round == crash_at:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(ServerState, "save", crash)
        with pytest.raises(Crash):
            deployment.server().go()
    deployment.restart_sites()
    deployment.server().go()
    assert_same(deployment, in_one_process("feddrm", PLAN))
    assert [entry["round"] for entry in deployment.server().run.metrics()] == [1, 2, 3, 4]


def test_no_message_and_no_server_file_holds_private_leaves_or_samples(deployed: Make) -> None:
    """FedDRM keeps class heads private: no message and no file of the server has one. Nor do they have a sample."""
    routing = {"features": "raw", "path_rounds": 2, "rounds": 3, "heads": True, "joint": True}
    deployment = deployed(few=True, routing=routing)
    transport = DirectTransport(deployment.folder)
    deployment.server(transport).go()
    kinds = set()
    samples = deployment.samples()
    for way, name, signed in transport.messages:
        content = signed[2 + int.from_bytes(signed[:2], "big") :]
        header, tensors = unpack(content)
        kinds.add(header.get("kind") or header.get("step") or "reply")
        assert not [leaf for leaf in tensors if is_head(leaf) or "correction" in leaf], (way, name, header)
        own = samples[NAMES.index(name)].shape[0]
        assert way == "to" or not [n for n, value in tensors.items() if own in value.shape], "a number per sample"
        for row in samples[NAMES.index(name)][:20]:
            assert row.numpy().tobytes() not in content
            assert row.float().numpy().tobytes() not in content
    assert {"hello", "train", "fit", "finish"} <= kinds
    request = Message({"brief": deployment.server().run_spec().as_dict()}, {})
    steps = set(deployment.site("oslo")._run_of(request).fit._steps)
    assert steps - {*ROW_STEPS, "score_scatter"} <= kinds, "a comparison's question is looked at in test_finish.py"
    assert not kinds & set(ROW_STEPS), "nobody has agreed to send features of single samples"
    server = deployment.folder / "server"
    assert not private_leaves(server)
    everything = b"".join(signed for _, _, signed in transport.messages)
    for name in NAMES:
        own = load_file(deployment.site_folder(name) / "clients" / name / "head.safetensors")["correction"]
        assert own.any()
        for row in own:  # the refitted head that stays on the site, in either precision
            assert row.numpy().tobytes() not in everything
            assert row.double().numpy().tobytes() not in everything
    assert (deployment.run / "router" / "manifest.json").exists()
    for name in NAMES:
        assert private_leaves(deployment.site_folder(name) / "clients" / name)


def test_a_method_that_counts_places_without_a_sample_is_refused_before_round_1(
    deployed: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in one process, by the same function. Of the sample that it was tried on leaves yes or no alone."""
    (tmp_path / "careless.py").write_text(CARELESS)
    with new_process(monkeypatch):
        monkeypatch.setenv("FEDDRM_PLUGINS", str(tmp_path / "careless.py"))
        deployment = deployed(few=True, router=False, training={"method": "careless"})
        transport = DirectTransport(deployment.folder)
        with refused("careless: its loss or statistics depend on places", "tried at oslo, lima, pune", "another 'run'"):
            deployment.server(transport).go()
        assert not deployment.complaints
        assert not deployment.server().run.metrics()
        assert not deployment.server().checkpoint.exists()
        for name in NAMES:
            assert not list(deployment.site_folder(name).glob("runs/*/private-*")), "no site has trained"
        replies = [unpack(signed[2 + int.from_bytes(signed[:2], "big") :]) for _, _, signed in transport.messages[-3:]]
        kept = {"from", "answers", "seconds", "unmasked"}
        checked = [reply for reply in replies if "unmasked" in reply.header]
        assert checked
        assert all((set(reply.header), reply.tensors) == (kept, {}) for reply in checked)


def test_a_method_of_a_plugin_is_checked_once_and_those_of_the_package_are_not(
    deployed: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kinds(deployment: Deployed) -> list[str]:
        transport = DirectTransport(deployment.folder)
        deployment.server(transport).go()
        sent = [signed for way, name, signed in transport.messages if (way, name) == ("to", "lima")]
        return [unpack(signed[2 + int.from_bytes(signed[:2], "big") :]).header["kind"] for signed in sent]

    trained = ["train", "train", "finish"]
    with new_process(monkeypatch):
        monkeypatch.setenv("FEDDRM_PLUGINS", str(write_examples(tmp_path)[0]))
        deployment = deployed(few=True, router=False, training={"method": "fedmedian"})
        assert kinds(deployment) == ["hello", "check method", *trained]
        assert not deployment.complaints


def test_the_check_of_a_method_waits_for_a_site_that_can_try_it(
    deployed: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All replies are lost once. No round is trained until one has come."""
    with new_process(monkeypatch):
        monkeypatch.setenv("FEDDRM_PLUGINS", str(write_examples(tmp_path)[0]))
        deployment = deployed(few=True, router=False, training={"method": "fedmedian"})
        events: list[tuple[str, Any]] = []
        server = deployment.server(DirectTransport(deployment.folder, away=lambda name, count: count == 2))
        monkeypatch.setattr(server.channel, "on_event", lambda *event: events.append(event))
        server.go()
        kinds = [event for event, _ in events if event in ("waiting", "round started")]
        assert kinds == ["waiting", "round started", "round started"]
