"""What sites say, on its way to the server's log and terminal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from feddrm.deploy import local_cluster
from feddrm.deploy.flower.apps import Status, site_at
from feddrm.errors import FeddrmError

from .conftest import Deployed
from .test_changed import played

Make = Callable[..., Deployed]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("\x1b[2J\x1b]0;owned\x07 hi", "\\x1b[2J\\x1b]0;owned\\x07 hi"),
        ("two\nlines\tand  spaces", "two lines and spaces"),
        ("\u202eback\u200b \x9b2J", "\\u202eback\\u200b \\x9b2J"),
        ("\ud800 half", "\\ud800 half"),
        ("Zürich, 東京", "Zürich, 東京"),
        ("\x1b" * 1000, "\\x1b" * 100),
    ],
)
def test_a_site_cannot_command_the_servers_terminal(
    said: str, shown: str, deployed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not printable is spelled out on its way to complaints.log and 'deploy status'."""
    deployment = deployed(router=False)
    deployment.server()._brief()
    status = Status(deployment.folder / "server")

    def complain(letter: object) -> bytes:
        raise FeddrmError(said)

    lima = site_at(str(deployment.folder / "sites" / "lima"))
    monkeypatch.setitem(lima._answers, "train", complain)
    assert played(deployment.server()).history[-1]["answered"] == ["oslo", "pune"]
    assert deployment.complaints == [f"lima: {shown}"]
    status.tell("complaint", {"text": deployment.complaints[0]})
    assert (local_cluster.status(deployment.folder)["complaint"] or "").endswith(f" lima: {shown}")
