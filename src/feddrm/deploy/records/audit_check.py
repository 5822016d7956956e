"""What ``feddrm deploy audit`` verifies: the chain of a run's audit trail, its end, and the model that it names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from feddrm.deploy.records.audit_trail import AUDIT, check_anchors, verify_trail
from feddrm.deploy.records.event_log import EVENTS, last_event
from feddrm.deploy.wire.message_bytes import read_header, tensors_alone
from feddrm.errors import FeddrmError
from feddrm.io.run_files import CHECKPOINT
from feddrm.io.run_reader import RunReader


def audit_run(run: Path, sites: Sequence[Path], *, every: bool = False) -> dict[str, Any]:
    """Verify a run's trail; returns its lines and what they were compared with. The first bad line is named.

    ``sites`` are folders of sites: the last end of the trail in a site's event log must be one of its lines. With
    ``every`` a site whose log has no end of this run is an error: nothing would be compared.
    """
    entries = verify_trail(run / AUDIT)
    anchors = list(_anchors(run, sites, every))
    check_anchors(entries, anchors)
    _check_aggregate(run, entries)
    end = {"lines": len(entries), "hash": entries[-1]["hash"] if entries else None}
    return {"run": str(run), **end, "compared_with": [place for place, _ in anchors], "entries": entries}


def _anchors(run: Path, sites: Sequence[Path], every: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    if end := (RunReader(run).summary() or {}).get("audit"):
        yield "summary.json", end
    for site in sites:
        # The last one: the same run may have begun afresh before.
        event = last_event(site, lambda event: event.get("run") == run.name and bool(event.get("audit")))
        if event is not None:
            yield f"the event log of {site.name}", event["audit"]
        elif every:
            raise FeddrmError(
                f"{site / EVENTS} and its older files have no message of run '{run.name}', so nothing can be compared: "
                "give the folder of a site that took part"
            )


def _check_aggregate(run: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Refuse a checkpoint that is not the aggregate of its round's last line, or that has no line."""
    if not (run / CHECKPOINT).exists():
        return
    content = (run / CHECKPOINT).read_bytes()
    number = read_header(content).header["round"]
    digest = hashlib.sha256(tensors_alone(content)).hexdigest()
    rounds = [entry for entry in entries if entry["event"] == "round"]
    lines = [entry for entry in rounds if entry["round"] == number]
    if not lines and (rounds or not entries):  # a round's line is on the disk before its checkpoint
        last = rounds[-1]["round"] if rounds else 0
        raise FeddrmError(
            f"{run / CHECKPOINT} is the model of round {number}, {AUDIT} ends after round {last}: its end was cut off: "
            "put it back from a copy"
        )
    if lines and lines[-1]["aggregate"] != digest:
        raise FeddrmError(
            f"{run / CHECKPOINT} is not the model of round {number} (line {lines[-1]['number']} of {AUDIT}): "
            "put it back from a copy"
        )
