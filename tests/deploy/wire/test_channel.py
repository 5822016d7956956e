"""The channel: whose replies the server accepts, and how their complaints are shown."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deployment import Deployed, DirectTransport, play_round
from feddrm.deploy import local_cluster
from feddrm.deploy.server.status import ServerStatus
from feddrm.deploy.wire.messages import pack
from feddrm.errors import FeddrmError

pytestmark = pytest.mark.slow

Make = Callable[..., Deployed]


def test_replies_that_the_site_has_not_signed_are_ignored(deployed: Make) -> None:
    deployment = deployed(router=False)
    channel = deployment.server().channel
    channel.site_keys = {**channel.site_keys, "lima": channel.site_keys["oslo"]}
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
    assert (local_cluster.status(deployment.folder)["complaint"] or "").endswith(f" lima: {shown}")
