"""Private slots on disk: like a tuple of slots in memory, in few files, of which an earlier state loses none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from feddrm.engine import State, load_state, save_state
from feddrm.engine.communication import Communication
from feddrm.engine.private_shards import PrivateShards
from feddrm.methods import Slots

CLIENTS = 230


def slots(value: float) -> Slots:
    return {"model": {"head.weight": torch.full((2,), value), "a": torch.tensor(value)}, "kept": {}}


def values(private: PrivateShards) -> list[float]:
    assert all(own.keys() == {"model", "kept"} and list(own["model"]) == ["head.weight", "a"] for own in private)
    return [float(own["model"]["a"]) for own in private]


def played(folder: Path, rounds: int) -> list[tuple[State, list[float]]]:
    """The states after every round of 30 clients each, and the values that they must have."""
    draws, expected = random.Random(0), [0.0] * CLIENTS
    state = State(0, {"s": torch.zeros(1)}, PrivateShards.start(folder / "private", slots(0.0), CLIENTS))
    states = []
    for number in range(1, rounds + 1):
        new = {client: float(1000 * number + client) for client in draws.sample(range(CLIENTS), 30)}
        state = state.after(state.shared, {client: slots(value) for client, value in new.items()}, Communication())
        expected = [new.get(client, value) for client, value in enumerate(expected)]
        states.append((state, expected))
    return states


def test_every_state_keeps_its_own_slots(tmp_path: Path) -> None:
    for state, expected in played(tmp_path, 12):
        assert isinstance(state.private, PrivateShards)
        assert values(state.private) == expected
        assert [float(own["model"]["a"]) for own in state.private[10:13]] == expected[10:13]
        assert float(state.private[-1]["model"]["a"]) == expected[-1]


def test_a_state_has_few_files_and_no_more_than_twice_its_clients(tmp_path: Path) -> None:
    state, _ = played(tmp_path, 60)[-1]
    private = state.private
    assert isinstance(private, PrivateShards)
    assert sum(private.sizes.values()) <= 2 * CLIENTS
    assert set(private.places) == set(private.sizes)
    assert all(size <= 100 for size in private.sizes.values())


def test_a_saved_state_is_read_again_and_other_states_files_are_deleted(tmp_path: Path) -> None:
    states = played(tmp_path, 9)
    state, expected = states[6]
    save_state(tmp_path / "state.safetensors", state)
    kept = {file.name for file in (tmp_path / "private").iterdir()}
    loaded = load_state(tmp_path / "state.safetensors")
    assert isinstance(loaded.private, PrivateShards)
    assert kept == set(loaded.private.sizes)
    assert loaded.round == 7
    assert values(loaded.private) == expected
    # The next round of the loaded state is written as that of the state that was never saved.
    again = loaded.after(loaded.shared, {3: slots(-1.0)}, Communication())
    assert isinstance(again.private, PrivateShards)
    assert values(again.private) == [*expected[:3], -1.0, *expected[4:]]


def test_a_federation_all_of_whose_clients_take_part_is_written_by_the_hundred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = PrivateShards.start(tmp_path, slots(0.0), CLIENTS)
    private = private.replaced(1, {client: slots(1.0 + client) for client in range(CLIENTS)})
    assert list(private.sizes.values()) == [100, 100, 30]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in tmp_path.iterdir())
    monkeypatch.setattr(PrivateShards, "__getitem__", lambda *_: pytest.fail("no client's former slots are needed"))
    private = private.replaced(2, {client: slots(2.0 + client) for client in range(CLIENTS)})
    monkeypatch.undo()
    assert list(private.sizes.values()) == [100, 100, 30]
    assert values(private) == [2.0 + client for client in range(CLIENTS)]
