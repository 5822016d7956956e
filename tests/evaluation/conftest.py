"""Federations to evaluate, and a count of the trunk's runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from feddrm.data import Federation, RandomResizedCrop, load
from feddrm.models import Net, model

from .served_models import CLIENTS


@pytest.fixture(scope="module")
def digits() -> Federation:
    return load("digits", clients=CLIENTS, seed=0)


@pytest.fixture(scope="module")
def images() -> Federation:
    """Colour images with a crop: what CIFAR looks like."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (2, 30, 3, 16, 16), generator=generator, dtype=torch.uint8)
    y = torch.arange(30) % 3
    fed = Federation.from_arrays({"a": (x[0].numpy(), y.numpy()), "b": (x[1].numpy(), y.numpy())})
    return replace(fed, crop=RandomResizedCrop())


@pytest.fixture
def trunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of samples of every run of a trunk, apart from those that a new network is tried on."""
    runs: list[int] = []
    embed = Net.embed

    def counted(self: Net, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        runs.append(len(x))
        return embed(self, x)

    monkeypatch.setattr(Net, "embed", counted)
    monkeypatch.setattr(model, "_trial_problem", lambda *_: None)
    return runs
