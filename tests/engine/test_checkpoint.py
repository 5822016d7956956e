"""Checkpoints: bit for bit as they were, or refused; on disk always either the old one or the new one."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from feddrm.engine import State, load_state, save_state
from feddrm.engine.checkpoint import FORMAT
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically


def odd_floats() -> torch.Tensor:
    """Both zeros, infinities, the smallest number, and not-a-numbers with payloads."""
    bits = [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x00000001, 0x7FC00000, 0xFFC12345, 0x7FA00001]
    return torch.frombuffer(bytearray(struct.pack("<8I", *bits)), dtype=torch.float32)


def state() -> State:
    common = torch.arange(6, dtype=torch.float64).reshape(2, 3) / 7
    return State(
        round=17,
        shared={
            "trunk.z.weight": common,
            "head.bias": odd_floats(),
            "mixed/0/head.weight": torch.ones(2, 2).t(),
            "mixed/10/a/b": torch.zeros(0, 4),
            "seen": torch.tensor([True, False]),
            "a.first": torch.tensor(3.5),
        },
        private=(
            {"model": {}, "personal": {"trunk.z.weight": common, "with/slash": odd_floats()}},
            {"model": {"z": common[:, :1], "a": common}, "statistics": {}},
            {},
            {"count": {"n": torch.tensor(5)}},
        ),
    )


def as_bytes(value: torch.Tensor) -> bytes:
    return value.contiguous().numpy().tobytes()


def assert_same(one: State, other: State) -> None:
    assert one.round == other.round
    assert len(one.private) == len(other.private)
    for mine, theirs in zip(
        [{"shared": one.shared}, *one.private], [{"shared": other.shared}, *other.private], strict=True
    ):
        assert mine.keys() == theirs.keys()
        for slot, leaves in mine.items():
            assert list(leaves) == list(theirs[slot])  # in the same order: sums over leaves depend on it
            for leaf, value in leaves.items():
                found = theirs[slot][leaf]
                assert (found.dtype, found.shape) == (value.dtype, value.shape)
                assert as_bytes(found) == as_bytes(value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.safetensors"


# --- there and back -----------------------------------------------------------------------------


def test_a_state_comes_back_bit_for_bit(path):
    save_state(path, state())
    assert_same(load_state(path), state())
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_state_without_any_tensor_comes_back(path):
    save_state(path, State(0, {}, ({}, {"model": {}})))
    assert_same(load_state(path), State(0, {}, ({}, {"model": {}})))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8]
)
def test_precision_comes_back(path, dtype):
    value = torch.arange(5).to(dtype)
    save_state(path, State(1, {"w": value}, ()))
    found = load_state(path).shared["w"]
    assert found.dtype == dtype
    assert torch.equal(found, value)


def test_saving_changes_nothing(path):
    saved = state()
    save_state(path, saved)
    assert_same(saved, state())
    first = path.read_bytes()
    save_state(path, saved)
    assert path.read_bytes() == first


def test_what_is_loaded_shares_no_memory(path):
    save_state(path, state())
    loaded = load_state(path)
    loaded.private[0]["personal"]["trunk.z.weight"].fill_(0)
    assert torch.equal(loaded.shared["trunk.z.weight"], state().shared["trunk.z.weight"])
    assert_same(load_state(path), state())


def test_more_than_ten_clients_keep_their_numbers(path):
    private = tuple({"model": {"w": torch.tensor(float(i))}} for i in range(12))
    save_state(path, State(3, {}, private))
    assert [float(slots["model"]["w"]) for slots in load_state(path).private] == list(range(12))


# --- refusals -----------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(FeddrmError) as refusal:
        load_state(path)
    message = str(refusal.value)
    assert "\n" not in message
    assert str(path) in message
    assert "start" in message  # the remedy
    return message


@pytest.mark.parametrize("content", [b"", b"{}", b"no checkpoint at all", b"\xff" * 64], ids=len)
def test_a_foreign_file_is_refused(path, content):
    path.write_bytes(content)
    refused(path)


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.9, 0.999])
def test_a_cut_file_is_refused(path, fraction):
    save_state(path, state())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(fraction * len(whole))])
    refused(path)


def test_a_missing_file_is_refused(path):
    refused(path)


def test_a_folder_is_refused(tmp_path):
    refused(tmp_path)


@pytest.mark.parametrize("header", [None, {"format": "pt"}, {"feddrm-state-0": '{"order": []}'}])
def test_tensors_of_another_kind_are_refused(path, header):
    save_file({"w": torch.ones(2)}, path, metadata=header)
    assert "no checkpoint of this version" in refused(path)


@pytest.mark.parametrize(
    "header", ["[nonsense", '{"round": 1}', '{"order": ["shared/absent"]}', '{"order": ["shared/w"]}']
)
def test_a_header_that_makes_no_sense_is_refused(path, header):
    save_file({"shared/w": torch.ones(2)}, path, metadata={FORMAT: header})
    assert "cannot read" in refused(path)


# --- writing ------------------------------------------------------------------------------------


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def entries(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_full_disk_leaves_the_old_file_whole(path, monkeypatch):
    save_state(path, state())
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(FeddrmError) as refusal:
        save_state(path, state()._replace(round=18))
    message = str(refusal.value)
    assert "\n" not in message
    assert str(path) in message
    assert "No space left on device" in message
    monkeypatch.undo()
    assert_same(load_state(path), state())
    assert entries(path.parent) == [path.name]


def test_a_failed_rename_leaves_the_old_file_whole(path, monkeypatch):
    write_atomically(path, b"old")
    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(FeddrmError):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert entries(path.parent) == [path.name]


def test_the_old_file_stands_until_the_new_one_is_on_the_disk(path, monkeypatch):
    write_atomically(path, b"old")
    seen = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(path.read_bytes()))
    write_atomically(path, b"new")
    assert seen[0] == b"old"
    assert path.read_bytes() == b"new"


def test_a_folder_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "absent" / "state"
    with pytest.raises(FeddrmError, match="cannot write") as refusal:
        write_atomically(path, b"new")
    assert str(path) in str(refusal.value)
    assert entries(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_written_is_named(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    (folder / "state").write_bytes(b"old")
    folder.chmod(0o500)
    try:
        with pytest.raises(FeddrmError, match="Permission denied"):
            write_atomically(folder / "state", b"new")
        assert entries(folder) == ["state"]
        assert (folder / "state").read_bytes() == b"old"
    finally:
        folder.chmod(0o700)


def test_what_a_crash_left_behind_is_written_over(path):
    path.with_name(f".{path.name}.part").write_bytes(b"half of a much longer file than the new one")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert entries(path.parent) == [path.name]
