"""The fixture that makes a project of three shares of the digits."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from deployment import NAMES, Deployed
from feddrm.deploy.flower.apps import site_at
from feddrm.deploy.provision.project import make_project
from feddrm.deploy.server.federation_settings import FederationSettings


@pytest.fixture(scope="session")
def new_project(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Write a project as ``make_project`` does. The same settings are written once, then copied: no path is in them."""
    written: dict[str, Path] = {}

    def write(folder: Path, settings: FederationSettings, data: Mapping[str, Any]) -> None:
        key = repr((settings, sorted(data.items())))
        if key not in written:
            project = tmp_path_factory.mktemp("project") / "federation"
            make_project(project, settings, data=data)
            written[key] = project
        shutil.copytree(written[key], folder)

    return write


@pytest.fixture
def deployed(tmp_path: Path, new_project: Callable[..., None]) -> Callable[..., Deployed]:
    """Make the project, with other settings or data where they are given, or ``few`` samples instead of the digits."""

    def make(data: Mapping[str, Any] | None = None, *, few: bool = False, **settings: Any) -> Deployed:
        site_at.cache_clear()
        training = {"rounds": 2, "local_steps": 4, "batch_size": 16, **settings.pop("training", {})}
        chosen = FederationSettings(training=training, **{"clients": NAMES, **settings})
        new_project(tmp_path / "federation", chosen, data or {"dataset": "digits", "seed": 7})
        made = Deployed(tmp_path / "federation", chosen)
        if few:
            made.give_few_samples()
        return made

    return make
