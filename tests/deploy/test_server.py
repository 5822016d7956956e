"""What the server does when sites are late, away, lost or not who they say; and after a crash at any moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from feddrm.deploy import local_cluster
from feddrm.deploy.flower.apps import site_at
from feddrm.deploy.provision.certificates import new_key
from feddrm.deploy.server.training import Progress, Server
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.site.site import Site
from feddrm.deploy.wire.messages import Message, pack, seal, unpack
from feddrm.engine import Plan, RoundSchedule
from feddrm.errors import FeddrmError
from feddrm.models import is_head
from refusal import refused

from .conftest import NAMES, Deployed, HandCourier, private_leaves
from .test_parity import assert_same, in_one_process

Make = Callable[..., Deployed]
PLAN = Plan(rounds=4, local_steps=4, batch_size=16, lr=0.05)


class Crash(Exception):
    """Stands for kill -9: nothing is tidied up."""


@pytest.mark.parametrize("method", ["feddrm", "ditto", "fedala"])
def test_a_late_site_is_left_out_and_goes_on_from_what_was_taken(method: str, deployed: Make) -> None:
    """Lima trains in round 2, but its answer comes too late: its private part after round 2 must not be used."""
    deployment = deployed(training={"method": method, "rounds": 4}, router=False)
    courier = HandCourier(deployment.folder, away=lambda name, count: name == "lima" and count == 3)  # 1 is hello
    deployment.server(courier).go()
    only = [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert_same(deployment, in_one_process(method, PLAN, only))


@pytest.mark.parametrize("crash_at", [2, 3, 4])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_server_goes_on_after_a_crash(
    crash_at: int, moment: str, deployed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies with all answers in hand, right before or right after its checkpoint; the sites die with it."""
    deployment = deployed(training={"rounds": 4}, router=False)
    save = Progress.save

    def dying(self: Progress, path: Any) -> None:
        if self.round == crash_at and moment == "before":
            raise Crash
        save(self, path)
        if self.round == crash_at:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "save", dying)
        with pytest.raises(Crash):
            deployment.server().go()
    deployment.restart_sites()
    deployment.server().go()
    assert_same(deployment, in_one_process("feddrm", PLAN))
    lines = deployment.server().run.metrics()
    assert [entry["round"] for entry in lines] == [1, 2, 3, 4]


def test_a_site_that_lost_its_private_part_says_so_and_is_left_out(deployed: Make) -> None:
    deployment = deployed(training={"rounds": 2}, router=False)
    server = deployment.server()
    progress = server._progress(brief := server._brief(), brief.make_method())
    agenda = RoundSchedule(brief.make_method(), brief.make_plan(), 3)
    progress = server._round(brief, brief.make_method(), agenda, progress)
    assert progress is not None
    for path in (deployment.folder / "sites" / "lima" / "runs" / "first").iterdir():
        path.unlink()
    progress = server._round(brief, brief.make_method(), agenda, progress)
    assert progress is not None
    assert progress.history[-1]["answered"] == ["oslo", "pune"]
    assert "no private part after round 1" in deployment.complaints[0]


def test_too_few_answers_make_no_round(deployed: Make) -> None:
    deployment = deployed(training={"rounds": 2}, router=False, quorum=3)
    away = HandCourier(deployment.folder, away=lambda name, count: name == "lima" and count in (2, 3))
    deployment.server(away).go()
    assert away.asked >= 1 + 2 + 2
    assert_same(deployment, in_one_process("feddrm", Plan(rounds=2, local_steps=4, batch_size=16, lr=0.05)))


def test_old_private_parts_are_forgotten(deployed: Make) -> None:
    deployment = deployed(training={"rounds": 4}, router=False)
    deployment.server().go()
    assert PrivateStore(deployment.folder / "sites" / "oslo" / "runs" / "first").rounds() == [3, 4]


def test_letters_not_signed_by_the_server_are_refused(deployed: Make) -> None:
    deployment = deployed(router=False)
    site = site_of(deployment, "oslo")
    with pytest.raises(FeddrmError, match="the server has not signed"):
        site.handle(seal(pack({"kind": "hello", "to": "*"}), new_key()))
    with pytest.raises(FeddrmError, match="reached 'oslo'"):
        site.handle(seal(pack({"kind": "train", "to": "lima"}), deployment.server().post.key))


def test_answers_not_signed_by_the_site_are_not_believed(deployed: Make) -> None:
    deployment = deployed(router=False)
    server = deployment.server()
    keys = dict(server.post.site_keys)
    server.post.site_keys = {**keys, "lima": keys["oslo"]}
    assert set(server.post.meet()) == {"oslo", "pune"}
    assert any("none of this federation's keys" in text for text in deployment.complaints)


