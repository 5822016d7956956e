"""What the tests of runs share: a small federation, quick settings, and the files of a run that must not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feddrm.data import Federation, load
from feddrm.models import Mlp

SMALL: dict[str, Any] = {
    "rounds": 4,
    "local_steps": 2,
    "batch_size": 16,
    "seed": 3,
    "model": Mlp(hidden=(16,), branch=8),
}
# For tests that need all that a fit writes, but not its optimum: a third of the time.
QUICK_FIT: dict[str, Any] = {"rounds": 5, "path_rounds": 2}


@pytest.fixture(scope="module")
def digits() -> Federation:
    return load("digits", clients=3, seed=3)


def arrays(seed: int, names: tuple[str, ...] = ("oslo", "lima"), label: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    x = {name: rng.normal(size=(20, 3)) for name in names}
    y = {name: [label, *(i % 2 for i in range(19))] for name in names}
    return Federation.from_arrays({name: (x[name], y[name]) for name in names})


def crowd(clients: int = 103) -> Federation:
    """A federation that is large: its clients' private slots lie in shards."""
    rng = np.random.default_rng(0)
    return Federation.from_arrays(
        {f"c{i}": (rng.normal(size=(8, 3)), [0, 1, 0, 1, 0, 1, 0, 1]) for i in range(clients)}, test_fraction=0.5
    )


def files(folder: Path) -> dict[str, bytes]:
    """Everything that must not depend on when or how often a run was interrupted."""
    names = ["config.yaml", "metrics.jsonl", "evaluation.json", "data.json", "checkpoint/state.safetensors"]
    names += ["router/shared.safetensors"]
    for path in [*(folder / "clients").rglob("private*.safetensors"), *(folder / "checkpoint" / "private").rglob("*")]:
        names.append(str(path.relative_to(folder)))
    return {name: (folder / name).read_bytes() for name in names}
