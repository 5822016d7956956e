"""The router and the heads fitted by letters are those that one process fits: features, strengths, parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from deployment import NAMES, Deployed, DirectTransport
from feddrm.data import Federation, load
from feddrm.deploy.server.routing import RoutingSettings, fit_over
from feddrm.deploy.server.training import ServerState
from feddrm.deploy.site.site import Site
from feddrm.deploy.wire.messages import Message, unpack
from feddrm.router import FittedRouter, RouterSettings, fit_router, load_heads, load_router, read_manifest
from feddrm.runs.run_router import router_kernels

DATA = {"dataset": "digits", "seed": 7, "shift": "none"}  # or the router would never err
Make = Callable[..., Deployed]


def fitted_here(deployment: Deployed, **settings: object) -> tuple[FittedRouter, Federation]:
    """What one process comes to on the same trunk."""
    federation = load("digits", clients=3, seed=7, shift="none")
    brief = deployment.server().run_spec()
    shared = ServerState.load(deployment.server().checkpoint).shared
    with router_kernels(sum(brief.sizes)):
        net = brief.make_net().requires_grad_(False)
        return fit_router(net, shared, federation, RouterSettings(**settings)), federation  # type: ignore[arg-type]


def test_features_strength_and_router_are_those_of_one_process(deployed: Make) -> None:
    deployment = deployed(DATA)
    courier = DirectTransport(deployment.folder)
    deployment.server(courier).go()
    folder = deployment.folder / "server" / "runs" / "first" / "router"
    router, found = load_router(folder), read_manifest(folder)["notes"]["chosen"]
    here, _ = fitted_here(deployment, heads=False)
    assert router.names == NAMES
    assert found["router"]["recipe"] == here.chosen["router"]["recipe"]
    assert found["router"]["ridge"] == here.chosen["router"]["ridge"]
    assert list(found["candidates"]) == list(here.chosen["candidates"])
    for name, mine in here.chosen["candidates"].items():
        theirs = found["candidates"][name]
        assert [step[0] for step in theirs["path"]] == [step[0] for step in mine["path"]], "the same strengths tried"
        assert theirs["held_out_loss"] == pytest.approx(mine["held_out_loss"], abs=1e-6)
    assert torch.equal(router.scaler.mean, here.router.scaler.mean)
    torch.testing.assert_close(router.weight, here.router.weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(router.bias, here.router.bias, rtol=0, atol=1e-6)
    # Calibration: the same temperature, percentiles within a bin, the same strangest sample.
    mine, theirs = here.router.calibration, router.calibration
    assert theirs.temperature == pytest.approx(mine.temperature, rel=1e-6)
    assert theirs.unlike_above == pytest.approx(mine.unlike_above, rel=1e-6)
    for rule, percentiles in mine.confidence.items():
        for a, b in zip(theirs.confidence[rule], percentiles, strict=True):
            assert abs(a - b) < 2e-3
    assert all(mine.conformal[key] - 2e-3 <= theirs.conformal[key] <= mine.conformal[key] for key in mine.conformal)


def test_heads_by_letters_are_those_of_the_same_sites_in_one_process(deployed: Make) -> None:
    """Letters lose nothing: with and without signatures, files and Flower's messages every number is the same."""
    routing = {"heads": True, "joint": True, "features": "raw", "path_rounds": 4, "rounds": 6}
    deployment = deployed(DATA, routing=routing)
    deployment.server().go()
    run = deployment.folder / "server" / "runs" / "first"
    brief = deployment.server().run_spec()
    sites = [Site(deployment.folder / "sites" / name) for name in NAMES]
    for site in sites:
        site.folder = site.folder.parent.parent / "again" / site.name

    def ask(header: object, tensors: object) -> dict[int, Message]:
        letter = Message({"brief": brief.as_dict(), **header}, dict(tensors))  # type: ignore[dict-item, call-overload]
        return {i: unpack(site._fit(letter)) for i, site in enumerate(sites)}

    with router_kernels(sum(brief.sizes)):
        shared = ServerState.load(run / "checkpoint.safetensors").shared
        how = fit_over(ask, brief, shared, RoutingSettings(**routing), deployment.folder / "again" / "router")  # type: ignore[arg-type]
    first, again = (
        read_manifest(run / "router")["notes"],
        read_manifest(deployment.folder / "again" / "router")["notes"],
    )
    assert first == again
    assert set(how["stacked"]) == {"global_probe", "joint"}
    heads = load_heads(run / "router")
    for name, value in load_heads(deployment.folder / "again" / "router").items():
        assert torch.equal(heads[name], value)
    for name in NAMES:
        own, copy = (
            load_file(place / "clients" / name / "head.safetensors")["correction"]
            for place in (deployment.folder / "sites" / name, deployment.folder / "again" / name)
        )
        assert own.shape == heads["probe"].shape
        assert torch.equal(own, copy)


def test_heads_are_worth_what_those_of_fit_router_are(deployed: Make) -> None:
    """The class fits end before they have converged, where rounding has grown: hence a thousandth here."""
    deployment = deployed(DATA, routing={"heads": True, "joint": False, "features": "raw"})
    deployment.server().go()
    folder = deployment.folder / "server" / "runs" / "first" / "router"
    found = read_manifest(folder)["notes"]["chosen"]
    here, _ = fitted_here(deployment, heads=True, joint=False, features="raw")
    assert found["probe"]["recipe"] == here.chosen["probe"]["recipe"]
    assert found["probe"]["ridge"] == here.chosen["probe"]["ridge"]
    assert found["probe"]["held_out_loss"] == pytest.approx(here.chosen["probe"]["held_out_loss"], abs=1e-3)
    assert found["private"]["held_out_loss"] <= found["probe"]["held_out_loss"]
    assert not list((deployment.folder / "server").rglob("head.safetensors")), "corrections stay on their sites"


def test_a_site_missing_in_the_fit_makes_it_begin_again(deployed: Make) -> None:
    """At its first letter and in the midst of it; what comes out is what comes out without."""
    routing = {"features": "raw", "path_rounds": 2, "rounds": 3}
    deployment = deployed(DATA, routing=routing)
    # hello, two rounds; then lima misses the first letter of the fit, and later those of scores
    courier = DirectTransport(deployment.folder, away=lambda name, count: name == "lima" and count in (4, 9))
    deployment.server(courier).go()
    folder = deployment.folder / "server" / "runs" / "first" / "router"
    disturbed = load_router(folder)
    steps = [unpack(letter[2 + int.from_bytes(letter[:2], "big") :]).header for _, _, letter in courier.messages]
    assert sum(step.get("step") == "features" and step.get("kind") == "fit" for step in steps) == 3 * 3
    (deployment.folder / "server" / "runs" / "first" / "summary.json").unlink()
    (folder / "manifest.json").unlink()
    deployment.restart_sites()
    replace(deployment).server().go()
    assert torch.equal(load_router(folder).weight, disturbed.weight)
