"""Runs with secure aggregation: the server learns sums only, and they are those of a run without it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from deployment import NAMES, QUICK_ROUTING, Deployed, DirectTransport, play_round
from feddrm.deploy.provision.members import remove_site
from feddrm.deploy.server.federation_server import Server
from feddrm.deploy.server.training import ServerState, Training
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.wire.largest_value import STEPS
from feddrm.deploy.wire.masks import MASKED
from feddrm.deploy.wire.messages import Message, unpack
from feddrm.report.run_record import RunRecord
from feddrm.router import load_router
from refusal import refused

pytestmark = pytest.mark.slow

FOUR = (*NAMES, "kyiv")
Make = Callable[..., Deployed]


def opened(signed: bytes) -> Message:
    return unpack(signed[2 + int.from_bytes(signed[:2], "big") :])


def summary(deployment: Deployed) -> dict[str, Any]:
    return dict(json.loads((deployment.run / "summary.json").read_text()))


def one_training(server: Server) -> Training:
    """As a server process that has just been started has it."""
    return Training(server.settings, server.run_spec(), server.channel)


def initial_state(deployment: Deployed) -> ServerState:
    return one_training(deployment.server()).initial_state()


def both_ways(deployed: Make, few: bool = True, **settings: Any) -> tuple[Deployed, Deployed, DirectTransport]:
    """A run without secure aggregation and one with it, of the same sites, and the messages of the latter."""
    plain = deployed(few=few, **settings)
    plain.server().go()
    (plain.folder / "server" / "runs" / "first").rename(plain.folder / "server" / "runs" / "plain")
    masked = Deployed(plain.folder, plain.settings.__class__(**{**vars(plain.settings), "secure_aggregation": True}))
    plain = Deployed(plain.folder, plain.settings.__class__(**{**vars(plain.settings), "run": "plain"}))
    masked.restart_sites()
    transport = DirectTransport(masked.folder)
    masked.server(transport).go()
    assert not masked.complaints
    return plain, masked, transport


def test_model_router_and_metrics_are_those_of_a_run_without_it_and_the_server_sees_no_single_upload(
    deployed: Make,
) -> None:
    routing = {**QUICK_ROUTING, "rounds": 3, "heads": True, "joint": True}
    plain, masked, transport = both_ways(deployed, routing=routing)
    states = [ServerState.load(one.run / "checkpoint.safetensors") for one in (plain, masked)]
    for leaf, value in states[0].shared.items():
        torch.testing.assert_close(states[1].shared[leaf], value, rtol=0, atol=1e-6)
    for old, new in zip(states[0].history, states[1].history, strict=True):
        assert new["loss"] == pytest.approx(old["loss"], abs=1e-6)
        assert new["accuracy_before"] == old["accuracy_before"]
        assert new["answered"] == old["answered"]
    sent = [summary(one)["communication"] for one in (plain, masked)]
    assert sent[0]["bytes_down"] == sent[1]["bytes_down"]
    replies = [opened(signed) for way, _, signed in transport.messages if way == "from"]
    words = [reply.tensors[MASKED].nbytes for reply in replies if "round" in reply.header]
    assert len(words) == sent[1]["stages"]["train"]["uploads"]
    assert sent[1]["bytes_up"] == sum(words) > 2 * sent[0]["bytes_up"], "words of 64 bits, and loss and counts"
    old, new = (load_router(one.run / "router") for one in (plain, masked))
    torch.testing.assert_close(new.weight, old.weight, rtol=0, atol=1e-5)
    torch.testing.assert_close(new.bias, old.bias, rtol=0, atol=1e-5)
    assert new.calibration.temperature == pytest.approx(old.calibration.temperature, rel=1e-5)
    assert 1 - 1e-5 <= new.calibration.unlike_above / old.calibration.unlike_above < 1.02
    assert new.calibration.roughness is old.calibration.roughness is None, "rows of a table have none"
    before, after = (summary(one)["metrics"]["own"] for one in (plain, masked))
    assert after["worst_client"] is None
    for name in ("accuracy", "balanced_accuracy", "macro_f1", "auroc"):
        assert after[name]["value"] == pytest.approx(before[name]["value"], abs=1e-3)
    assert summary(masked)["average_accuracy"] == summary(plain)["average_accuracy"]
    record = RunRecord.read(masked.run)
    assert record.class_confusion["own"].sum() == RunRecord.read(plain.run).class_confusion["own"].sum()

    replies = [opened(signed) for way, _, signed in transport.messages if way == "from"]
    assert {name for reply in replies for name in reply.tensors} == {MASKED}
    told = {field for reply in replies for field in reply.header} - {"from", "answers", "seconds"}
    hello = set(replies[0].header)
    assert told - hello == {"mask_key", "sent_round", "sent_for", "round", "step", "metrics"}


def test_the_range_of_roughness_is_at_most_a_bin_wider(deployed: Make) -> None:
    plain, masked, _ = both_ways(deployed, few=False, routing=QUICK_ROUTING, training={"rounds": 1})
    narrow, wide = (load_router(one.run / "router").calibration.roughness for one in (plain, masked))
    assert narrow is not None
    assert wide is not None
    assert 1 <= wide.most / narrow.most < 2 ** (1 / STEPS)
    assert 1 <= narrow.least / wide.least < 2 ** (1 / STEPS)


def test_one_round_is_the_weighted_mean_to_the_fixed_point_bound(deployed: Make) -> None:
    deployment = deployed(router=False, secure_aggregation=True)
    server = deployment.server()
    uploads = []
    for name in NAMES:  # what every site would send without masks
        site = deployment.site(name)
        request = Message({"brief": server.run_spec().as_dict(), "after": 0}, {})
        run = site._run_of(request)
        state = initial_state(deployment)
        uploads.append(run.train(state.shared, run.private_slots(0), 1).upload)
    spec = server.run_spec()
    shares = [spec.share_of(name) for name in NAMES]
    got = play_round(server).shared
    for leaf, value in got.items():
        exact = sum(share * upload[leaf].double() for share, upload in zip(shares, uploads, strict=True))
        half_ulp = value.abs().double() * 2.0**-24
        assert ((value.double() - exact).abs() <= 3 * 2.0**-41 + half_ulp + 1e-15).all()


class Faults:
    """Sites of a run of four that are not there, or whose replies are lost, while they are named here."""

    def __init__(self, deployment: Deployed) -> None:
        self.gone: set[str] = set()
        self.lost: set[str] = set()
        self.transport = DirectTransport(
            deployment.folder,
            names=FOUR,
            away=lambda name, count: name in self.lost,
            gone=lambda name: name in self.gone,
        )


@pytest.fixture
def four(deployed: Make) -> Deployed:
    return deployed(clients=FOUR, router=False, secure_aggregation=True, training={"rounds": 4})


def test_a_site_that_is_away_before_the_keys_is_left_out_of_the_round(four: Deployed) -> None:
    faults = Faults(four)
    server = four.server(faults.transport)
    server.run_spec()
    faults.gone = {"lima"}
    state = play_round(server)
    assert state.history[-1]["answered"] == ["oslo", "pune", "kyiv"]
    faults.gone = set()
    assert play_round(server).history[-1]["answered"] == list(FOUR), "back, with its key"


def test_a_site_that_leaves_after_the_keys_makes_the_others_give_the_round_up(four: Deployed) -> None:
    """Its upload may still arrive: asked again without it, the difference of both sums would be its upload."""
    faults = Faults(four)
    server = four.server(faults.transport)
    before, training = play_round(server), one_training(server)
    training.sums.ready(FOUR, before.accepted)
    faults.lost = {"lima"}
    assert training.next_round(before) is None, "its reply is late"
    faults.lost, faults.gone = set(), {"lima"}
    given_up = training.next_round(before)
    assert given_up is not None
    assert (given_up.round, given_up.history[-1]["answered"]) == (2, [])
    assert all(torch.equal(given_up.shared[leaf], value) for leaf, value in before.shared.items())
    assert given_up.accepted == before.accepted
    assert "round 2 is given up: lima left it" in four.complaints[-1]
    after = training.next_round(given_up)
    assert after is not None
    assert after.history[-1]["answered"] == ["oslo", "pune", "kyiv"]
    sets = PrivateStore(four.site_folder("oslo") / "runs" / "first").recall("masked-rounds")
    assert sets is not None
    assert {round: len(names) for round, names in sets.header["sites"].items()} == {"1": 4, "2": 4, "3": 3}


def test_a_site_that_leaves_after_its_upload_counts_in_that_round(four: Deployed) -> None:
    faults = Faults(four)
    server = four.server(faults.transport)
    state = play_round(server)
    assert state.history[-1]["answered"] == list(FOUR)
    faults.gone = {"lima"}
    assert play_round(server).history[-1]["answered"] == ["oslo", "pune", "kyiv"]


def test_a_lost_reply_is_asked_for_again_with_new_masks_for_the_same_sites(four: Deployed) -> None:
    faults = Faults(four)
    server = four.server(faults.transport)
    training = one_training(server)
    begin = training.initial_state()
    training.sums.ready(FOUR, begin.accepted)
    faults.lost = {"lima"}
    assert training.next_round(begin) is None
    faults.lost = set()
    played = training.next_round(begin)
    assert played is not None
    assert played.history[-1]["answered"] == list(FOUR)
    masked = [
        opened(signed).tensors[MASKED]
        for way, name, signed in faults.transport.messages
        if (way, name) == ("from", "oslo") and MASKED in opened(signed).tensors
    ]
    assert len(masked) == 2
    assert not torch.equal(*masked)


def test_a_killed_server_gives_up_a_round_that_was_sent_for_a_site_that_is_away_now(four: Deployed) -> None:
    faults = Faults(four)
    training = one_training(four.server(faults.transport))
    begin = training.initial_state()
    training.sums.ready(FOUR, begin.accepted)
    faults.lost = {"lima"}
    assert training.next_round(begin) is None
    faults.lost, faults.gone = set(), {"lima"}
    four.restart_sites()
    again = one_training(four.server(faults.transport)).next_round(begin)
    assert again is not None
    assert (again.round, again.history[-1]["answered"]) == (1, [])


def test_sites_and_server_that_start_again_between_rounds_go_on_with_new_keys(deployed: Make) -> None:
    deployment = deployed(router=False, secure_aggregation=True, training={"rounds": 3})
    server = deployment.server()
    play_round(server)
    deployment.restart_sites()
    training = one_training(server)
    state = ServerState.load(server.checkpoint)
    while (played := training.next_round(state)) is None:
        assert len(deployment.complaints) < 10
    assert played.history[-1]["answered"] == list(NAMES)
    deployment.restart_sites()
    deployment.server().go()
    assert summary(deployment)["rounds"] == 3


def test_fewer_than_three_sites_are_waited_for_and_removed_ones_end_the_run(deployed: Make) -> None:
    deployment = deployed(router=False, secure_aggregation=True)
    gone: set[str] = set()
    transport = DirectTransport(deployment.folder, gone=lambda name: name in gone)
    server = deployment.server(transport)
    state = play_round(server)
    gone.add("lima")
    training = one_training(server)
    assert training.next_round(state) is None
    assert training.sums.missing == ["lima"]
    remove_site(deployment.folder / "server", "lima")
    server.channel.discover()
    with refused("2 sites are left", "needs 3", "choose another run"):
        training.next_round(state)


def test_a_site_that_keeps_refusing_stops_the_run_with_its_reason(deployed: Make) -> None:
    deployment = deployed(router=False, secure_aggregation=True)
    (deployment.site_folder("oslo") / "keys" / "pune.pub").unlink()
    with refused("oslo: has no keys/pune.pub", "30 times"):
        deployment.server().go()


def test_a_private_run_may_be_masked_too(deployed: Make) -> None:
    deployment = deployed(secure_aggregation=True, privacy={"clip": 1.0, "noise": 3.0})
    deployment.server().go()
    found = summary(deployment)
    assert set(found["privacy"]["epsilon"]) == set(NAMES)
    assert "average_accuracy" not in found
    assert found["router"] is None


def test_without_one_sites_metrics_the_run_has_accuracy_only(deployed: Make) -> None:
    deployment = deployed(router=False, secure_aggregation=True)
    deployment.change_site("lima", share={"metrics": False})
    deployment.server().go()
    found = summary(deployment)
    assert found["without_metrics"] == ["lima"]
    assert 0 < found["average_accuracy"] < 1
    assert "metrics" not in found
