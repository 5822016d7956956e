"""Checkpoints: the state of a run in one safetensors file, written atomically; large federations have shards beside."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from feddrm.engine.communication import Communication
from feddrm.engine.private_shards import PrivateShards
from feddrm.engine.schedule import State
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.io.run_files import SHARDS
from feddrm.io.tensors import join_slots, split_slots, tensor_bytes
from feddrm.methods import Slots

FORMAT = "feddrm-state-1"
FIRST = "first"  # in the place of a client's number: the slots of those that took part in no round


def save_state(path: Path, state: State) -> None:
    """Write the shared leaves and every client's private slots. Only the owner of the file may read it.

    Private slots that lie on disk are not written again: the file says in which shards they are. Then the shards of
    other states are deleted.
    """
    shards = state.private if isinstance(state.private, PrivateShards) else None
    of_clients = enumerate(state.private) if shards is None else [(FIRST, shards.first)]
    private = {f"private/{i}/{slot}": leaves for i, slots in of_clients for slot, leaves in slots.items()}
    tensors = join_slots({"shared": state.shared, **private})
    header = {
        "round": state.round,
        "clients": len(state.private),
        "empty": [name.removeprefix("private/") for name, leaves in private.items() if not leaves],
        # The file sorts its tensors, but sums over leaves depend on their order in the last bit.
        "order": list(tensors),
        "communication": state.communication.saved(),
        **({} if shards is None else {"places": shards.places, "sizes": shards.sizes}),
    }
    # One entry: the order of several is not fixed, and the same state must give the same bytes.
    write_atomically(path, tensor_bytes(tensors, {FORMAT: json.dumps(header)}), private=True)
    if shards is not None:
        shards.delete_others()


def load_state(path: Path, device: torch.device | str = "cpu") -> State:
    """The state as it was saved, bit for bit. A broken file is refused, and the error says what to do."""
    try:
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            header = json.loads((file.metadata() or {}).get(FORMAT, "null"))
            if header is None:
                raise FeddrmError(f"{path} is no checkpoint of this version (expected {FORMAT}): start the run again")
            groups = split_slots({name: file.get_tensor(name) for name in header["order"]}, ("shared", "private"))
        slots = split_slots(groups["private"])
        empty = [place.split("/") for place in header["empty"]]

        def of_client(number: str) -> Slots:
            return split_slots(slots.get(number, {}), [slot for client, slot in empty if client == number])

        sent = Communication.load(header.get("communication", {}))  # older versions did not count
        if "places" not in header:
            slots_of_all = tuple(map(of_client, map(str, range(header["clients"]))))
            return State(header["round"], groups["shared"], slots_of_all, sent)
        places, sizes = tuple(header["places"]), header["sizes"]
        private = PrivateShards(path.parent / SHARDS, of_client(FIRST), places, sizes, device)
        return State(header["round"], groups["shared"], private, sent)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise FeddrmError(
            f"cannot read checkpoint {path} ({error}): remove the run's folder and start again"
        ) from error
