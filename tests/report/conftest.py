"""Fixtures: run folders that no training has to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feddrm.data import Federation, load
from run_folders import write_run

MakeRun = Callable[..., Path]


@pytest.fixture(scope="session")
def digits() -> Federation:
    return load("digits", clients=4, seed=0)


@pytest.fixture
def make_run(tmp_path: Path, digits: Federation) -> MakeRun:
    """A function that writes a run folder: ``make_run("first", method="fedavg", skill=0.8, finished=True)``."""

    def make(name: str = "first", *, federation: Federation = digits, **options: Any) -> Path:
        return write_run(tmp_path / name, federation, **options)

    return make


@pytest.fixture
def make_seeds(make_run: MakeRun) -> Callable[..., list[Path]]:
    """A function that writes ``name/seed-0``, ... with one skill per seed: ``make_seeds("a", [0.7, 0.8])``."""

    def make(name: str, skills: list[float], **options: Any) -> list[Path]:
        return [make_run(f"{name}/seed-{i}", skill=skill, seed=i, **options) for i, skill in enumerate(skills)]

    return make
