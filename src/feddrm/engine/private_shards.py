"""The private slots of a large federation on disk: a round reads and writes those of its participants only.

Every round writes its participants into new shards. A shard is never changed, so an earlier state stays whole and a
checkpoint says no more than which shard has which client. A shard is thin if at least half of its clients were written
again later: the next round takes the others along. So the files of a state hold at most twice the federation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import overload

import torch

from feddrm.io.atomic import write_atomically
from feddrm.io.shards import SHARD_SIZE, Shard, shard_bytes
from feddrm.methods import Slots, Tensors

REMEDY = "remove the run's folder and start again"
NOWHERE = ""  # the shard of a client that took part in no round


@dataclass(frozen=True)
class PrivateShards(Sequence[Slots]):
    """The private slots of all clients: ``places`` has every client's shard, ``sizes`` how many clients a shard holds.

    Clients that took part in no round have the slots ``first``. Tensors are read onto ``device``.
    """

    folder: Path
    first: Slots
    places: tuple[str, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    device: torch.device | str = "cpu"
    opened: dict[str, Shard] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def start(cls, folder: Path, first: Slots, clients: int, device: torch.device | str = "cpu") -> PrivateShards:
        """The slots before round 1; nothing is written yet."""
        return cls(folder, first, (NOWHERE,) * clients, device=device)

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, client: int) -> Slots: ...
    @overload
    def __getitem__(self, client: slice) -> list[Slots]: ...
    def __getitem__(self, client: int | slice) -> Slots | list[Slots]:
        if isinstance(client, slice):
            return [self[number] for number in range(*client.indices(len(self)))]
        place = self.places[client]
        if place == NOWHERE:
            return self.first
        if place not in self.opened:
            self.opened[place] = Shard(self.folder / place, REMEDY)
        slots = self.opened[place].read(str(range(len(self))[client]))
        return {name: self._on_device(leaves) for name, leaves in slots.items()}

    def __iter__(self) -> Iterator[Slots]:
        return (self[client] for client in range(len(self)))

    def _on_device(self, leaves: Tensors) -> Tensors:
        if torch.device(self.device).type == "cpu":
            return leaves
        # Weights of convolutions in the layout that cuDNN wants, as in the state that a graph reads.
        layouts = {4: torch.channels_last}
        return {
            leaf: value.to(self.device, memory_format=layouts.get(value.dim(), torch.preserve_format))
            for leaf, value in leaves.items()
        }

    def replaced(self, round: int, updates: Mapping[int, Slots]) -> PrivateShards:
        """The slots after a round, with those of its participants written to disk."""
        live = Counter(place for client, place in enumerate(self.places) if client not in updates)
        thin = {place for place, size in self.sizes.items() if 2 * live[place] <= size}
        stay = [client for client, place in enumerate(self.places) if place in thin and client not in updates]
        along = {client: self[client] for client in stay}
        written = {**along, **updates}
        places = list(self.places)
        sizes = {place: size for place, size in self.sizes.items() if place not in thin}
        self.folder.mkdir(parents=True, exist_ok=True)
        order = sorted(written)
        for part in (order[start : start + SHARD_SIZE] for start in range(0, len(order), SHARD_SIZE)):
            place = f"{round}-{part[0]}.safetensors"
            content = shard_bytes({str(client): written[client] for client in part})
            write_atomically(self.folder / place, content, private=True)
            sizes[place] = len(part)
            for client in part:
                places[client] = place
        opened = {place: shard for place, shard in self.opened.items() if place in sizes}
        return replace(self, places=tuple(places), sizes=sizes, opened=opened)

    def delete_others(self) -> None:
        """Delete the files that this state does not need. Earlier and later states cannot be read any more."""
        for file in self.folder.glob("*") if self.folder.is_dir() else ():
            if file.name not in self.sizes:
                with suppress(OSError):  # the next call tries again
                    file.unlink()
