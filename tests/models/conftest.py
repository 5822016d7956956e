"""Every model through the same tests: a new one is one row here."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from feddrm.models import LeNet, Mlp, Model, Net, ResNet18, ResNet18Retina

CLIENTS = 4


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Narrow(ResNet18):
    """The same network with fewer channels: what holds for any width is tested fast."""

    widths = (16, 16, 32, 48)


class NarrowRetina(ResNet18Retina):
    widths = (16, 16, 32, 48)


@dataclass(frozen=True)
class Case:
    model: Model
    shape: tuple[int, ...]
    classes: int

    def build(self, clients: int | None = CLIENTS) -> Net:
        """As it starts. Kept for the next test, which must find it unchanged."""
        return _built(self, clients)

    def shaken(self, seed: int = 0) -> Net:
        """In float64 and away from the start, where zero scales would hide most layers. Kept likewise."""
        return _shaken(self, seed)

    def inputs(self, count: int = 2, seed: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(count, *self.shape, generator=generator, dtype=torch.float64)


@lru_cache(maxsize=4)
def _built(case: Case, clients: int | None) -> Net:
    return case.model.build(case.shape, case.classes, clients)


@lru_cache(maxsize=4)
def _shaken(case: Case, seed: int) -> Net:
    net = copy.deepcopy(case.build()).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for leaf in net.parameters():
            leaf += 0.1 * torch.randn(leaf.shape, generator=generator)
    return net


CASES = {
    "resnet18": Case(Narrow(), (3, 16, 16), 10),
    "resnet18_retina": Case(NarrowRetina(), (3, 32, 32), 2),
    "lenet-none": Case(LeNet("none"), (3, 32, 32), 10),
    "lenet-shallow": Case(LeNet("shallow"), (3, 32, 32), 10),
    "lenet-mid": Case(LeNet("mid"), (3, 32, 32), 10),
    "lenet-deep": Case(LeNet("deep"), (1, 32, 32), 10),
    "mlp-table": Case(Mlp(), (30,), 3),
    "mlp-image": Case(Mlp(hidden=(32,), branch=16), (1, 8, 8), 10),
}


@pytest.fixture(params=CASES.values(), ids=CASES, scope="module")  # all tests of one case in a row
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    return CASES
