"""The channel: whose replies the server accepts, and how their complaints are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deployment import NAMES, Deployed, DirectTransport, play_round
from feddrm.deploy import cluster_status
from feddrm.deploy.provision.members import remove_site
from feddrm.deploy.server.status import ServerStatus
from feddrm.deploy.wire.channel import Refusal
from feddrm.deploy.wire.messages import pack
from feddrm.errors import FeddrmError

pytestmark = pytest.mark.slow

Make = Callable[..., Deployed]


def test_replies_that_the_site_has_not_signed_are_ignored(deployed: Make) -> None:
    deployment = deployed(router=False)
    channel = deployment.server().channel
    keys = {name: channel.site_keys["oslo" if name == "lima" else name] for name in NAMES}
    channel.read_keys = lambda: keys
    assert set(channel.discover()) == {"oslo", "pune"}
    assert any("none of this federation's keys" in text for text in deployment.complaints)


def test_a_reply_to_an_older_message_is_refused(deployed: Make) -> None:
    deployment = deployed(router=False)
    transport = DirectTransport(deployment.folder)
    channel = deployment.server(transport).channel
    channel.discover()
    old = next(content for way, name, content in transport.messages if (way, name) == ("from", "oslo"))
    assert channel.verified(old, pack({"kind": "train", "to": "oslo"}), "oslo") is None
    assert "another message" in deployment.complaints[-1]


@pytest.mark.parametrize("recorded", ["earlier", "now"])
def test_a_recorded_hello_of_a_site_is_refused_from_another_node(recorded: str, deployed: Make) -> None:
    deployment = deployed(router=False)
    earlier = DirectTransport(deployment.folder)
    deployment.server(earlier).channel.discover()
    old = next(content for way, name, content in earlier.messages if (way, name) == ("from", "oslo"))

    class Replaying(DirectTransport):
        def ask(self, *arguments: Any) -> dict[int, bytes]:
            replies = super().ask(*arguments)
            return {**replies, 1: old if recorded == "earlier" else replies[0]}

    channel = deployment.server(Replaying(deployment.folder)).channel
    assert set(channel.discover()) == {"oslo", "pune"}
    assert channel.nodes == {"oslo": 0, "pune": 2}
    assert deployment.complaints == ["oslo: it answered another message: it is left out"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;owned\x07 hi", "\\x1b[2J\\x1b]0;owned\\x07 hi"),
        ("two\nlines\tand  spaces", "two lines and spaces"),
        ("\u202eback\u200b \x9b2J", "\\u202eback\\u200b \\x9b2J"),
        ("\ud800 half", "\\ud800 half"),
        ("Zürich, 東京", "Zürich, 東京"),
        ("\x1b" * 1000, "\\x1b" * 100),
    ],
)
def test_a_site_cannot_control_the_servers_terminal(
    text: str, shown: str, deployed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Characters that are not printable are escaped in complaints.log and 'deploy status'."""
    deployment = deployed(router=False)
    deployment.server().run_spec()
    status = ServerStatus(deployment.folder / "server")

    def complain(request: object) -> bytes:
        raise FeddrmError(text)

    monkeypatch.setitem(deployment.site("lima")._handlers, "train", complain)
    assert play_round(deployment.server()).history[-1]["answered"] == ["oslo", "pune"]
    assert deployment.complaints == [f"lima: {shown}"]
    status.record("complaint", {"text": deployment.complaints[0]})
    assert (cluster_status.status(deployment.folder)["complaint"] or "").endswith(f" lima: {shown}")


