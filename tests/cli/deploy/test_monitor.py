"""``feddrm deploy watch`` and ``audit`` as a person calls them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

pytest.importorskip("flwr")

from rich.console import Console

from feddrm.cli.deploy import monitor
from feddrm.deploy.records.audit_trail import AUDIT, AuditTrail
from feddrm.deploy.records.event_log import EventLog
from feddrm.deploy.server.status import JOB
from training_folder import NAMES, REASON, running_server, training_folder

Call = Callable[..., CompletedProcess[str]]


def test_watch_once_prints_rounds_sites_and_the_reason(feddrm: Call, tmp_path: Path) -> None:
    server, _ = training_folder(tmp_path)
    with running_server(server):
        for words in (("--once",), ()):  # without a terminal it is printed once, too
            shown = feddrm("deploy", "watch", server.parent, *words)
            assert shown.returncode == 0
            assert "run 'first': training; round 3 of 9" in shown.stdout
            assert "waiting for lima for " in shown.stdout
            assert f" s: {REASON}" in shown.stdout
            rows = [line.split() for line in shown.stdout.splitlines()]
            assert ["oslo", "3", "of", "3", "0.25", "0.3000", "3.0", "6.0", "-"] in rows
            assert ["2", "0.5000", "50.00", "2.00", "oslo,", "lima"] in rows


def test_watch_as_json_is_the_state(feddrm: Call, tmp_path: Path) -> None:
    server, _ = training_folder(tmp_path)
    with running_server(server):
        state = json.loads(feddrm("deploy", "watch", server, "--json").stdout)
    assert [site["site"] for site in state["sites"]] == list(NAMES)
    assert state["waiting"][0]["reason"] == REASON


def test_a_failed_run_is_shown_with_its_reason_and_exit_code(feddrm: Call, tmp_path: Path) -> None:
    server, status = training_folder(tmp_path)
    status.record("failed", {"text": "lima: holds [other] samples"})
    (server / JOB).unlink()
    with running_server(server):
        shown = feddrm("deploy", "watch", server, "--once")
    assert shown.returncode == 1
    assert "failed: lima: holds [other] samples" in shown.stdout


def test_on_a_terminal_the_view_is_renewed_until_the_run_ends(
    feddrm: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = training_folder(tmp_path)
    monkeypatch.setattr("rich.console.Console", lambda **options: Console(force_terminal=True, width=100, **options))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            (server / "runs" / "first" / "summary.json").write_text(json.dumps({"rounds": 9}))

    monkeypatch.setattr(monitor.time, "sleep", pause)
    with running_server(server):
        shown = feddrm("deploy", "watch", server)
    monkeypatch.undo()
    assert shown.returncode == 0
    assert len(pauses) == 3
    assert "training; round 3 of 9" in shown.stdout
    assert "finished; round 3 of 9" in shown.stdout
    assert time.sleep is not pause


def test_audit_names_what_it_compared_and_the_first_bad_line(feddrm: Call, tmp_path: Path) -> None:
    server, _ = training_folder(tmp_path)
    run = server / "runs" / "first"
    trail = AuditTrail(run / AUDIT)
    for number in range(3):
        trail.append("round", {"round": number})
    (run / "summary.json").write_text(json.dumps({"rounds": 3, "audit": trail.end.as_dict()}))
    for place in (server.parent, server, run):
        sound = feddrm("deploy", "audit", place)
        assert (sound.returncode, sound.stderr) == (0, "")
        assert f"3 lines are one chain, up to {trail.end.hash}" in sound.stdout
        assert "compared with summary.json" in sound.stdout
    assert json.loads(feddrm("deploy", "audit", server, "--json").stdout)["lines"] == 3
    (run / AUDIT).write_text((run / AUDIT).read_text().replace('"round": 1', '"round": 2'))
    bad = feddrm("deploy", "audit", server)
    assert (bad.returncode, bad.stderr.count("\n")) == (1, 1)
    assert "line 2: it was changed" in bad.stderr


def test_audit_without_an_anchor_says_so(feddrm: Call, tmp_path: Path) -> None:
    server, _ = training_folder(tmp_path)
    AuditTrail(server / "runs" / "first" / AUDIT).append("run", {})
    assert "compared with nothing: give --site" in feddrm("deploy", "audit", server).stdout
    (server / "runs" / "first" / AUDIT).unlink()
    old = feddrm("deploy", "audit", server)
    assert (old.returncode, "only runs of this version and later" in old.stderr) == (1, True)


def test_audit_refuses_a_site_that_has_nothing_to_compare(feddrm: Call, tmp_path: Path) -> None:
    """Lines cut off at the end are seen by a site's log alone; to pass without one would be taken for a proof."""
    server, _ = training_folder(tmp_path)
    trail = AuditTrail(server / "runs" / "first" / AUDIT)
    trail.append("run", {})
    site = tmp_path / "oslo"
    site.mkdir()
    EventLog(site).write("answered", {"run": "another", "audit": trail.end.as_dict()})
    for folder in (site, tmp_path / "osol"):
        refused = feddrm("deploy", "audit", server, "--site", folder)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "no message of run 'first'" in refused.stderr
    EventLog(site).write("answered", {"run": "first", "audit": trail.end.as_dict()})
    (site / "events.jsonl").rename(site / "events.jsonl.2")  # the log began anew since
    EventLog(site).write("connected", {})
    assert "compared with the event log of oslo" in feddrm("deploy", "audit", server, "--site", site).stdout
