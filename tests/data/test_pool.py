"""A pool shows every sample as its own client's view does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from feddrm.data import Client, Federation, Pool, RandomResizedCrop, Split, View, colour_shifts, load
from feddrm.data.shift import COLOURS

SIZES = (7, 3, 5)


def made(*, crop: bool, shift: bool) -> Federation:
    generator = torch.Generator().manual_seed(0)
    shifts = colour_shifts("high", len(SIZES)) if shift else (None,) * len(SIZES)
    clients = []
    for i, size in enumerate(SIZES):
        x = torch.randint(0, 256, (size, 3, 8, 8), generator=generator, dtype=torch.uint8)
        y = torch.randint(0, 2, (size,), generator=generator)
        view = View(shifts[i], mean=(0.1 * i, 0.2, 0.3), std=(0.5, 0.4 + i, 0.3))
        clients.append(Client(f"c{i}", Split(x, y), Split(x[1:], y[1:]), view))
    return Federation("made", tuple(clients), ("a", "b"), "made", crop=RandomResizedCrop() if crop else None)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(("crop", "shift"), [(False, False), (True, False), (True, True)])
def test_equals_the_clients_views(split: str, crop: bool, shift: bool) -> None:
    federation = made(crop=crop, shift=shift)
    pool = Pool.of(federation, split)
    for i, client in enumerate(federation.clients):
        part = getattr(client, split)
        boxes = None
        if crop:
            boxes = RandomResizedCrop().boxes(len(part), 8, 8, torch.Generator().manual_seed(i))
        wanted = client.view(part.x, boxes)
        samples = pool.starts[i] + torch.arange(len(part))
        assert torch.equal(pool(samples, torch.tensor(i), boxes), wanted)  # one client for all
        assert torch.equal(pool(samples, torch.full((len(part),), i), boxes), wanted)  # or one each
        assert torch.equal(pool.y[samples], part.y)
        assert (pool.owners[samples] == i).all()
    assert len(pool.y) == sum(len(getattr(c, split)) for c in federation.clients)


@pytest.mark.slow
def test_clients_with_one_shift_share_its_table() -> None:
    """A table has 64 MiB: 1,000 clients of CIFAR have eight shifts, and need eight tables."""
    federation = made(crop=False, shift=True)
    clients = tuple(replace(c, view=replace(c.view, shift=federation.clients[i % 2].view.shift))
                    for i, c in enumerate(federation.clients))  # fmt: skip
    federation = replace(federation, clients=clients)
    pool = Pool.of(federation, "train")
    assert pool.tables is not None
    assert len(pool.tables) == 2 * COLOURS
    wanted = torch.cat([client.view(client.train.x) for client in clients])
    assert torch.equal(pool.network_input(pool.x, pool.owners), wanted)


def test_tables_pass_through() -> None:
    federation = load("digits")
    pool = Pool.of(federation, "test")
    wanted = torch.cat([c.view(c.test.x) for c in federation.clients])
    assert torch.equal(pool.network_input(pool.x, pool.owners), wanted)
