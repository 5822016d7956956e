"""The state that ``feddrm deploy watch`` and the page show."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from feddrm.deploy.process_lock import only_process
from feddrm.deploy.provision.project import make_project
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.status import JOB, STOPPED
from feddrm.deploy.watch.watch_state import EVENTS, NO_ANSWER, watch_state
from training_folder import NAMES, REASON, running_server, training_folder


def test_before_the_first_run(tmp_path: Path) -> None:
    make_project(tmp_path / "f", FederationSettings(clients=("oslo", "lima")))
    with only_process(tmp_path / "f" / "server"):
        state = watch_state(tmp_path / "f" / "server")
    assert (state["what"], state["round"], state["rounds"], state["running"]) == ("not begun", 0, None, True)
    assert [site["asked"] for site in state["sites"]] == [0, 0]


def test_a_site_that_is_waited_for_has_its_reason_in_words(tmp_path: Path) -> None:
    server, status = training_folder(tmp_path)
    with running_server(server):
        state = watch_state(server)
        assert (state["what"], state["round"], state["rounds"]) == ("training", 3, 9)
        assert state["waiting"] == [{"site": NAMES[1], "since": 1000.0, "reason": REASON}]
        status.record("outstanding", {"waiting": {"oslo": 2000.0}})
        assert watch_state(server)["waiting"] == [{"site": "oslo", "since": 2000.0, "reason": NO_ANSWER}]
    oslo, lima = state["sites"]
    assert (oslo["answered"], oslo["asked"], oslo["seconds"], oslo["loss"]) == (3, 3, 0.25, 0.3)
    assert (oslo["bytes_sent"], oslo["bytes_received"], oslo["reason"]) == (3 * 2**20, 6 * 2**20, None)
    assert (lima["answered"], lima["asked"], lima["reason"]) == (1, 3, REASON)
    assert [event["event"] for event in state["events"]][-1] == "round finished"


def test_a_site_that_is_missing_for_long_keeps_its_reason(tmp_path: Path) -> None:
    """It is told once, and the events of the other sites push it out of the latest ones."""
    server, status = training_folder(tmp_path)
    for number in range(EVENTS + 1):
        status.record("site answered", {"site": "oslo", "kind": "train", "round": number})
    with running_server(server):
        state = watch_state(server)
    assert [site["reason"] for site in state["sites"]] == [None, REASON]
    assert state["waiting"] == [{"site": NAMES[1], "since": 1000.0, "reason": REASON}]


def test_what_was_told_before_the_last_start_is_not_current(tmp_path: Path) -> None:
    """A run began anew with the reasons, losses and complaints of the one before."""
    server, status = training_folder(tmp_path)
    status.record("complaint", {"text": "oslo is unwell"})
    status.record("site missing", {"site": "oslo", "kind": "train", "round": 3, "reason": "timed out"})
    later = time.time() + 60
    with running_server(server):
        before = watch_state(server)
        os.utime(server / JOB, (later, later))
        after = watch_state(server)
    assert (before["sites"][0]["reason"], after["sites"][0]["reason"]) == ("timed out", None)
    assert (before["complaint"] or "").endswith("oslo is unwell")
    assert after["complaint"] is None
    assert after["sites"][1]["reason"] == REASON, "it was missing in the last round of this run"


def test_a_server_that_does_not_run_waits_for_nobody(tmp_path: Path) -> None:
    server, _ = training_folder(tmp_path)
    state = watch_state(server)
    assert (state["waiting"], state["running"]) == ([], False)
    assert "feddrm deploy up" in state["what"]


def test_the_router_the_end_and_a_failure(tmp_path: Path) -> None:
    server, status = training_folder(tmp_path)
    with running_server(server):
        status.record("fitting the router", {"round": 3, "step": 4, "question": "evaluate"})
        assert watch_state(server)["what"] == "fitting the router, message 4 (evaluate)"
        status.record("failed", {"text": "lima: no"})
        assert watch_state(server)["failed"] is None, "it is wanted again"
        (server / JOB).unlink()
        assert watch_state(server)["failed"] == "lima: no"
        status.record("round finished", {"round": 3})  # as if a full disk had kept the failure from the status
        assert watch_state(server)["failed"] == STOPPED
        (server / "runs" / "first" / "summary.json").write_text(json.dumps({"rounds": 3, "average_accuracy": 0.75}))
        state = watch_state(server)
    assert (state["what"], state["finished"], state["failed"], state["accuracy"]) == ("finished", True, None, 0.75)


def test_privacy_spent_is_that_of_the_last_round(tmp_path: Path) -> None:
    server, _ = training_folder(tmp_path)
    path = server / "runs" / "first" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    history = [{**json.loads(line), "epsilon": {"oslo": 1.0 + number}} for number, line in enumerate(lines)]
    path.write_text("".join(json.dumps(one) + "\n" for one in history))
    assert [site["epsilon"] for site in watch_state(server)["sites"]] == [3.0, None]
