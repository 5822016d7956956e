"""Sites whose samples are of subjects: a fit holds out whole ones, and no site tells them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from deployment import NAMES, Deployed, DirectTransport
from feddrm.comparison import fit_federation
from feddrm.data import Client, Federation
from feddrm.deploy.site.floors import Floors
from feddrm.deploy.wire.messages import unpack
from feddrm.io.run_files import RunFiles
from feddrm.router import RouterSettings, fit_router, load_router, read_manifest
from feddrm.router.answer_calibration import AnswerCalibration
from feddrm.router.fit.fit_router import FittedRouter
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

    def fitted(clients: tuple[Client, ...]) -> FittedRouter:
        return fit_router(None, {}, Federation("here", clients, spec.classes, "sites"), settings)

    whole = fitted(clients)
    mine, theirs = whole.router.calibration.conformal, load_router(deployment.run / "router").calibration.conformal
    assert all(mine[key] - 2e-3 <= theirs[key] <= mine[key] for key in mine), "within a bin, towards larger sets"
    each = fitted(tuple(replace(c, test=replace(c.test, subject=None)) for c in clients)).router.calibration.conformal
    assert any(abs(theirs[key] - each[key]) > 0.01 for key in each), "subjects count once"
    here = whole.chosen
    for part in ("router", "probe", "private"):
        assert found[part]["ridge"] == here[part]["ridge"]
        assert found[part]["held_out_loss"] == pytest.approx(here[part]["held_out_loss"], abs=1e-6)
    alone = fitted(tuple(replace(c, train=replace(c.train, subject=None)) for c in clients)).chosen
    assert abs(found["router"]["held_out_loss"] - alone["router"]["held_out_loss"]) > 1e-4
    with refused(
        "site.yaml: 'share: {features: true}' needs folds that the server knows", "remove it, or the subjects"
    ):
        deployment.change_site("oslo", share={"features": True})
        deployment.site("oslo")


def test_a_comparison_counts_subjects_as_one_process_does(deployed: Callable[..., Deployed]) -> None:
    deployment = deployed(few=True, router=False, comparison={"basis": "identity", "columns": ["x1", "x2"]})
    deployment.give_few_samples(subjects=11)
    deployment.server().go()
    found, spec = deployment.server().run.summary()["comparison"], deployment.server().run_spec()
    clients = tuple(deployment.site(name).dataset.client(spec.classes) for name in NAMES)
    here = fit_federation(Federation("here", clients, spec.classes, "sites"), **deployment.settings.comparison)
    test, values = found["homogeneity"], here.as_dict()
    assert test["correction"] == here.homogeneity.correction == "subjects"
    assert (test["factor"], test["p_value"]) == pytest.approx((here.homogeneity.factor, here.homogeneity.p_value))
    for key in ("tilts", "standard_errors"):
        assert_close(found[key], values[key], rtol=1e-6, atol=1e-9)
    unknown = tuple(replace(c, train=replace(c.train, subject=None)) for c in clients)
    alone = Federation("here", unknown, spec.classes, "sites")
    without = fit_federation(alone, **deployment.settings.comparison).tilts
    assert abs(without.error[1:, 1:] / here.tilts.error[1:, 1:] - 1).min() > 0.1, "the slopes' errors"


def test_a_comparison_of_too_few_subjects_is_said_in_the_summary(deployed: Callable[..., Deployed]) -> None:
    """Its errors would be meaningless. The server knows of the subjects by this alone, and the training stands."""
    deployment = deployed(few=True, router=False, comparison={"basis": "normal", "columns": ["x1"]})
    deployment.give_few_samples(subjects=3)
    deployment.server().go()
    summary = deployment.server().run.summary()
    assert "fewer subjects than the 3 parameters of a tilt" in summary["comparison"]["problem"]
    assert summary["average_accuracy"] is not None


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
        assert int(each[bins].sum()) == len(client.test)
        counted = len(client.test) if bins.endswith("top") else 2
        assert float(together[bins][lowest]) == pytest.approx(counted, rel=1e-12)
