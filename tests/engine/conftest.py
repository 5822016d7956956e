"""A small federation of four clients with tables of three columns."""

from __future__ import annotations

import pytest
import torch

from feddrm.data import Federation


@pytest.fixture(scope="module")
def federation() -> Federation:
    generator = torch.Generator().manual_seed(0)

    def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, 3, generator=generator), torch.arange(count) % 2

    clients = {"a": 20, "b": 12, "c": 5, "d": 9}
    return Federation.from_arrays(
        {name: samples(count) for name, count in clients.items()}, test={name: samples(2) for name in clients}
    )
