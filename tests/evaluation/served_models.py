"""Models of several clients to predict with, and their logits computed model by model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call

from feddrm.data import Federation
from feddrm.evaluation import Queries, pooled_queries
from feddrm.models import Mlp, Net, is_head

CLIENTS = 4
Leaves = dict[str, Tensor]


def moved(leaves: Leaves, seed: int, which: Callable[[str], bool]) -> Leaves:
    """The same model with some leaves elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    return {
        leaf: value + 0.3 * torch.randn(value.shape, generator=generator, dtype=value.dtype) if which(leaf) else value
        for leaf, value in leaves.items()
    }


def start(net: Net) -> Leaves:
    return {leaf: value.detach() for leaf, value in net.named_parameters()}


def heads_apart(net: Net) -> list[Leaves]:
    return [moved(start(net), seed, is_head) for seed in range(CLIENTS)]


def one_by_one(net: Net, models: list[Leaves], x: Tensor, batch_size: int = 1000) -> Tensor:
    """The plain way: the whole network once per model. In single precision the size of a batch shows."""
    with torch.no_grad():
        batches = torch.split(x, batch_size)
        return torch.stack([torch.cat([functional_call(net, m, (b,)).logits for b in batches]) for m in models])


def who(net: Net, model: Leaves, x: Tensor, batch_size: int = 1000) -> Tensor:
    with torch.no_grad():
        return torch.cat([functional_call(net, model, (b,)).client_logits for b in torch.split(x, batch_size)])


def small(shape: tuple[int, ...], clients: int | None = CLIENTS) -> Net:
    return Mlp(hidden=(16, 12), branch=8).build(shape, 10, clients)


def pool(fed: Federation) -> Queries:
    return pooled_queries(fed, crop=False, seed=0, round=1)
