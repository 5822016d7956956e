"""A pool: the samples of all clients in one tensor on one device, prepared by each client's view.

The client of a sample is a number in a tensor, not a Python object. One captured CUDA graph therefore
serves every client, and the pooled test set is prepared without a loop over clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from feddrm.data.crop import column_first, resized_crop, take
from feddrm.data.federation import Federation
from feddrm.data.shift import COLOURS, look_up, pack, unpack


@dataclass(frozen=True, eq=False)
class Pool:
    """The samples of one split. Those of client i begin at ``starts[i]``; ``owners`` has the client of each sample.

    ``mean`` and ``std`` are [client, channel, 1, 1]. ``tables`` holds the colour tables of all different shifts,
    one after another (64 MiB each), and ``first_colours`` where each client's table begins; both are None if no client
    shifts colours.
    """

    x: Tensor
    y: Tensor
    owners: Tensor
    starts: tuple[int, ...]
    mean: Tensor
    std: Tensor
    tables: Tensor | None
    first_colours: Tensor | None = None

    @classmethod
    def of(cls, federation: Federation, split: str) -> Pool:
        """The ``train`` or ``test`` samples of a federation."""
        parts = [getattr(client, split) for client in federation.clients]
        views = [client.view for client in federation.clients]
        *starts, _ = accumulate((len(part) for part in parts), initial=0)
        x = torch.cat([part.x for part in parts])
        mean, std = (
            torch.tensor([getattr(view, name) for view in views], device=x.device)[:, :, None, None]
            for name in ("mean", "std")
        )
        tables = first_colours = None
        if any(view.shift is not None for view in views):
            shifts = list(dict.fromkeys(view.shift for view in views))
            identity = torch.arange(COLOURS, dtype=torch.int32, device=x.device)
            tables = torch.cat([identity if shift is None else shift.table(x.device) for shift in shifts])
            places = {shift: COLOURS * place for place, shift in enumerate(shifts)}
            first_colours = torch.tensor([places[view.shift] for view in views], device=x.device)
        if federation.crop is not None:
            x = column_first(x)
        owners = torch.cat([torch.full_like(part.y, i) for i, part in enumerate(parts)])
        y = torch.cat([part.y for part in parts])
        return cls(x, y, owners, tuple(starts), mean, std, tables, first_colours)

    def __call__(self, samples: Tensor, client: Tensor, boxes: Tensor | None = None) -> Tensor:
        """Network input from the samples with these numbers; ``client`` is one per sample, or one for all."""
        if boxes is not None:
            return self.network_input(take(self.x, samples), client, boxes)
        return self.network_input(self.x[samples], client)

    def network_input(self, x: Tensor, client: Tensor, boxes: Tensor | None = None) -> Tensor:
        """Network input from raw samples, with the same values as each client's :class:`View` gives."""
        if x.dtype != torch.uint8:
            return x
        client = client.view(-1)  # indexing by a 0-d tensor would copy it to the CPU and wait
        if boxes is not None:
            x = resized_crop(x, boxes)
        if self.tables is not None and self.first_colours is not None:
            x = unpack(look_up(self.tables, pack(x).long() + self.first_colours[client].view(-1, 1, 1)))
        x = x.to(torch.float32, memory_format=torch.channels_last)
        return x.div_(255).sub_(self.mean[client]).div_(self.std[client])
