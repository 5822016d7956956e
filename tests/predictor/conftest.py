"""A small trained run whose clients are asked without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from feddrm.data import Federation, load
from feddrm.models import Mlp
from feddrm.runs import train


@pytest.fixture(scope="session")
def digits() -> Federation:
    return load("digits", clients=3, seed=3)


@pytest.fixture(scope="session")
def run(digits: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on three clients' digits after a few rounds, with a router on the trunk's embedding."""
    path = tmp_path_factory.mktemp("predictor") / "run"
    settings = {"rounds": 4, "local_steps": 4, "batch_size": 16, "seed": 3, "model": Mlp(hidden=(32, 16), branch=16)}
    train(digits, "feddrm", out=path, **settings).fit_router(features="embedding", joint=False)
    return path
