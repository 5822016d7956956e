"""The server after a crash at any moment, and what its messages and files do not contain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from safetensors.torch import load_file

from deployment import NAMES, Deployed, DirectTransport, assert_same, in_one_process, private_leaves
from feddrm.deploy.server.training import ServerState
from feddrm.deploy.site.site_fit import ROW_STEPS
from feddrm.deploy.wire.messages import Message, unpack
from feddrm.engine import Plan
from feddrm.models import is_head

pytestmark = pytest.mark.slow

Make = Callable[..., Deployed]
PLAN = Plan(rounds=4, local_steps=4, batch_size=16, lr=0.05)


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
