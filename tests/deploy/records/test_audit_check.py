"""The audit trail and the events of whole runs, with sites that are missing and a server that crashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deployment import NAMES, QUICK_ROUTING, Deployed, DirectTransport
from feddrm.deploy.provision.members import remove_site
from feddrm.deploy.records.audit_check import audit_run
from feddrm.deploy.records.audit_trail import AUDIT, verify_trail
from feddrm.deploy.records.event_log import read_events
from feddrm.deploy.server.federation_server import Server
from feddrm.deploy.server.status import ServerStatus
from feddrm.deploy.server.training import ServerState
from feddrm.deploy.wire.messages import pack
from feddrm.io.run_files import CHECKPOINT
from refusal import refused

pytestmark = pytest.mark.slow

Make = Callable[..., Deployed]


def recorded(deployment: Deployed, transport: DirectTransport | None = None) -> Server:
    """A server that writes its events as the daemon does."""
    server = deployment.server(transport)
    record = ServerStatus(deployment.folder / "server").record
    server.channel.on_event = server.channel.attendance.on_event = record
    return server


def events(deployment: Deployed, name: str) -> list[dict[str, Any]]:
    return [event for event in read_events(deployment.folder / "server") if event["event"] == name]


def sites(deployment: Deployed) -> list[Any]:
    return [deployment.site_folder(name) for name in NAMES]


def test_a_whole_run_is_told_in_events_and_kept_in_the_trail(deployed: Make) -> None:
    deployment = deployed(routing=QUICK_ROUTING)
    recorded(deployment, DirectTransport(deployment.folder, away=lambda name, count: (name, count) == ("lima", 2))).go()
    names = [event["event"] for event in read_events(deployment.folder / "server")]
    assert names[:2] == ["run started", "round started"]
    assert names[-3:] == ["site answered", "evaluation", "finished"]
    answered = events(deployment, "site answered")
    assert [event["site"] for event in answered if event.get("round") == 1] == ["oslo", "pune"]
    assert all(event["seconds"] > 0 < min(event["bytes_sent"], event["bytes_received"]) for event in answered)
    assert all(event["loss"] > 0 for event in answered if event["kind"] == "train")
    assert events(deployment, "site missing")[0]["reason"] == "timed out"
    assert [event["missing"] for event in events(deployment, "round finished")] == [{"lima": "timed out"}, {}]
    assert {event["question"] for event in events(deployment, "fitting the router")} >= {"fold_moments", "spread"}

    result = audit_run(deployment.run, sites(deployment))
    assert result["compared_with"] == ["summary.json", *(f"the event log of {name}" for name in NAMES)]
    first, one, two, router, finished = result["entries"]
    assert first["spec"]["names"] == list(NAMES)
    assert first["settings"]["training"]["rounds"] == 2
    assert set(first["keys"]) == set(NAMES)
    assert (one["asked"], one["answered"], one["missing"]) == (list(NAMES), ["oslo", "pune"], {"lima": "timed out"})
    assert (two["answered"], two["missing"]) == (list(NAMES), {})
    assert events(deployment, "router fitted")[0]["recipe"] == "raw"
    manifest = (deployment.run / "router" / "manifest.json").read_bytes()
    assert router["manifest"] == hashlib.sha256(manifest).hexdigest()
    assert router["chosen"]["router"]["recipe"] == "raw"
    assert (finished["event"], finished["answered"]) == ("finished", sorted(NAMES))


def test_events_of_a_site_hold_figures_and_the_end_of_the_trail(deployed: Make) -> None:
    deployment = deployed(router=False)
    recorded(deployment).go()
    own = read_events(deployment.site_folder("oslo"))
    assert [event["kind"] for event in own] == ["hello", "train", "train", "finish"]
    assert [event.get("round") for event in own] == [None, 1, 2, None]
    ends = [event["audit"]["lines"] for event in own[1:]]
    assert ends == [1, 2, 3]
    everything = (deployment.site_folder("oslo") / "events.jsonl").read_text()
    assert len(everything) < 3000, "figures only"


def test_a_refusal_is_told_in_the_words_of_the_site(deployed: Make) -> None:
    deployment = deployed(router=False)
    server = recorded(deployment)
    server.run_spec()
    deployment.give_share("lima", 2)
    deployment.restart_sites()
    with refused("lima: holds"):
        server.go()
    missing = events(deployment, "site missing")
    assert {event["site"] for event in missing} == {"lima"}
    assert all(event["reason"].startswith("refused: holds ") for event in missing)
    assert len(missing) == 3, "told once per round and once for the last message, not in every attempt"
    assert read_events(deployment.site_folder("lima"))[-1]["event"] == "refused"


def test_private_runs_tell_what_is_spent_and_no_loss(deployed: Make) -> None:
    deployment = deployed(privacy={"clip": 1.0, "noise": 3.0})
    recorded(deployment).go()
    spent = [event["epsilon"] for event in events(deployment, "privacy spent")]
    assert len(spent) == 2
    assert 0 < spent[0]["oslo"] < spent[1]["oslo"] == ServerState.load(deployment.run / CHECKPOINT).history[-1][
        "epsilon"
    ]["oslo"]  # fmt: skip
    assert not any("loss" in event for event in events(deployment, "site answered"))
    own = [event for event in read_events(deployment.site_folder("oslo")) if event["event"] == "privacy spent"]
    assert [event["epsilon"] for event in own] == [one["oslo"] for one in spent]


def test_a_removed_site_is_excluded_with_its_reason(deployed: Make) -> None:
    deployment = deployed(router=False)
    server = recorded(deployment)
    server.run_spec()
    remove_site(deployment.folder / "server", "lima")
    deployment.settings = replace(deployment.settings, clients=NAMES)
    server.go()
    rounds = [entry for entry in verify_trail(deployment.run / AUDIT) if entry["event"] == "round"]
    assert [entry["missing"] for entry in rounds] == [{"lima": "removed"}] * 2


class Crash(Exception):
    """Stands for kill -9."""


def test_a_crash_between_trail_and_checkpoint_is_no_alarm(deployed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round is asked again. The trail has both of its lines; the checkpoint is that of the last one."""
    deployment = deployed(router=False)

    def crash(self: ServerState, path: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(ServerState, "save", crash)
        with pytest.raises(Crash):
            deployment.server().go()
    with (deployment.run / AUDIT).open("ab") as file:
        file.write(b'{"number": 3, "ti')
    deployment.server().go()
    entries = audit_run(deployment.run, sites(deployment))["entries"]
    assert [entry["event"] for entry in entries] == [
        *("run", "round", "mended", "continued", "round", "round", "finished"),
    ]
    assert [entry["round"] for entry in entries if entry["event"] == "round"] == [1, 1, 2]


def test_cut_and_replaced_trails_and_models_are_found(deployed: Make) -> None:
    deployment = deployed(router=False)
    deployment.server().go()
    path = deployment.run / AUDIT
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    with refused("ends after line 3", "summary.json knows 4 lines"):
        audit_run(deployment.run, [])
    summary = json.loads((deployment.run / "summary.json").read_text())
    (deployment.run / "summary.json").write_text(json.dumps({**summary, "audit": None}))
    audit_run(deployment.run, [])
    path.write_bytes(b"".join(lines[:2]))
    with refused(f"{CHECKPOINT} is the model of round 2, {AUDIT} ends after round 1", "put it back from a copy"):
        audit_run(deployment.run, [])
    path.write_bytes(b"\x80 no line")
    with refused(f"{AUDIT} ends after round 0", "put it back from a copy"):
        audit_run(deployment.run, [])
    path.write_bytes(b"".join(lines[:2]))
    with refused("ends after line 2", "the event log of oslo knows 3 lines"):
        audit_run(deployment.run, sites(deployment))
    path.write_bytes(b"".join(lines))
    state = ServerState.load(deployment.run / CHECKPOINT)
    header = {"round": state.round, "accepted": dict(state.accepted), "history": list(state.history)}
    other = {leaf: value + 1 for leaf, value in state.shared.items()}
    (deployment.run / CHECKPOINT).write_bytes(pack(header, other))
    with refused("is not the model of round 2", "line 3"):
        audit_run(deployment.run, [])


def test_a_site_that_is_not_there_at_the_start_is_told_with_its_reason(deployed: Make) -> None:
    deployment = deployed(router=False)
    looks: list[int] = []

    class Late(DirectTransport):
        def nodes(self) -> set[int]:
            looks.append(1)
            return {0, 2} if len(looks) < 4 else {0, 1, 2}

    recorded(deployment, Late(deployment.folder)).go()
    (missing,) = events(deployment, "site missing")
    assert (missing["site"], missing["kind"], missing["reason"]) == ("lima", "hello", "not connected")
    (waiting,) = events(deployment, "waiting")
    assert waiting["for"] == "lima (not connected)"
    hellos = [event["site"] for event in events(deployment, "site answered") if event["kind"] == "hello"]
    assert hellos == ["lima"], "else 'deploy watch' would call it missing until its first round is over"
