"""What a site refuses, also if its server has signed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from deployment import NAMES, QUICK_ROUTING, Deployed, DirectTransport, play_round
from feddrm.deploy import cluster_status
from feddrm.deploy.privacy import Privacy
from feddrm.deploy.provision.certificates import new_key
from feddrm.deploy.server.status import ServerStatus
from feddrm.deploy.server.training import Training
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.site.without_places import without_places
from feddrm.deploy.wire.masks import sign_mask_key
from feddrm.deploy.wire.messages import Message, pack, sign, unpack, verify
from feddrm.deploy.wire.run_spec import FIT_PROTOCOL
from feddrm.router.answer_calibration import AnswerCalibration
from refusal import refused

pytestmark = pytest.mark.slow

Make = Callable[..., Deployed]


def reply_to(deployment: Deployed, kind: str, brief: dict[str, Any], **header: Any) -> Message:
    """The reply of oslo to a message that the server signed: a first round, or the end after no round."""
    server = deployment.server()
    shared = Training(server.settings, server.run_spec(), server.channel).initial_state().shared
    content = pack({"kind": kind, "to": "oslo", "brief": brief, "round": 1, "after": 0, **header}, shared)
    reply = deployment.site("oslo").handle(sign(content, server.channel.key))
    return unpack(verify(reply, server.channel.site_keys["oslo"], "oslo"))


def test_messages_that_the_server_has_not_signed_get_no_reply(deployed: Make) -> None:
    deployment = deployed(router=False)
    site = deployment.site("oslo")
    with refused("the server has not signed"):
        site.handle(sign(pack({"kind": "hello", "to": "*"}), new_key()))
    with refused("a message to 'lima' reached 'oslo'"):
        site.handle(sign(pack({"kind": "train", "to": "lima"}), deployment.server().channel.key))


def test_a_fault_is_logged_on_the_site_and_the_server_learns_its_kind_only(
    deployed: Make, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = deployed(router=False)
    reply = reply_to(deployment, "train", deployment.server().run_spec().as_dict(), round="secret")
    assert reply.header["error"] == "ValueError at oslo: see its log"
    assert "'secret'" in caplog.text


@pytest.mark.parametrize("run", ["../../../../pwn", "", "a/b", "/tmp/pwn", 7])
@pytest.mark.parametrize("kind", ["train", "finish", "fit"])
def test_a_run_name_that_would_leave_the_sites_folder_is_refused(run: Any, kind: str, deployed: Make) -> None:
    deployment = deployed(router=False)
    agreed = deployment.server().run_spec().as_dict()
    before = sorted(deployment.folder.parent.rglob("*"))
    reply = reply_to(deployment, kind, {**agreed, "run": run})
    shown = without_places(repr(run), deployment.site_folder("oslo"))
    assert reply.header["error"] == f"run {shown} names folders: use letters, digits, '-' or '_'"
    assert not reply.tensors
    assert sorted(deployment.folder.parent.rglob("*")) == before


def test_warnings_of_samples_stay_at_the_site(deployed: Make, caplog: pytest.LogCaptureFixture) -> None:
    """They stand once in its log, and in its status until its samples are corrected. No message has them."""
    deployment = deployed(few=True, router=False)
    x, y = np.random.default_rng(0).normal(size=(90, 6)), np.arange(90) % 3
    x[::30, 2] = 999
    clean = (deployment.site_folder("lima") / "samples.npz").read_bytes()
    np.savez(deployment.site_folder("lima") / "samples.npz", x=x, y=y)
    transport = DirectTransport(deployment.folder)
    deployment.server(transport).go()
    found = [record for record in caplog.records if "'x2' is 999 in" in record.getMessage()]
    assert [record.getMessage().partition(": ")[0] for record in found] == ["its samples"]
    shown = {name: cluster_status.site_status(deployment.site_folder(name))["samples"] for name in NAMES}
    assert shown["lima"] == [found[0].getMessage().partition(": ")[2]]
    assert (shown["oslo"], shown["pune"]) == ([], [])
    assert not any(b"999" in signed and b"missing" in signed for _, _, signed in transport.messages)
    (deployment.site_folder("lima") / "samples.npz").write_bytes(clean)
    deployment.restart_sites()
    deployment.site("lima")
    assert cluster_status.site_status(deployment.site_folder("lima"))["samples"] == []


PRIVACY = {"clip": 1.0, "noise": 3.0}


@pytest.mark.parametrize("offered", [None, {"clip": 1e9, "noise": 3.0}, {"clip": 1.0, "noise": 2.9}])
@pytest.mark.parametrize("kind", ["train", "finish", "fit"])
def test_less_privacy_than_the_site_demands_is_refused(
    offered: dict[str, float] | None, kind: str, deployed: Make
) -> None:
    """All agreed on privacy with 'init --clip --noise', so every site demands it. Then the server offers less."""
    deployment = deployed(privacy=PRIVACY)
    agreed = deployment.server().run_spec().as_dict()
    reply = reply_to(deployment, kind, {**agreed, "privacy": offered}, step="features")
    assert "oslo demands privacy, clip at most 1 and noise at least 3" in reply.header["error"]
    assert "\n" not in reply.header["error"]
    assert set(reply.header) == {"error", "from", "answers", "seconds"}, "no loss, no accuracy"
    assert not reply.tensors


def test_more_privacy_than_the_site_demands_is_accepted(deployed: Make) -> None:
    deployment = deployed(privacy=PRIVACY)
    agreed = deployment.server().run_spec().as_dict()
    reply = reply_to(deployment, "train", {**agreed, "privacy": {"clip": 0.5, "noise": 6.0, "delta": 1e-6}})
    assert (reply.header["uploads"], set(reply.header) & {"error", "loss", "right"}) == (1, set())
    assert reply.tensors


@pytest.mark.parametrize("own", [True, False], ids=["demanded", "by the run spec alone"])
def test_no_sums_for_a_router_leave_a_private_site(own: bool, deployed: Make) -> None:
    deployment = deployed(privacy=PRIVACY if own else None)
    agreed = {**deployment.server().run_spec().as_dict(), "privacy": PRIVACY}
    sizes = list(agreed["sizes"])
    fit = {"step": "fold_moments", "recipe": [{"name": "raw"}], "parts": 10, "used": 3, "seed": 0, "sizes": sizes}
    reply = reply_to(deployment, "fit", agreed, **fit)
    assert "sums for a router" in reply.header["error"]
    assert not reply.tensors


def test_a_fit_by_another_protocol_is_refused(deployed: Make) -> None:
    """Older servers state none."""
    deployment = deployed()
    agreed = deployment.server().run_spec().as_dict()
    for header, spoken in (({"step": "features"}, 1), ({"step": "fold_moments", "fit_protocol": 7}, 7)):
        error = reply_to(deployment, "fit", agreed, **header).header["error"]
        assert f"by protocol {spoken}, this site by {FIT_PROTOCOL}" in error
        assert "install the same feddrm" in error


def test_a_demand_that_the_run_does_not_meet_stops_it_before_training(deployed: Make) -> None:
    """The reason stands in the server's log and status."""
    deployment = deployed(router=False)
    deployment.change_site("lima", privacy=PRIVACY)
    with refused("lima demands privacy", "noise at least 3", "offers nothing", "federation.yaml") as caught:
        deployment.server().go()
    status = ServerStatus(deployment.folder / "server")
    for _ in range(2):
        status.record("failed", {"text": str(caught.value)})
    assert cluster_status.status(deployment.folder)["complaint"].endswith(str(caught.value))
    assert cluster_status.status(deployment.folder)["server"]["what"] == "failed"


