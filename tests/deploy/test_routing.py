"""The router fitted by letters is the router fitted on pooled features."""

from __future__ import annotations

from collections.abc import Callable

import torch

from feddrm.data import load
from feddrm.deploy.rounds import Progress
from feddrm.router import Holdout, load_router, read_manifest
from feddrm.router.clients import logits_at
from feddrm.router.features import extract
from feddrm.router.fit import Problem, Sample, moments_of, scaler_of, solve
from feddrm.router.policy import fit_temperature

from .conftest import NAMES, Deployed


def test_the_fit_over_letters_is_the_pooled_one(deployed: Callable[..., Deployed]) -> None:
    ridge = 1e-2
    routing = {"ridges": [ridge], "finer": [], "path_rounds": 40, "rounds": 60, "tolerance": 1e-10}
    data = {"dataset": "digits", "seed": 7, "shift": "none"}  # or the router would never err
    deployment = deployed(data, routing=routing)
    deployment.server().go()
    run = deployment.folder / "server" / "runs" / "first"
    router = load_router(run / "router")
    assert router.names == NAMES

    federation = load("digits", clients=3, seed=7, shift="none")
    shared = Progress.load(run / "checkpoint.safetensors").shared
    rows = []
    for client in federation.clients:
        found = extract(router.recipe, router.net, shared, client.view(client.train.x))
        rows.append(torch.cat([found[feature.name] for feature in router.recipe.features], dim=1))
    scaler = scaler_of(rows)
    samples = [Sample(scaler(x), torch.full((len(x),), i)) for i, x in enumerate(rows)]
    whitening = moments_of(samples)
    problem = Problem(3, rows[0].shape[1], ridge)
    fit = solve(problem, samples, whitening, rounds=100, tolerance=1e-10)
    assert fit.converged
    torch.testing.assert_close(router.scaler.mean.double(), scaler.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(router.weight.double(), fit.point[:, :-1], rtol=0, atol=2e-4)
    torch.testing.assert_close(router.bias.double(), fit.point[:, -1], rtol=0, atol=2e-4)

    # Calibration: the same folds, the same temperature, percentiles within a bin.
    parts = Holdout.suggested(sum(len(s) for s in samples)).draw([len(s) for s in samples], 0)
    logits, origin = [], []
    for fold in range(5):
        outside = [s.rows(p != fold) for s, p in zip(samples, parts, strict=True)]
        point = solve(problem, outside, whitening, rounds=40, tolerance=1e-5).point
        for s, p in zip(samples, parts, strict=True):
            logits.append(logits_at(s.x[p == fold], point))
            origin.append(s.y[p == fold])
    temperature = fit_temperature(torch.cat(logits), torch.cat(origin))
    assert abs(router.calibration.temperature - temperature) < 1e-2 * temperature
    top = (torch.cat(logits) / temperature).softmax(1).amax(1)
    median = torch.tensor(router.calibration.confidence["posterior"])[50]
    assert abs(float(top.median()) - float(median)) < 3e-3


def test_every_site_must_be_there_at_the_beginning_of_the_fit(deployed: Callable[..., Deployed]) -> None:
    from .conftest import HandCourier

    routing = {"ridges": [1e-1, 1e-2], "finer": [1.0], "path_rounds": 2, "rounds": 3}
    deployment = deployed(routing=routing)
    # hello, two rounds, finish; then lima misses the first letter of the fit, and one in the midst of it
    courier = HandCourier(deployment.folder, away=lambda name, count: name == "lima" and count in (5, 9))
    deployment.server(courier).go()
    chosen = read_manifest(deployment.folder / "server" / "runs" / "first" / "router")["notes"]["chosen"]["router"]
    assert chosen["ridge"] in (1e-1, 1e-2)