def test_an_old_answer_is_no_answer(deployed: Make) -> None:
    deployment = deployed(router=False)
    courier = HandCourier(deployment.folder)
    server: Server = deployment.server(courier)
    server.post.meet()
    old = next(letter for way, name, letter in courier.letters if (way, name) == ("from", "oslo"))
    assert server.post.believe(old, pack({"kind": "train", "to": "oslo"}), "oslo") is None
    assert "another letter" in deployment.complaints[-1]


def test_no_message_and_no_server_file_holds_private_leaves_or_samples(deployed: Make) -> None:
    """FedDRM keeps class heads private: not in any letter, not in any file of the server; nor is any sample."""
    routing = {"features": "raw", "path_rounds": 2, "rounds": 3, "heads": True, "joint": True}
    deployment = deployed(routing=routing)
    courier = HandCourier(deployment.folder)
    deployment.server(courier).go()
    kinds = set()
    samples = _samples(deployment)
    for way, name, sealed in courier.letters:
        content = sealed[2 + int.from_bytes(sealed[:2], "big") :]
        header, tensors = unpack(content)
        kinds.add(header.get("kind") or header.get("step") or "answer")
        assert not [leaf for leaf in tensors if is_head(leaf) or "correction" in leaf], (way, name, header)
        own = samples[NAMES.index(name)].shape[0]
        assert way == "to" or not [n for n, value in tensors.items() if own in value.shape], "a number per sample"
        for row in samples[NAMES.index(name)][:20]:
            assert row.numpy().tobytes() not in content
            assert row.float().numpy().tobytes() not in content
    assert {"hello", "train", "fit", "finish"} <= kinds
    assert set(site_of(deployment, "oslo")._ready(Message({"brief": brief(deployment)}, {})).fit._steps) <= kinds
    server = deployment.folder / "server"
    assert not private_leaves(server)
    letters = b"".join(sealed for _, _, sealed in courier.letters)
    for name in NAMES:
        own = load_file(deployment.folder / "sites" / name / "clients" / name / "head.safetensors")["correction"]
        assert own.any()
        for row in own:  # the refitted head that stays on the site, in either precision
            assert row.numpy().tobytes() not in letters
            assert row.double().numpy().tobytes() not in letters
    assert (server / "runs" / "first" / "router" / "manifest.json").exists()
    for name in NAMES:
        assert private_leaves(deployment.folder / "sites" / name / "clients" / name)


def brief(deployment: Deployed) -> dict[str, Any]:
    return deployment.server()._brief().as_dict()


def site_of(deployment: Deployed, name: str) -> Site:
    return site_at(str(deployment.folder / "sites" / name))


def _samples(deployment: Deployed) -> list[torch.Tensor]:
    sites = [site_of(deployment, name) for name in NAMES]
    return [site.holdings.client(site.holdings.classes).train.x for site in sites]


def test_a_broken_off_privacy_run_reports_every_site(deployed: Make) -> None:
    """Lima misses the last round: what it has spent before is reported all the same."""
    deployment = deployed(privacy={"clip": 1.0, "noise": 3.0})
    courier = HandCourier(deployment.folder, away=lambda name, count: name == "lima" and count == 3)
    deployment.server(courier).go()
    spent = deployment.server().run.summary()["privacy"]["epsilon"]
    assert set(spent) == set(NAMES)
    assert spent["lima"] < spent["oslo"]


def test_nobody_there_in_the_fit_is_waited_for_in_peace(deployed: Make) -> None:
    """All sites are gone for a while: the server sleeps between its looks, and the fit goes on."""
    deployment = deployed(routing={"features": "raw", "path_rounds": 1, "rounds": 1})
    courier = HandCourier(deployment.folder, away=lambda name, count: count in (8, 9))
    server, slept = deployment.server(courier), []
    server.sleep = slept.append
    server.go()
    assert len(slept) == 2
    assert (deployment.folder / "server" / "runs" / "first" / "router" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"training": {"rounds": 6, "local_steps": 4, "batch_size": 16}},
            "training.rounds 2, federation.yaml now says 6",
        ),
        ({"training": {"rounds": 2, "local_steps": 4}}, "training.batch_size 16, federation.yaml now says not given"),
        ({"router": True}, "router false, federation.yaml now says true"),
        ({"privacy": {"clip": 1.0, "noise": 2.0}}, "privacy.clip not given, federation.yaml now says 1.0"),
    ],
)
def test_other_settings_need_another_run(changes: dict[str, Any], told: str, deployed: Make) -> None:
    """In the midst of a run and after it, by the server and by whoever asks it to train."""
    deployment = deployed(router=False)
    deployment.server()._brief()
    with refused(told, "choose another 'run'"):
        deployment.server(**changes).go()
    deployment.server(deadline=5.0).go()  # how long to wait decides nothing
    path = deployment.folder / "server" / "federation.yaml"
    assert local_cluster.run(deployment.folder, lambda status: None)["rounds"] == 2
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))
    with refused(told, "choose another 'run'"):
        local_cluster.run(deployment.folder, lambda status: None)
