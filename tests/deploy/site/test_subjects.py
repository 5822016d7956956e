"""Sites whose samples are of subjects: a fit holds out whole ones, and no site tells them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from deployment import NAMES, Deployed, DirectTransport
from feddrm.data import Client, Federation
from feddrm.deploy.site.floors import Floors
from feddrm.deploy.wire.messages import unpack
from feddrm.io.run_files import RunFiles
from feddrm.router import RouterSettings, fit_router, read_manifest
from feddrm.router.answer_calibration import AnswerCalibration
from feddrm.router.private_head import PrivateHead
from refusal import refused

pytestmark = pytest.mark.slow


def test_sites_hold_out_whole_subjects_as_one_process_does(deployed: Callable[..., Deployed]) -> None:
    """No site tells its subjects: folds differ in size, and neither the server nor other sites know by how much."""
    routing = {"heads": True, "joint": False, "features": "raw", "rounds": 4, "path_rounds": 2}
    deployment = deployed(few=True, routing=routing)
    deployment.give_few_samples(subjects=11)
    deployment.server().go()
    calibrated = RunFiles(deployment.site_folder("oslo")).client("oslo")
    own = deployment.site("oslo").dataset.client(deployment.server().run_spec().classes).test
    parts = torch.unique(own.subject, return_counts=True)[1].double().reciprocal()
    for calibration in (
        AnswerCalibration.read(calibrated.temperature_file, ""),
        PrivateHead.read(calibrated.head_file, "").calibration,
    ):
        assert calibration.shares is not None, "label sets hold for new patients"
        assert set(calibration.shares.tolist()) == set(parts.tolist())
        assert float(calibration.shares.sum()) == pytest.approx(own.subjects)
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


def test_counts_in_bins_have_several_subjects_each(deployed: Callable[..., Deployed]) -> None:
    """All test samples but one are of one patient: only a bin with all of them has two patients."""
    routing = {"heads": True, "joint": False, "features": "raw", "rounds": 2, "path_rounds": 1}
    deployment = deployed(few=True, routing=routing)
    transport = DirectTransport(deployment.folder)
    deployment.server(transport).go()
    sent = [(to, unpack(signed[2 + int.from_bytes(signed[:2], "big") :])) for _, to, signed in transport.messages]
    name, asked = next((to, message) for to, message in sent if message.header.get("step") == "spread")
    fit = deployment.site(name)._run_of(asked).fit
    fit.floors, client = Floors(per_sum=2), fit.site.client
    each = fit.answer(asked)
    whose = (torch.arange(len(client.test)) == 0).long()
    fit.site = replace(fit.site, client=replace(client, test=replace(client.test, subject=whose)))
    together = fit.answer(asked)
    for bins in ("density/top", "density/own", "posterior/top", "posterior/own"):
        assert int((each[bins] > 0).sum()) > 1
        lowest = int(each[bins].nonzero().min())
        assert together[bins].nonzero().flatten().tolist() == [lowest]
        assert int(together[bins][lowest]) == int(each[bins].sum()) == len(client.test)
