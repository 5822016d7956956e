"""The fixture that makes a project of three shares of the digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from deployment import NAMES, Deployed
from feddrm.deploy.flower.apps import site_at
from feddrm.deploy.provision.project import make_project
from feddrm.deploy.server.federation_settings import FederationSettings


@pytest.fixture
def deployed(tmp_path: Path) -> Callable[..., Deployed]:
    """Make the project, with other settings or data where they are given, or ``few`` samples instead of the digits."""

    def make(data: Mapping[str, Any] | None = None, *, few: bool = False, **settings: Any) -> Deployed:
        site_at.cache_clear()
        training = {"rounds": 2, "local_steps": 4, "batch_size": 16, **settings.pop("training", {})}
        chosen = FederationSettings(training=training, **{"clients": NAMES, **settings})
        make_project(tmp_path / "federation", chosen, data=data or {"dataset": "digits", "seed": 7})
        made = Deployed(tmp_path / "federation", chosen)
        if few:
            made.give_few_samples()
        return made

    return make
