"""Checkpoints: the whole state of a run in one file that is either the old one or the new one."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from feddrm.engine.rounds import State
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.methods import Slots, Tensors

FORMAT = "feddrm-state-1"

__all__ = ["load_state", "save_state", "write_atomically"]


def save_state(path: Path, state: State) -> None:
    """The state as safetensors: shared leaves, then every client's slots, which are for the owner's eyes only."""
    tensors: dict[str, Tensor] = {f"shared/{leaf}": value for leaf, value in state.shared.items()}
    for i, slots in enumerate(state.private):
        for slot, leaves in slots.items():
            tensors.update({f"private/{i}/{slot}/{leaf}": value for leaf, value in leaves.items()})
    # Clients may hold the very same tensors (all do at the start); the file wants copies.
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    empty = [f"{i}/{slot}" for i, slots in enumerate(state.private) for slot, leaves in slots.items() if not leaves]
    header = {
        "round": state.round,
        "clients": len(state.private),
        "empty": empty,
        # The file sorts its tensors, but sums over leaves depend on their order in the last bit.
        "order": list(plain),
    }
    # One entry: several would be written in any order, and the same state should give the same bytes.
    write_atomically(path, save(plain, metadata={FORMAT: json.dumps(header)}), private=True)


def load_state(path: Path, device: torch.device | str = "cpu") -> State:
    """The state as it was saved, bit for bit; a broken file is refused with the remedy."""
    try:
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            header = json.loads((file.metadata() or {}).get(FORMAT, "null"))
            tensors = {name: file.get_tensor(name) for name in header["order"]} if header else {}
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise FeddrmError(
            f"cannot read checkpoint {path} ({error}): remove the run's folder and start again"
        ) from error
    if header is None:
        raise FeddrmError(f"{path} is no checkpoint of this version (expected {FORMAT}): start the run again")
    shared: Tensors = {}
    private: list[Slots] = [{} for _ in range(header["clients"])]
    for place in header["empty"]:
        client, slot = place.split("/")
        private[int(client)][slot] = {}
    for name, value in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "shared":
            shared[rest] = value
        else:
            client, slot, leaf = rest.split("/", 2)
            private[int(client)].setdefault(slot, {})[leaf] = value
    return State(header["round"], shared, tuple(private))
