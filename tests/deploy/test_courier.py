"""Letters over Flower's grid: who is late or gone is not waited for, and a broken-off message harms nobody."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from feddrm.deploy.flower import apps
from feddrm.deploy.flower.apps import SHORT, GridCourier, unwrap, wrap
from feddrm.deploy.provision.certificates import new_key
from feddrm.deploy.wire.messages import opened
from feddrm.errors import FeddrmError

from .conftest import sent


class Grid:
    """Two nodes; the second ``answers`` not at all, and is ``gone`` when looked for."""

    def __init__(self, gone: bool = False) -> None:
        self.gone, self.pulled, self.looked = gone, 0, 0
        self.waiting: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        self.looked += 1
        return [1] if self.gone else [1, 2]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        for message in messages:
            self.waiting[f"m{message.metadata.dst_node_id}"] = message
        return list(self.waiting)

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        self.pulled += 1
        found = []
        for number in numbers:
            if number == "m1":
                reply = sent(Message(self.waiting[number].content, dst_node_id=0, message_type="train"))
                reply.metadata.__dict__["_reply_to_message_id"] = number
                found.append(reply)
        return found


@pytest.fixture(autouse=True)
def run() -> None:
    """Flower writes into every message whose it is."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass by sleeping alone."""
    now = [0.0]
    monkeypatch.setattr(apps.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("gone", "seconds"), [(False, 30.0), (True, 2.2)])
def test_late_or_gone(gone: bool, seconds: float, clock: list[float]) -> None:
    """A late one costs its deadline, one that is gone two seconds; the other's answer is there in both cases."""
    grid = Grid(gone)

    def sleep(passed: float) -> None:
        clock[0] += passed

    found = GridCourier(grid, sleep).ask({1: b"a", 2: b"b"}, 30.0, "train")  # type: ignore[arg-type]
    assert found == {1: b"a"}
    assert clock[0] == pytest.approx(seconds, abs=0.2)


@pytest.mark.parametrize("size", [10, SHORT + 1])
def test_wrapped(size: int) -> None:
    letter = bytes(range(256)) * (size // 256 + 1)
    assert unwrap(sent(Message(wrap(letter), dst_node_id=1, message_type="train")).content) == letter


def test_a_message_without_a_letter_is_refused() -> None:
    with pytest.raises(FeddrmError, match="without a letter"):
        unwrap(RecordDict())


def test_a_message_without_a_letter_is_a_letter_that_nobody_signed(clock: list[float]) -> None:
    """It must not end the whole run; who sent it is complained of by name, as for any letter that is not signed."""
    grid = Grid()
    grid.push_messages([Message(RecordDict(), dst_node_id=1, message_type="train")])
    grid.push_messages = lambda messages: ["m1"]  # type: ignore[method-assign, assignment]
    found = GridCourier(grid, lambda seconds: None).ask({1: b"a"}, 30.0, "train")  # type: ignore[arg-type]
    assert found == {1: b""}
    with pytest.raises(FeddrmError, match="lima has not signed"):
        opened(found[1], new_key().public_key(), "lima")
