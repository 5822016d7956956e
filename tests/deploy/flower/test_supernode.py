"""The SuperNode's shorter waits and its notes: the parts of Flower that they change are there."""

from __future__ import annotations

import inspect
import re
import ssl

import httpx
import pytest
from flwr.supernode import start_client_internal
from flwr.supernode.fleet_http_client import FleetHttpClient

from feddrm.deploy.flower.pauses import MESSAGE
from feddrm.deploy.flower.supernode import (
    NO_MESSAGE,
    STILL_ONLINE,
    refusal,
    with_message_notes,
    with_notes,
)
from feddrm.io.connection_errors import FOREIGN

pytestmark = pytest.mark.slow


def test_the_module_whose_time_is_replaced_only_sleeps() -> None:
    """``main`` replaces ``time`` in this module to shorten its pauses; other functions of ``time`` would be missing."""
    assert set(re.findall(r"\btime\.(\w+)", inspect.getsource(start_client_internal))) == {"sleep"}


def test_the_pauses_that_main_tells_apart_are_flowers() -> None:
    source = inspect.getsource(start_client_internal)
    assert sorted(re.findall(r"\btime\.sleep\((.*?)\)", source)) == ["0.5", "0.5", f"{NO_MESSAGE:g}"]
    assert source.count("_push_messages(\n                state=state") == 1, "where main is told of a message"
    assert source.count("run_id = _pull_and_store_message(\n") == 1, "where the daemon is told of one"


def test_the_daemon_is_told_of_a_message_that_has_come(capsys: pytest.CaptureFixture[str]) -> None:
    runs = iter([None, 7, None])
    pull = with_message_notes(lambda state: next(runs))
    assert [pull(state=1) for _ in range(3)] == [None, 7, None]
    assert capsys.readouterr().out == f"feddrm: {MESSAGE}\n"


def answered(status: int, body: str = "{}", path: str = "activate-node") -> httpx.HTTPStatusError:
    request = httpx.Request("POST", f"https://server/v1/fleet/{path}")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, text=body))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            answered(412, '{"code": 2004, "detail": "no", "extra": "the server does not know this key"}'),
            "does not know",
        ),
        (answered(412, '{"code": 2004, "detail": "no"}'), STILL_ONLINE),
        (answered(401, '{"detail": "its clock differs"}', "pull-messages"), "its clock differs"),
        (answered(401, "<html>", "pull-messages"), "the server answers 401"),
        (answered(503), "the server answers 503"),
        (answered(403, path="get-run"), None),
    ],
)
def test_a_refusal_of_the_server_is_put_into_words(error: httpx.HTTPStatusError, reason: str | None) -> None:
    """A run that has ended is refused, too, and the site is connected all the same."""
    said = refusal(error)
    assert said is None if reason is None else reason in (said or "")


def test_a_foreign_certificate_is_put_into_a_sites_words() -> None:
    error = httpx.ConnectError("no", request=httpx.Request("POST", "https://server"))
    error.__cause__ = ssl.SSLCertVerificationError(1, "self-signed certificate in certificate chain")
    said = refusal(error)
    assert said is not None
    assert said != FOREIGN
    assert "ca.crt" in said


def test_changes_of_the_connection_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = iter([None, None, answered(503), answered(503), None])

    def call() -> None:
        if (error := next(outcomes)) is not None:
            raise error

    noted = with_notes(call)
    for fails in (False, False, True, True, False):
        if fails:
            with pytest.raises(httpx.HTTPStatusError):
                noted()
        else:
            noted()
    lines = ["feddrm: connected", "feddrm: the server answers 503", "feddrm: connected"]
    assert capsys.readouterr().out.splitlines() == lines


def test_flowers_client_sends_every_request_by_the_method_that_is_replaced() -> None:
    assert "_unary_unary" in inspect.getsource(FleetHttpClient.ActivateNode)
    assert "_unary_unary" in inspect.getsource(FleetHttpClient.PullMessages)
