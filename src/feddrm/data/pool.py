"""All clients' samples in one place on one device, each still seen through its own client's eyes.

Whose a sample is, is a number here and not a Python object: the same captured work serves any
client, and the pooled test set is prepared without a loop over clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feddrm.data.crop import column_first, resized_crop, take
from feddrm.data.federation import Federation
from feddrm.data.shift import COLOURS, _look_up, _pack, _unpack


@dataclass(frozen=True, eq=False)
class Pool:
    """The samples of one split; client i's begin at ``starts[i]``, and ``owners`` says whose each one is.

    ``mean`` and ``std`` are [client, channel, 1, 1]; ``tables`` the clients' colour tables end to
    end (None where nobody shifts colours): 64 MiB per client.
    """

    x: Tensor
    y: Tensor
    owners: Tensor
    starts: tuple[int, ...]
    mean: Tensor
    std: Tensor
    tables: Tensor | None

    @classmethod
    def of(cls, federation: Federation, split: str) -> Pool:
        """The ``train`` or ``test`` samples of a federation."""
        parts = [getattr(client, split) for client in federation.clients]
        views = [client.view for client in federation.clients]
        starts = [0]
        for part in parts:
            starts.append(starts[-1] + len(part))
        x = torch.cat([part.x for part in parts])
        mean, std = (
            torch.tensor([getattr(view, name) for view in views], device=x.device)[:, :, None, None]
            for name in ("mean", "std")
        )
        tables = None
        if any(view.shift is not None for view in views):
            same = torch.arange(COLOURS, dtype=torch.int32, device=x.device)
            tables = torch.cat([same if view.shift is None else view.shift.table(x.device) for view in views])
        if federation.crop is not None:
            x = column_first(x)
        owners = torch.cat([torch.full_like(part.y, i) for i, part in enumerate(parts)])
        return cls(x, torch.cat([part.y for part in parts]), owners, tuple(starts[:-1]), mean, std, tables)

    def __call__(self, samples: Tensor, client: Tensor, boxes: Tensor | None = None) -> Tensor:
        """Network input from the samples of these numbers, as ``client`` (one each, or one for all) sees them."""
        if boxes is not None:
            return self.see(take(self.x, samples), client, boxes)
        return self.see(self.x[samples], client)

    def see(self, x: Tensor, client: Tensor, boxes: Tensor | None = None) -> Tensor:
        """The same from raw samples: what each client's :class:`View` would make of them."""
        if x.dtype != torch.uint8:
            return x
        client = client.view(-1)  # a tensor without a dimension would be read as a number, and waited for
        if boxes is not None:
            x = resized_crop(x, boxes)
        if self.tables is not None:
            x = _unpack(_look_up(self.tables, _pack(x).long() + COLOURS * client.view(-1, 1, 1)))
        x = x.to(torch.float32, memory_format=torch.channels_last)
        return x.div_(255).sub_(self.mean[client]).div_(self.std[client])
