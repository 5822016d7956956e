"""Waiting for sites: what is reported, and when the server gives up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from feddrm.deploy.server.waiting import AGAIN_SECONDS, PATIENCE, Waiting
from refusal import refused


def waiting(refusals: dict[str, str]) -> tuple[Waiting, list[Any]]:
    """With a channel on which lima is missing, and the events and pauses in their order."""
    happened: list[Any] = []
    channel = SimpleNamespace(
        refusals=refusals,
        missing=lambda names: "lima",
        attendance=SimpleNamespace(since={"lima": 7.0}),
        tell_of_stall=lambda waiting: happened.append(("told", waiting)),
        on_event=lambda event, details: happened.append((event, details)),
    )
    return Waiting(channel, happened.append), happened  # type: ignore[arg-type]


def test_a_pause_is_reported_first() -> None:
    one, happened = waiting({})
    one.pause_for_all(3, ("oslo", "lima"))
    assert happened == [
        ("waiting", {"round": 3, "for": "lima", "waiting": {"lima": 7.0}}),
        ("told", {"lima": 7.0}),
        AGAIN_SECONDS,
    ]


def test_a_site_without_a_refusal_is_never_given_up() -> None:
    one, happened = waiting({})
    for _ in range(3 * PATIENCE):
        one.pause_for_all(3, ("oslo", "lima"))
    assert len(happened) == 9 * PATIENCE


def test_a_site_that_refuses_too_often_stops_the_run() -> None:
    one, happened = waiting({"lima": "no"})
    for _ in range(PATIENCE - 1):
        one.pause_for_all(3, ("oslo", "lima"))
    with refused("lima: no", f"{PATIENCE} times", "'feddrm deploy run' goes on from here"):
        one.pause_for_all(3, ("oslo", "lima"))
    one.refusals.clear()
    one.pause_for_all(3, ("oslo", "lima"))
    assert len(happened) == 3 * PATIENCE