def test_a_demand_made_during_a_run_leaves_the_site_out_with_its_reason(deployed: Make) -> None:
    deployment = deployed(router=False)
    server = deployment.server()
    server.run_spec()
    deployment.change_site("lima", privacy=PRIVACY)
    assert play_round(server).history[-1]["answered"] == ["oslo", "pune"]
    assert [text for text in deployment.complaints if text.startswith("lima: lima demands privacy")]


def test_a_spent_budget_ends_a_sites_uploads_in_every_run(deployed: Make) -> None:
    """The budget is enough for two uploads and no third, in this run or under another name."""
    deployment = deployed(privacy=PRIVACY, training={"rounds": 3})
    deployment.change_site("lima", privacy={**PRIVACY, "budget": Privacy(1.0, 3.0).epsilon(2) + 1e-6})
    deployment.server().go()
    assert [entry["answered"] for entry in deployment.server().run.metrics()][2] == ["oslo", "pune"]
    assert any("lima: another upload would bring epsilon" in text for text in deployment.complaints)
    spent = deployment.server().run.summary()["privacy"]["epsilon"]
    assert spent["lima"] == Privacy(1.0, 3.0).epsilon(2) < spent["oslo"]
    deployment.settings = replace(deployment.settings, run="second")
    deployment.restart_sites()
    deployment.server().go()
    assert [entry["answered"] for entry in deployment.server().run.metrics()] == [["oslo", "pune"]] * 3


