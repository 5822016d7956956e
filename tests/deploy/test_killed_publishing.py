"""A site or the server ends at any file operation of a run's end: sites answer by the old run or the new one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployment import QUICK_ROUTING, Deployed, DirectTransport
from feddrm.deploy.records.audit_check import audit_run
from feddrm.deploy.records.audit_trail import AUDIT, AuditTrail, verify_trail
from feddrm.deploy.records.event_log import EVENTS
from feddrm.deploy.server import finish
from feddrm.deploy.server.finish import Finish
from feddrm.deploy.site.site import Site
from feddrm.deploy.site.site_status import STATUS
from feddrm.errors import FeddrmError
from feddrm.io.text import json_bytes
from feddrm.predictor.predictor import Predictor
from feddrm.runs import Run
from kill_points import contents, count_operations, kill, points

pytestmark = [pytest.mark.deploy, pytest.mark.slow]

Make = Callable[..., Deployed]
QUERIES = np.linspace(-2, 2, 8 * 6, dtype=np.float32).reshape(8, 6)


def files(folder: Path) -> dict[str, bytes]:
    """Everything but locks and what depends on the clock: status, traffic, events, the audit trail and its end."""
    timed = (STATUS, "router_traffic.json", "lock", EVENTS, AUDIT)
    kept = {name: content for name, content in contents(folder).items() if not name.endswith(timed)}
    if "summary.json" in kept:
        kept["summary.json"] = json_bytes(without_audit(json.loads(kept["summary.json"])))
    return kept


def without_audit(summary: dict[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (summary or {}).items() if key != "audit"}


def answers(folder: Path, answer: str) -> Any:
    """What the site's model answers, or why there is none."""
    try:
        predictor = Predictor.load(folder / "clients" / "lima", answer=answer)
    except FeddrmError as error:
        return str(error).replace(str(folder), "SITE")
    (probabilities,) = predictor([("inputs", QUERIES)])
    return predictor.fit, predictor.router.weight.tolist(), probabilities.tolist()


@pytest.mark.parametrize("heads", [True, False], ids=["heads", "no heads"])
def test_a_site_answers_by_the_old_run_or_the_new_one(
    heads: bool, deployed: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run has another model, and its heads another fit."""
    first = deployed(few=True, routing={**QUICK_ROUTING, "heads": True})
    first.server().go()
    training = {**first.settings.training, "seed": 9, "method": "ditto"}
    second = replace(first.settings, run="second", training=training, routing={**QUICK_ROUTING, "heads": heads})
    transport, old, site = DirectTransport(first.folder), tmp_path / "old", first.site_folder("lima")
    finish_sites = Finish._finish_sites

    def keep_the_old(self: Finish) -> Any:
        shutil.copytree(site, old)
        return finish_sites(self)

    monkeypatch.setattr(Finish, "_finish_sites", keep_the_old)
    replace(first, settings=second).server(transport).go()
    (message,) = [content for way, name, content in transport.messages[-6:] if (way, name) == ("to", "lima")]
    states = [[answers(folder, answer) for answer in ("trained", "refit")] for folder in (old, site)]
    assert states[0][0] != states[1][0]
    expected, seen = files(site), set()
    total = count_operations(lambda: Site(shutil.copytree(old, tmp_path / "count")).handle(message))
    for point in points(total):
        folder = Path(shutil.copytree(old, tmp_path / f"site-{point}"))
        kill(lambda folder=folder: Site(folder).handle(message), point)
        now = [answers(folder, answer) for answer in ("trained", "refit")]
        assert now in states, f"a mixture after file operation {point}"
        seen.add(states.index(now))
        Site(folder).handle(message)
        assert files(folder) == expected, f"after file operation {point}"
        shutil.rmtree(folder)
    assert seen == {0, 1}


def test_a_server_killed_at_the_end_of_a_run_ends_it_as_an_undisturbed_one(
    deployed: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deployed(few=True, routing=QUICK_ROUTING)
    before, fits, fit_cohort, run = tmp_path / "before", list[Any](), finish.fit_cohort, Finish.run

    def keep_the_project(self: Finish, audit: AuditTrail) -> None:
        if not before.exists():
            shutil.copytree(deployment.folder, before)
        run(self, audit)

    def fit_once(*arguments: Any) -> Any:
        if not fits:
            fits.append(fit_cohort(*arguments))
        return fits[0]

    monkeypatch.setattr(Finish, "run", keep_the_project)
    monkeypatch.setattr(finish, "fit_cohort", fit_once)
    deployment.server().go()
    expected = files(deployment.run)

    def go(folder: Path) -> None:
        deployment.restart_sites()
        replace(deployment, folder=folder).server().go()

    total = count_operations(lambda: go(Path(shutil.copytree(before, tmp_path / "count"))))
    for point in points(total):
        copy = replace(deployment, folder=Path(shutil.copytree(before, tmp_path / f"project-{point}")))
        kill(lambda copy=copy: go(copy.folder), point)
        now = Run.open(copy.run)
        assert without_audit(now.summary) in ({}, without_audit(Run.open(deployment.run).summary))
        assert verify_trail(copy.run / AUDIT), "a crash is no alarm"
        if (copy.run / "router" / "manifest.json").exists():
            assert now.router().weight.equal(Run.open(deployment.run).router().weight)
        go(copy.folder)
        assert files(copy.run) == expected, f"after file operation {point}"
        assert audit_run(copy.run, [copy.site_folder("lima")])["entries"][-1]["event"] == "finished"
        shutil.rmtree(copy.folder)
