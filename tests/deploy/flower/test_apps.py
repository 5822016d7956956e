"""Flower's apps: messages over its grid, and how a run that fails is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from deployment import QUICK_ROUTING, Deployed, DirectTransport, serialised
from feddrm.deploy.flower import apps
from feddrm.deploy.flower.apps import SHORT, GridTransport, unwrap, wrap
from feddrm.deploy.provision.certificates import new_key
from feddrm.deploy.server.federation_server import Server
from feddrm.deploy.wire.channel import Refusal
from feddrm.deploy.wire.messages import verify
from feddrm.errors import FeddrmError
from refusal import refused

pytestmark = pytest.mark.slow

Make = Callable[..., Deployed]


class FakeGrid:
    """A grid with two nodes. The second never replies, and if ``gone`` it is not there either."""

    def __init__(self, gone: bool = False) -> None:
        self.gone = gone
        self.pushed: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return [1] if self.gone else [1, 2]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        for message in messages:
            self.pushed[f"m{message.metadata.dst_node_id}"] = message
        return list(self.pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for message_id in message_ids:
            if message_id == "m1":
                reply = serialised(Message(self.pushed[message_id].content, dst_node_id=0, message_type="train"))
                reply.metadata.__dict__["_reply_to_message_id"] = message_id
                replies.append(reply)
        return replies


@pytest.fixture(autouse=True)
def run() -> None:
    """Flower writes the current task into every message."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass by sleeping only."""
    now = [0.0]
    monkeypatch.setattr(apps.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("gone", "seconds"), [(False, 30.0), (True, 2.2)])
def test_a_late_node_is_waited_for_until_the_deadline_and_a_gone_one_for_two_seconds(
    gone: bool, seconds: float, clock: list[float]
) -> None:
    """The other node's reply arrives in both cases."""

    pauses: list[tuple[float, float]] = []

    def sleep(passed: float) -> None:
        pauses.append((clock[0], passed))
        clock[0] += passed

    waited: list[set[int]] = []
    transport = GridTransport(FakeGrid(gone), Path("nodes.json"), sleep)  # type: ignore[arg-type]
    assert transport.ask({1: b"a", 2: b"b"}, 30.0, "train", waited.append) == {1: b"a"}
    assert waited[0] == (set() if gone else {2}), "whose answers are missing is told meanwhile"
    assert clock[0] == pytest.approx(seconds, abs=0.2)
    for after, pause in pauses[:-1]:
        assert pause == pytest.approx(max(0.1, 0.05 * after))  # a twentieth of what was waited, and no less than 0.1 s
    assert len(pauses) == (20 if gone else 76), "there were 300 in 30 s with equal pauses"
    assert clock[0] <= 30.0, "no pause reaches beyond the deadline"


@pytest.mark.parametrize("size", [10, SHORT + 1])
def test_short_and_long_content_survives_flowers_messages(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    assert unwrap(serialised(Message(wrap(content), dst_node_id=1, message_type="train")).content) == content


def test_the_record_keeps_its_name_on_the_wire() -> None:
    """Sites of the same release depend on it."""
    assert list(wrap(b"a")) == list(wrap(b"a" * (SHORT + 1))) == ["letter"]


def test_a_flower_message_without_content_is_refused() -> None:
    with refused("a Flower message without content"):
        unwrap(RecordDict())


def test_a_reply_without_content_counts_as_not_signed(clock: list[float]) -> None:
    """It must not end the whole run, and its site must be named."""
    grid = FakeGrid()
    grid.push_messages([Message(RecordDict(), dst_node_id=1, message_type="train")])
    grid.push_messages = lambda messages: ["m1"]  # type: ignore[method-assign, assignment]
    transport = GridTransport(grid, Path("nodes.json"), lambda seconds: None)  # type: ignore[arg-type]
    replies = transport.ask({1: b"a"}, 30.0, "train", lambda nodes: None)
    assert replies == {1: b""}
    with refused("lima has not signed"):
        verify(replies[1], new_key().public_key(), "lima")


@pytest.mark.parametrize("code", [ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.NODE_UNAVAILABLE])
def test_a_site_that_refuses_our_messages_is_named(code: int, clock: list[float], tmp_path: Path) -> None:
    """A node that is merely away has not refused anything."""

    class RefusingGrid(FakeGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            reply = Message(Error(code, "compare the keys"), reply_to=serialised(self.pushed["m1"]))
            reply.metadata.__dict__["_reply_to_message_id"] = "m1"
            return [reply] if "m1" in message_ids else []

    (tmp_path / "nodes.json").write_text('{"1": "lima"}')
    transport = GridTransport(RefusingGrid(gone=True), tmp_path / "nodes.json", lambda seconds: None)  # type: ignore[arg-type]
    replies = transport.ask({1: b"a"}, 30.0, "train", lambda nodes: None)
    assert replies == ({1: Refusal("lima", "compare the keys")} if code != ErrorCode.NODE_UNAVAILABLE else {})


def test_a_fault_ends_the_run_and_not_the_server(
    deployed: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = deployed(router=False)

    def fault(self: Server) -> None:
        raise KeyError("seconds")

    monkeypatch.setattr(Server, "go", fault)
    with refused("KeyError in the server"):
        apps.run_over_grid(deployment.folder / "server", None)  # type: ignore[arg-type]
    assert "Traceback" in caplog.text


def test_why_a_run_was_given_up_is_in_the_log_of_complaints(deployed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = deployed(routing=QUICK_ROUTING)
    deployment.server().run_spec()
    deployment.give_share("lima", 2)
    folder = deployment.folder / "server"
    monkeypatch.setattr(apps, "GridTransport", lambda grid, nodes: DirectTransport(deployment.folder))
    monkeypatch.setattr("feddrm.deploy.server.waiting.AGAIN_SECONDS", 0.0)
    with pytest.raises(FeddrmError, match="lima: holds"):
        apps.run_over_grid(folder, None)  # type: ignore[arg-type]
    lines = (folder / "complaints.log").read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].endswith(": put them back, or start a new run")


def test_a_member_without_a_key_is_named_before_anything_is_trained(deployed: Make) -> None:
    """A key that was lost is not taken for a site that was removed."""
    deployment = deployed(router=False)
    (deployment.folder / "server" / "keys" / "lima.pub").unlink()
    with refused("lima.pub is missing", "remove-site"):
        apps.run_over_grid(deployment.folder / "server", None)  # type: ignore[arg-type]


def test_a_site_that_cannot_be_read_again_tells_the_server_no_folder(deployed: Make) -> None:
    deployment = deployed(router=False)
    (deployment.site_folder("lima") / "site.yaml").write_text("name: lima\n")
    deployment.restart_sites()
    with refused("site.yaml: 'server' is missing") as caught:
        deployment.server().go()
    assert str(deployment.folder) not in str(caught.value)
