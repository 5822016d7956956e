"""What a site refuses, whatever its server has signed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from feddrm.deploy import local_cluster
from feddrm.deploy.flower.apps import Status, site_at
from feddrm.deploy.privacy import Privacy
from feddrm.deploy.wire.messages import Message, opened, pack, seal, unpack
from feddrm.engine import RoundSchedule
from refusal import refused

from .conftest import Deployed

Make = Callable[..., Deployed]


def asked(deployment: Deployed, kind: str, brief: dict[str, Any], **header: Any) -> Message:
    """What oslo answers to a letter that the server signed: a first round, or the end after none."""
    server = deployment.server()
    agreed = server._brief()
    shared = server._progress(agreed, agreed.make_method()).shared
    letter = pack({"kind": kind, "to": "oslo", "brief": brief, "round": 1, "after": 0, **header}, shared)
    answer = site_at(str(deployment.folder / "sites" / "oslo")).handle(seal(letter, server.post.key))
    return unpack(opened(answer, server.post.site_keys["oslo"], "oslo"))


@pytest.mark.parametrize("run", ["../../../../pwn", "", "a/b", "/tmp/pwn", 7])
@pytest.mark.parametrize("kind", ["train", "finish", "fit"])
def test_a_run_that_would_leave_the_sites_folder(run: Any, kind: str, deployed: Make) -> None:
    deployment = deployed(router=False)
    agreed = deployment.server()._brief().as_dict()
    before = sorted(deployment.folder.parent.rglob("*"))
    answer = asked(deployment, kind, {**agreed, "run": run})
    assert answer.header["error"] == f"run {run!r} names folders: use letters, digits, '-' or '_'"
    assert not answer.tensors
    assert sorted(deployment.folder.parent.rglob("*")) == before


PRIVACY = {"clip": 1.0, "noise": 3.0}


def demand(deployment: Deployed, name: str, **privacy: float) -> None:
    """As its own IT department would write it."""
    path = deployment.folder / "sites" / name / "site.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "privacy": privacy}))
    deployment.restart_sites()


@pytest.mark.parametrize("offered", [None, {"clip": 1e9, "noise": 3.0}, {"clip": 1.0, "noise": 2.9}])
@pytest.mark.parametrize("kind", ["train", "finish", "fit"])
def test_less_privacy_than_a_site_demands(offered: dict[str, float] | None, kind: str, deployed: Make) -> None:
    """It was agreed on with 'init --clip --noise', so every site demands it; then the server thinks otherwise."""
    deployment = deployed(privacy=PRIVACY)
    agreed = deployment.server()._brief().as_dict()
    answer = asked(deployment, kind, {**agreed, "privacy": offered}, step="features")
    assert "oslo demands privacy, clip at most 1 and noise at least 3" in answer.header["error"]
    assert "\n" not in answer.header["error"]
    assert set(answer.header) == {"error", "from", "answers", "seconds"}, "no loss, no accuracy"
    assert not answer.tensors


def test_more_privacy_than_a_site_demands_is_welcome(deployed: Make) -> None:
    deployment = deployed(privacy=PRIVACY)
    agreed = deployment.server()._brief().as_dict()
    answer = asked(deployment, "train", {**agreed, "privacy": {"clip": 0.5, "noise": 6.0, "delta": 1e-6}})
    assert (answer.header["uploads"], set(answer.header) & {"error", "loss", "right"}) == (1, set())
    assert answer.tensors


@pytest.mark.parametrize("own", [True, False], ids=["demanded", "by the brief alone"])
def test_no_sums_for_a_router_leave_a_private_site(own: bool, deployed: Make) -> None:
    deployment = deployed(privacy=PRIVACY if own else None)
    agreed = {**deployment.server()._brief().as_dict(), "privacy": PRIVACY}
    sizes = list(agreed["sizes"])
    fit = {"step": "features", "recipe": [{"name": "raw"}], "parts": 10, "used": 3, "seed": 0, "sizes": sizes}
    answer = asked(deployment, "fit", agreed, **fit)
    assert "sums for a router" in answer.header["error"]
    assert not answer.tensors


def test_a_demand_nobody_has_agreed_to_stops_the_run_with_its_reason(deployed: Make) -> None:
    """In the server's log and status, before anything is trained."""
    deployment = deployed(router=False)
    demand(deployment, "lima", **PRIVACY)
    with refused("lima demands privacy", "noise at least 3", "offers nothing", "federation.yaml") as told:
        deployment.server().go()
    status = Status(deployment.folder / "server")
    for _ in range(2):
        status.tell("failed", {"text": str(told.value)})
    assert local_cluster.status(deployment.folder)["complaint"].endswith(str(told.value))
    assert local_cluster.status(deployment.folder)["server"]["what"] == "failed"


def test_a_demand_made_in_the_midst_of_a_run_is_heard(deployed: Make) -> None:
    """The site is left out, as one that does not answer, and says why."""
    deployment = deployed(router=False)
    server = deployment.server()
    brief = server._brief()
    method = brief.make_method()
    demand(deployment, "lima", **PRIVACY)
    played = server._round(brief, method, RoundSchedule(method, brief.make_plan(), 3), server._progress(brief, method))
    assert played is not None
    assert played.history[-1]["answered"] == ["oslo", "pune"]
    assert [text for text in deployment.complaints if text.startswith("lima: lima demands privacy")]


def test_a_spent_budget_ends_a_sites_uploads_in_every_run(deployed: Make) -> None:
    """Enough for two uploads and no third: not in this run, not under another name."""
    deployment = deployed(privacy=PRIVACY, training={"rounds": 3})
    demand(deployment, "lima", **PRIVACY, budget=Privacy(1.0, 3.0).epsilon(2) + 1e-6)
    deployment.server().go()
    assert [e["answered"] for e in deployment.server().run.metrics()][2] == ["oslo", "pune"]
    assert any("lima: another upload would bring epsilon" in text for text in deployment.complaints)
    spent = deployment.server().run.summary()["privacy"]["epsilon"]
    assert spent["lima"] == Privacy(1.0, 3.0).epsilon(2) < spent["oslo"]
    deployment.settings = replace(deployment.settings, run="second")
    deployment.restart_sites()
    deployment.server().go()
    assert [e["answered"] for e in deployment.server().run.metrics()] == [["oslo", "pune"]] * 3


def test_a_complaint_is_written_once_however_often_it_is_heard(tmp_path: Path) -> None:
    """Two sites that complain by turns, too."""
    status = Status(tmp_path)
    for _ in range(3):
        for name in ("oslo", "lima"):
            status.tell("complaint", {"text": f"{name} is unwell"})
    assert (tmp_path / "complaints.log").read_text().count("\n") == 2
