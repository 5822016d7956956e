"""Sites whose samples are of subjects: a fit holds out whole ones, and no site tells them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deployment import NAMES, Deployed
from feddrm.data import Client, Federation
from feddrm.router import RouterSettings, fit_router, read_manifest
from refusal import refused

pytestmark = pytest.mark.slow


def test_sites_hold_out_whole_subjects_as_one_process_does(deployed: Callable[..., Deployed]) -> None:
    """No site tells its subjects: folds differ in size, and neither the server nor other sites know by how much."""
    routing = {"heads": True, "joint": False, "features": "raw", "rounds": 4, "path_rounds": 2}
    deployment = deployed(few=True, routing=routing)
    deployment.give_few_samples(subjects=11)
    deployment.server().go()
    found, spec = read_manifest(deployment.run / "router")["notes"]["chosen"], deployment.server().run_spec()
    clients = tuple(deployment.site(name).dataset.client(spec.classes) for name in NAMES)
    settings = RouterSettings(**routing, competence=False, few_messages=True)  # type: ignore[arg-type]

    def fitted(clients: tuple[Client, ...]) -> dict[str, Any]:
        return fit_router(None, {}, Federation("here", clients, spec.classes, "sites"), settings).chosen

    here = fitted(clients)
    for part in ("router", "probe", "private"):
        assert found[part]["ridge"] == here[part]["ridge"]
        assert found[part]["held_out_loss"] == pytest.approx(here[part]["held_out_loss"], abs=1e-6)
    alone = fitted(tuple(replace(c, train=replace(c.train, subject=None)) for c in clients))
    assert abs(found["router"]["held_out_loss"] - alone["router"]["held_out_loss"]) > 1e-4
    with refused(
        "site.yaml: 'share: {features: true}' needs folds that the server knows", "remove it, or the subjects"
    ):
        deployment.change_site("oslo", share={"features": True})
        deployment.site("oslo")
