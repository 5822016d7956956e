from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from feddrm.data import load
from feddrm.router.query_drift import HORIZON, WINDOW
from feddrm.serve.feedback.drift_watch import DriftWatch, Item
from feddrm.serve.loaded_router import LoadedRouter, RouterQuery, decide
from feddrm.serve.settings import GatewaySettings
from feddrm.serve.telemetry.metrics import Metrics
from serving import in_process

DIGITS = load("digits", clients=3, seed=3)


@pytest.fixture(scope="module")
def loaded(run: Path) -> LoadedRouter:
    return LoadedRouter.load(run / "router", GatewaySettings(), Metrics())


def queries(loaded: LoadedRouter, number: int, gamma: float = 1.0) -> Item:
    """Decisions about test digits in the shares of the training mixture."""
    x = torch.cat([client.test.x for client in DIGITS.clients])
    shares = torch.cat([torch.full((len(c.test.x),), len(c.train.x) / len(c.test.x)) for c in DIGITS.clients])
    drawn = shares.multinomial(number, replacement=True, generator=torch.Generator().manual_seed(0))
    pixels = (255 * (x[drawn].double() / 255) ** gamma).round().to(torch.uint8).numpy()
    (found,) = decide(loaded.router, [RouterQuery("inputs", pixels, "density", 1.0, (True,) * 3, 0.5)])
    assert found.strangeness is not None
    return loaded, found.log_density, found.strangeness


def test_an_alarm_is_logged_counted_and_lasts_until_as_many_queries_had_none(
    loaded: LoadedRouter, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    watch = DriftWatch(metrics)
    assert (watch.as_dict()["watched"], watch.alarm) == (True, False)
    with caplog.at_level(logging.WARNING, "feddrm.serve"):
        watch._test([queries(loaded, 5 * WINDOW)])
        assert (watch.alarm, watch.as_dict()["queries"]) == (False, 5 * WINDOW)
        watch._test([queries(loaded, 5 * WINDOW, gamma=0.4)])
        assert watch.alarm
        assert watch.as_dict()["alarm_time"] is not None
    assert [record.message for record in caplog.records] == ["recent queries differ from the training data"]
    assert "feddrm_drift_alarm 1.0" in metrics.render().decode()
    for _ in range(HORIZON // WINDOW):
        assert watch.alarm
        watch._test([queries(loaded, WINDOW)])
    assert not watch.alarm
    assert "feddrm_drift_alarm 0.0" in metrics.render().decode()
    watch.close()


def test_a_router_without_a_reference_says_so_in_one_line(
    loaded: LoadedRouter, caplog: pytest.LogCaptureFixture
) -> None:
    watch = DriftWatch(Metrics())
    calibration = replace(loaded.router.calibration, reference=None)
    older = replace(loaded, version="older", router=replace(loaded.router, calibration=calibration))
    with caplog.at_level(logging.WARNING, "feddrm.serve"):
        watch._test([(older, *queries(loaded, WINDOW)[1:])] * 2)
    assert len(caplog.records) == 1
    assert "fit-router" in caplog.text
    assert not watch.as_dict()["watched"]
    watch._test([queries(loaded, WINDOW)])  # a new artifact begins anew
    assert watch.as_dict()["watched"]
    watch.close()


def test_a_gateway_shows_its_drift(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with in_process(run, tmp_path, monkeypatch, drift=True) as http:
            noise = np.random.default_rng(0).integers(0, 256, (2 * WINDOW, 1, 8, 8)).tolist()
            await http.post("/v1/route", json={"inputs": noise})
            for _ in range(500):
                drift = (await http.get("/v1/federation")).json()["drift"]
                if drift["alarm"]:
                    break
                await asyncio.sleep(0.02)
            assert drift["alarm"]
            assert (drift["false_alarm"], drift["horizon"], drift["queries"]) == (0.05, 2000, 2 * WINDOW)
            metrics = (await http.get("/metrics")).text
            assert "feddrm_drift_alarm 1.0" in metrics
            assert 'feddrm_drift_windows_total{result="alarm"} 2.0' in metrics

    asyncio.run(scenario())
