"""Shards: the slots of up to a hundred clients in one safetensors file; one client's can be read alone.

A file is mapped into memory, so that reading one client touches no other client's bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from feddrm.io.tensors import join_slots, split_slots, tensor_bytes
from feddrm.io.text import broken

SHARD_SIZE = 100  # clients of one shard at most; a larger federation has shards
FORMAT = "feddrm-shard-1"

Slots = Mapping[str, Mapping[str, Tensor]]


def shard_bytes(slots: Mapping[str, Slots], notes: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a shard that holds the slots of these clients, and notes; a client's name has no slash."""
    header = {
        # The file sorts its tensors, but sums over leaves depend on their order in the last bit.
        client: {slot: list(leaves) for slot, leaves in of_client.items()}
        for client, of_client in slots.items()
    }
    tensors = {
        f"{client}/{name}": value
        for client, of_client in slots.items()
        for name, value in join_slots(of_client).items()
    }
    return tensor_bytes(tensors, {**(notes or {}), FORMAT: json.dumps(header)})


class Shard:
    """An open shard. Its tensors are views of the mapped file."""

    def __init__(self, path: Path, remedy: str) -> None:
        self.path, self.remedy = path, remedy
        try:
            file: Any = safe_open(str(path), framework="pt")
            self.file = file
            self.notes: dict[str, str] = file.metadata() or {}
            self.header: dict[str, dict[str, list[str]]] = json.loads(self.notes[FORMAT])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise broken(path, f"it is no shard of clients, {error}", remedy) from error

    def __contains__(self, client: str) -> bool:
        return client in self.header

    def read(self, client: str) -> dict[str, dict[str, Tensor]]:
        """The slots of one client."""
        try:
            slots = self.header[client]
            names = [f"{slot}/{leaf}" for slot, leaves in slots.items() for leaf in leaves]
            return split_slots({name: self.file.get_tensor(f"{client}/{name}") for name in names}, slots)
        except (KeyError, SafetensorError) as error:
            raise broken(self.path, f"it lacks client {client}, {error}", self.remedy) from error


def find_client(paths: Iterable[Path], client: str, remedy: str) -> dict[str, dict[str, Tensor]] | None:
    """The slots of one client in the first of these shards that holds it; None if none does."""
    return next((shard.read(client) for path in paths if client in (shard := Shard(path, remedy))), None)
