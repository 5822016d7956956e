"""Shards: every client's slots come back bit for bit and in order; a broken file is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from feddrm.errors import FeddrmError
from feddrm.io.shards import Shard, find_client, shard_bytes

SLOTS = {
    "oslo": {"model": {"z": torch.arange(3.0), "a/b": torch.ones(2, 2).t()}, "personal": {}},
    "lima": {"model": {}},
    "pune": {},
}


def test_every_client_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    path.write_bytes(shard_bytes(SLOTS))
    shard = Shard(path, "copy it")
    for client, slots in SLOTS.items():
        read = shard.read(client)
        assert {slot: list(leaves) for slot, leaves in read.items()} == {s: list(v) for s, v in slots.items()}
        for slot, leaves in slots.items():
            assert all(torch.equal(read[slot][leaf], value) for leaf, value in leaves.items())


def test_a_client_is_found_in_the_shard_that_has_it(tmp_path: Path) -> None:
    for number, client in enumerate(SLOTS):
        (tmp_path / f"{number}").write_bytes(shard_bytes({client: SLOTS[client]}))
    paths = sorted(tmp_path.iterdir())
    found = find_client(paths, "oslo", "copy it")
    assert found is not None
    assert torch.equal(found["model"]["z"], torch.arange(3.0))
    assert find_client(paths, "pune", "copy it") == {}
    assert find_client(paths, "rome", "copy it") is None


def test_a_broken_file_and_a_missing_client_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    path.write_bytes(shard_bytes(SLOTS))
    with pytest.raises(FeddrmError, match=r"some\.safetensors.*lacks client rome.*copy it"):
        Shard(path, "copy it").read("rome")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(FeddrmError, match=r"some\.safetensors.*no shard of clients.*copy it"):
        Shard(path, "copy it")
