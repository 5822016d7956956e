"""Rounds with sites that are late, away or have lost their files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deployment import NAMES, Deployed, DirectTransport, assert_same, in_one_process, play_round
from feddrm.deploy.provision.members import remove_site
from feddrm.deploy.server.training import ServerState, Training
from feddrm.deploy.wire.messages import unpack
from feddrm.engine import Plan
from feddrm.engine.communication import Communication
from refusal import refused

Make = Callable[..., Deployed]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["feddrm", "ditto", "fedala"])
def test_a_late_site_is_left_out_and_continues_from_its_last_accepted_round(method: str, deployed: Make) -> None:
    """Lima trains in round 2, but its reply is late: its private slots after round 2 must not be used."""
    deployment = deployed(training={"method": method, "rounds": 4}, router=False)
    transport = DirectTransport(deployment.folder, away=lambda name, count: name == "lima" and count == 3)  # 1 is hello
    deployment.server(transport).go()
    only = [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert_same(deployment, in_one_process(method, Plan(rounds=4, local_steps=4, batch_size=16, lr=0.05), only))


@pytest.mark.slow
def test_a_site_that_lost_its_private_slots_is_left_out_and_says_why(deployed: Make) -> None:
    deployment = deployed(router=False)
    server = deployment.server()
    play_round(server)
    for path in (deployment.site_folder("lima") / "runs" / "first").iterdir():
        path.unlink()
    assert play_round(server).history[-1]["answered"] == ["oslo", "pune"]
    assert "no private part after round 1" in deployment.complaints[0]


@pytest.mark.slow
def test_a_private_part_of_another_course_of_the_run_is_not_used(deployed: Make, tmp_path: Path) -> None:
    """All folders go back to a copy; the run takes another course; then one site gets its folder of the first course.

    It has a private part after the same round, which was made from other parameters. It was used without a word.
    """
    deployment = deployed(few=True, router=False, training={"rounds": 4})
    copies = [deployment.folder / "server", *(deployment.site_folder(name) for name in NAMES)]

    def copy(folder: Path, to: Path) -> None:
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(folder, to)
        deployment.restart_sites()

    play_round(deployment.server())
    for folder in copies:
        copy(folder, tmp_path / "first" / folder.name)
    server = deployment.server()
    for _ in range(2):
        play_round(server)
    copy(deployment.site_folder("lima"), tmp_path / "lima")
    for folder in copies:
        copy(tmp_path / "first" / folder.name, folder)
    oslo_away = DirectTransport(deployment.folder, away=lambda name, count: (name, count) == ("oslo", 2))  # 1 is hello
    server = deployment.server(oslo_away)
    assert play_round(server).history[-1]["answered"] == ["lima", "pune"]
    assert play_round(server).history[-1]["answered"] == ["oslo", "lima", "pune"]
    copy(deployment.site_folder("lima"), tmp_path / "latest")
    copy(tmp_path / "lima", deployment.site_folder("lima"))
    state = play_round(server)
    assert state.history[-1]["answered"] == ["oslo", "pune"]
    assert (
        "private part after round 3 is not the one that the server went on from" in state.history[-1]["missing"]["lima"]
    )
    copy(tmp_path / "latest", deployment.site_folder("lima"))
    server.go()
    assert server.run.summary()["accepted"] == {"oslo": 4, "lima": 3, "pune": 4}


def test_a_damaged_checkpoint_is_named_with_the_remedy(tmp_path: Path) -> None:
    """It was called a message of another version of feddrm."""
    path = tmp_path / "checkpoint.safetensors"
    ServerState(1, {"leaf": torch.ones(2)}, {"oslo": 1}).save(path)
    path.write_bytes(path.read_bytes()[:-1])
    with refused(f"{path} is broken (it is not whole)", "put it back from a copy, or choose another 'run'"):
        ServerState.load(path)


@pytest.mark.slow
def test_a_server_that_went_back_to_an_older_checkpoint_is_told_so(deployed: Make, tmp_path: Path) -> None:
    deployment = deployed(few=True, router=False, training={"rounds": 4})
    server = deployment.server()
    play_round(server)
    shutil.copy(server.checkpoint, tmp_path)
    expected, _ = play_round(server), play_round(server)
    shutil.copy(tmp_path / server.checkpoint.name, server.checkpoint)
    training = Training(server.settings, server.run_spec(), server.channel)
    played = training.next_round(server.state(training))
    assert played is None
    assert "holds no private part after round 1, only after [2, 3]" in server.channel.absences["oslo"]
    expected.save(server.checkpoint)  # one round back: every site still has what it went on from
    assert play_round(server).history[-1]["answered"] == list(NAMES)


@pytest.mark.slow
def test_a_round_with_too_few_replies_is_asked_again(deployed: Make) -> None:
    deployment = deployed(router=False, quorum=3)
    transport = DirectTransport(deployment.folder, away=lambda name, count: name == "lima" and count in (2, 3))
    deployment.server(transport).go()
    assert transport.asked >= 1 + 2 + 2
    assert_same(deployment, in_one_process("feddrm", Plan(rounds=2, local_steps=4, batch_size=16, lr=0.05)))


@pytest.mark.slow
def test_the_privacy_cost_of_a_site_that_missed_the_last_round_is_reported(deployed: Make) -> None:
    deployment = deployed(privacy={"clip": 1.0, "noise": 3.0})
    transport = DirectTransport(deployment.folder, away=lambda name, count: name == "lima" and count == 3)
    deployment.server(transport).go()
    spent = deployment.server().run.summary()["privacy"]["epsilon"]
    assert set(spent) == set(NAMES)
    assert spent["lima"] < spent["oslo"]


def test_the_state_comes_back_from_its_file(tmp_path: Path) -> None:
    """With its leaves in their order: sums depend on it in the last bit."""
    shared = {"b": torch.tensor([1.0, 2.0]), "a": torch.tensor([[3.0]])}
    sent = Communication().after("train", [12], [12]).after("tune", [12, 12], [0])
    ServerState(2, shared, {"oslo": 2, "lima": 1}, ({"round": 1}, {"round": 2}), sent).save(tmp_path / "state")
    state = ServerState.load(tmp_path / "state")
    assert state.communication == sent
    assert (state.round, state.accepted, state.history) == (2, {"oslo": 2, "lima": 1}, ({"round": 1}, {"round": 2}))
    assert list(state.shared) == ["b", "a"]
    assert all(torch.equal(state.shared[leaf], value) for leaf, value in shared.items())


@pytest.mark.slow
def test_a_late_site_was_sent_the_leaves_and_one_that_is_not_connected_was_not(deployed: Make) -> None:
    """Lima's reply to round 2 is late, and in round 3 it is gone. A server of an older version counted nothing."""
    deployment = deployed(few=True, training={"method": "fedavg", "rounds": 4}, router=False)
    transport = DirectTransport(deployment.folder, away=lambda name, count: name == "lima" and count == 3)
    server = deployment.server(transport)
    for gone in (False, False, True):
        transport.gone = lambda name, gone=gone: gone and name == "lima"
        state = play_round(server)
    each = 4 * sum(value.numel() for value in state.shared.values())
    assert state.communication.stages == {"train": (3, 3 + 3 + 2, 3 + 2 + 2, 8 * each, 7 * each)}
    assert state.history[-1]["communication"] == {
        "bytes_down": 8 * each, "bytes_up": 7 * each, "bytes_total": 15 * each,
    }  # fmt: skip
    replace(state, communication=Communication()).save(server.checkpoint)
    transport.gone = lambda name: False  # the last message waits for every site
    server.go()
    assert "communication" not in server.run.summary()


@pytest.mark.slow
def test_a_site_that_is_removed_during_a_run_is_not_asked_again(deployed: Make) -> None:
    """Its replies would not be accepted either; the outcome is that of one process without it from then on."""
    deployment = deployed(training={"rounds": 3}, router=False)
    transport = DirectTransport(deployment.folder)
    server = deployment.server(transport)
    play_round(server)
    remove_site(deployment.folder / "server", "lima")
    before = len(transport.messages)
    server.go()
    exchanged = [content for _, name, content in transport.messages[before:] if name == "lima"]
    sent = [unpack(content[2 + int.from_bytes(content[:2], "big") :]) for content in exchanged]
    assert {message.header.get("kind", "reply") for message in sent} <= {"hello", "reply"}, "it is still connected"
    assert server.run.summary()["removed"] == ["lima"]
    assert server.run.summary()["accepted"]["lima"] == 1
    only = [[0, 1, 2], [0, 2], [0, 2]]
    assert_same(deployment, in_one_process("feddrm", Plan(rounds=3, local_steps=4, batch_size=16, lr=0.05), only))
    assert (deployment.site_folder("lima") / "runs" / "first" / "private-1.safetensors").exists()