def test_a_site_keeps_the_calibration_that_its_test_samples_give(deployed: Make) -> None:
    """Those of the trained model and of the refitted head; what it serves has them."""
    predictor = pytest.importorskip("feddrm.predictor.predictor", reason="pip install 'feddrm[serve]' to run this")
    deployment = deployed(few=True, routing={**QUICK_ROUTING, "rounds": 3, "heads": True})
    transport = DirectTransport(deployment.folder)
    server = deployment.server(transport)
    server.go()
    classes, kept = server.run_spec().classes, []
    for name in NAMES:
        client = deployment.site(name).dataset.client(classes)
        for answer in ("trained", "refit"):
            head = predictor.Predictor.load(deployment.site_folder(name) / "clients" / name, answer=answer).head
            expected = AnswerCalibration.fit(head.samples(client.view(client.test.x)), client.test.y)
            assert head.calibration.temperature == pytest.approx(expected.temperature, rel=1e-3) != 1
            assert head.calibration.scores is not None
            assert torch.allclose(head.calibration.scores, expected.scores, atol=1e-4)
            kept.append(head.calibration.scores)
    for _, _, signed in transport.messages:
        header, tensors = unpack(signed[2 + int.from_bytes(signed[:2], "big") :])
        assert "temperature" not in str(header) + str(list(tensors))
        assert not any(
            own.shape == sent.shape and torch.allclose(own, sent.double()) for sent in tensors.values() for own in kept
        )


def test_a_site_that_requires_secure_aggregation_sends_nothing_without_it(deployed: Make) -> None:
    deployment = deployed(router=False)
    spec = deployment.server().run_spec().as_dict()
    deployment.change_site("oslo", require_secure_aggregation=True)
    for kind in ("train", "finish", "fit"):
        reply = reply_to(deployment, kind, spec)
        assert "oslo requires secure aggregation" in reply.header["error"]
        assert not reply.tensors
    reply = reply_to(deployment, "train", {**spec, "secure_aggregation": True})
    assert "no mask keys: nothing is sent" in reply.header["error"]
    deployment.change_site("oslo", share={"features": True})
    step = {"step": "held_out_rows", "fit_protocol": FIT_PROTOCOL}
    reply = reply_to(deployment, "fit", {**spec, "secure_aggregation": True}, **step)
    assert "rows of samples are no sums: none leave this site" in reply.header["error"]
    assert not reply.tensors


def test_a_server_cannot_pass_for_other_sites_by_the_name_of_its_own_key(deployed: Make) -> None:
    """``keys/../server.pub`` is the server's key: with two such sites it would know all masks of the third."""
    deployment = deployed(router=False, secure_aggregation=True)
    forged = ("../server", "./../server")
    agreed, signing = deployment.server().run_spec(), deployment.server().channel.key
    own = deployment.site("oslo").masks.signed_key(agreed, PrivateStore(deployment.folder / "store"))
    keys = {name: sign_mask_key(X25519PrivateKey.generate().public_key(), "first", name, signing) for name in forged}
    masks = {"nonce": "1", "keys": {"oslo": own["mask_key"], **keys}}
    reply = reply_to(deployment, "train", {**agreed.as_dict(), "names": ["oslo", *forged]}, masks=masks)
    assert not reply.tensors
    assert "'../server' cannot name a folder" in reply.header["error"]


def test_a_server_cannot_make_a_site_read_a_file(deployed: Make) -> None:
    """The model of an ONNX file would take the bytes of any path as a leaf."""
    deployment = deployed(router=False)
    path = str(deployment.site_folder("oslo") / "node.key")
    model = {"name": "onnx", "path": path, "width": 4}
    reply = reply_to(deployment, "train", {**deployment.server().run_spec().as_dict(), "model": model})
    assert "model=onnx is frozen" in reply.header["error"]
    assert deployment.site("oslo")._run is None


OTHER_TRAINING = "its private part after round 4 is of a training with another method, model or plan"


@pytest.mark.parametrize(
    ("method", "asked", "rounds", "number", "reason"),
    [
        ("fedrep", "fedavg", 100, 5, OTHER_TRAINING),
        ("fedavgft", "fedavgft", 100, 5, OTHER_TRAINING),
        ("fedavgft", "fedavgft", 4, 1, "round 1 is to follow round 4: rounds go up, nothing is sent"),
    ],
)
def test_a_server_cannot_make_a_site_share_what_is_private_in_its_run(
    method: str, asked: str, rounds: int, number: int, reason: str, deployed: Make
) -> None:
    """By another method under the name of the run, by later rounds that share again, by a round before the last one."""
    deployment = deployed(router=False, training={"method": method, "rounds": 4})
    deployment.server().go()
    spec = deployment.server().run_spec().as_dict()
    chosen = spec["method"] if asked == method else {"name": asked}
    changed = {**spec, "method": chosen, "plan": {**spec["plan"], "rounds": rounds}}
    reply = reply_to(deployment, "train", changed, round=number, after=4)
    assert reason in reply.header["error"]
    assert not reply.tensors