def test_the_sites_are_told_whom_the_server_waits_for(deployed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a stall lasts. Each site shows it until its next message."""
    monkeypatch.setattr("feddrm.deploy.wire.channel.STALL_SECONDS", 0.0)
    deployment = deployed(router=False, quorum=3)
    transport = DirectTransport(deployment.folder, away=lambda name, count: name == "lima" and count == 2)
    server = deployment.server(transport)
    told = []

    def look(seconds: float) -> None:
        told.append({name: deployment.site(name).status.values["waiting"] for name in NAMES})

    server.waiting.sleep = look
    server.go()
    since = told[0]["oslo"]["lima"]
    assert told == [{"oslo": {"lima": since}, "lima": {}, "pune": {"lima": since}}]
    assert all(deployment.site(name).status.values["waiting"] == {} for name in NAMES)


def test_a_site_that_refuses_our_signature_is_reported_and_asked_again(deployed: Make) -> None:
    """Its server.pub is that of another server; somebody may correct it."""
    deployment = deployed(router=False)
    refusals = [True, False]

    class Refusing(DirectTransport):
        def ask(self, *arguments: Any) -> dict[int, bytes | Refusal]:
            replies = super().ask(*arguments)
            return {**replies, 1: Refusal("lima", "compare \x1bthe keys")} if refusals.pop(0) else replies

    channel = deployment.server(Refusing(deployment.folder)).channel
    assert set(channel.discover()) == {"oslo", "pune"}
    assert deployment.complaints == ["lima: compare \\x1bthe keys"]
    assert set(channel.discover()) == {"lima"}
    assert channel.verified(Refusal("lima", "a message to 'lima' reached 'oslo'"), b"", "lima") is None
    assert deployment.complaints[-1] == "lima: a message to 'lima' reached 'oslo'"


@pytest.mark.parametrize("content", [b"refused: \xff", b"refused: lima: holds other samples", b"\xff" * 9, b""])
def test_unsigned_bytes_of_a_node_are_not_shown_and_end_no_run(content: bytes, deployed: Make) -> None:
    """Else one site could end the run, or complain in the name of another."""
    deployment = deployed(router=False)
    replaced = [2]

    class Forging(DirectTransport):
        def ask(self, *arguments: Any) -> dict[int, bytes | Refusal]:
            return {node: content if node in replaced else reply for node, reply in super().ask(*arguments).items()}

    channel = deployment.server(Forging(deployment.folder)).channel
    assert set(channel.discover()) == {"oslo", "lima"}
    assert deployment.complaints == ["node 2 has none of this federation's keys: it is ignored"]
    replaced[:] = [0]
    request = dict.fromkeys(("oslo", "lima"), ({"kind": "waiting", "for": {}}, {}))
    assert set(channel.ask(request, 1.0, lambda _, m: m)) == {"lima"}
    unsigned = "refused a message that oslo has not signed: compare the keys of both ends"
    assert deployment.complaints[1:] == [f"oslo: {unsigned}"]


def test_a_removed_member_is_not_heard_any_more(deployed: Make) -> None:
    deployment = deployed(router=False)
    channel = deployment.server().channel
    assert set(channel.discover()) == set(NAMES)
    remove_site(deployment.folder / "server", "lima")
    assert not channel.discover()
    assert set(channel.nodes) == {"oslo", "pune"}
    assert any("none of this federation's keys" in text for text in deployment.complaints)
    assert channel.missing(NAMES) == "oslo, pune"


def test_a_refused_hello_is_reported_in_the_sites_words_and_repeated(
    deployed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deployed(router=False)
    server = deployment.server()
    server.run_spec()

    def complain(request: object) -> bytes:
        raise FeddrmError("a floor is not reached")

    channel = deployment.server().channel  # as after a restart: it knows no node yet
    with monkeypatch.context() as patch:
        patch.setitem(deployment.site("lima")._handlers, "hello", complain)
        assert set(channel.discover()) == {"oslo", "pune"}
        assert deployment.complaints == ["lima: a floor is not reached"]
        assert set(channel.ask(dict.fromkeys(NAMES, ({"kind": "waiting", "for": {}}, {})), 1.0, lambda _, m: m)) == {
            *("oslo", "pune")
        }
        assert channel.missing(NAMES) == "lima (a floor is not reached)"
        assert channel.absences == {"lima": "refused: a floor is not reached"}
    assert set(channel.discover()) == {"lima"}


def test_why_a_site_is_missing_is_told_in_words(deployed: Make) -> None:
    deployment = deployed(router=False)
    present = {0, 1, 2}

    class Fading(DirectTransport):
        def nodes(self) -> set[int]:
            return set(present)

        def ask(self, *arguments: Any) -> dict[int, bytes]:
            replies = super().ask(*arguments)
            if self.asked == 2:
                present.discard(0)
                return {2: replies[2]}
            return replies

    channel = deployment.server(Fading(deployment.folder)).channel
    events: list[tuple[str, str, str | None]] = []
    channel.on_event = lambda event, details: (
        events.append((event, details["site"], details.get("reason"))) if "site" in details else None
    )
    request = dict.fromkeys(NAMES, ({"kind": "waiting", "for": {}}, {}))
    assert set(channel.ask(request, 1.0, lambda _, m: m)) == {"pune"}
    expected = {"oslo": "connection lost", "lima": "timed out"}
    assert channel.absences == expected
    assert channel.missing(NAMES) == "oslo (connection lost), lima (timed out)"
    assert events == [*(("site missing", *pair) for pair in expected.items()), ("site answered", "pune", None)]
    channel.ask(request, 1.0, lambda _, m: m)
    assert channel.absences == {"oslo": "not connected"}
    remove_site(deployment.folder / "server", "lima")
    channel.ask(request, 1.0, lambda _, m: m)
    assert channel.absences == {"oslo": "not connected", "lima": "removed"}
