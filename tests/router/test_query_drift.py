from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from feddrm.data import Federation, Split, load
from feddrm.router import Router, load_router
from feddrm.router.artifact import save_router
from feddrm.router.fit.fit_router import fit_router
from feddrm.router.membership import leave
from feddrm.router.query_drift import (
    LEAST_REFERENCE,
    LEVEL,
    MOST_CLIENTS,
    WINDOW,
    DriftMonitor,
    drift_reference,
    drift_statistics,
)
from feddrm.router.settings import RouterSettings

WHOLE = load("digits", clients=3, seed=3)
HALVES = tuple(replace(c, test=Split(c.test.x[::2], c.test.y[::2])) for c in WHOLE.clients)
DIGITS = replace(WHOLE, clients=HALVES)  # the reference has these test samples, queries are the others
OTHERS = torch.cat([client.test.x[1::2] for client in WHOLE.clients])


@pytest.fixture(scope="module")
def router() -> Router:
    return fit_router(None, {}, DIGITS, RouterSettings(features="raw", heads=False)).router


def rows(router: Router, x: torch.Tensor) -> np.ndarray:
    decision = router.route(x)
    assert decision.strangeness is not None
    return drift_statistics(decision.log_density_ratio.numpy(), decision.strangeness.numpy())


def p_values(router: Router, x: torch.Tensor, seed: int) -> list[float]:
    """The tests of 1,000 queries, drawn from these samples."""
    drawn = np.random.default_rng(seed).integers(len(x), size=1000)
    assert router.calibration.reference is not None
    return [test.p_value for test in DriftMonitor(router.calibration.reference).add(rows(router, x)[drawn])]


def test_usual_queries_raise_no_alarm_and_brighter_ones_do(router: Router) -> None:
    brighter = (255 * (OTHERS.double() / 255) ** 0.7).round().to(torch.uint8)
    for seed in range(5):
        assert min(p_values(router, OTHERS, seed)) >= LEVEL
        assert min(p_values(router, brighter, seed)[:5]) < LEVEL  # within 500 queries


def test_the_statistics_are_centred_log_odds_and_the_logarithm_of_strangeness(router: Router) -> None:
    x = torch.cat([client.test.x[:4] for client in DIGITS.clients])
    features = router.features(x)
    logits = router.logits(features).double()
    found = rows(router, x)
    centred = logits - router.log_prior
    np.testing.assert_allclose(found[:, :-1], (centred - centred.mean(1, keepdim=True))[:, 1:], atol=1e-4)
    np.testing.assert_allclose(found[:, -1], router.strangeness(features).log(), rtol=1e-5)


def test_windows_do_not_depend_on_how_queries_arrive(router: Router) -> None:
    assert router.calibration.reference is not None
    given = np.random.default_rng(0).normal(size=(2 * WINDOW + 30, 3))
    given[5, 1] = np.nan  # a query with a missing value is left out
    whole = [test.statistic for test in DriftMonitor(router.calibration.reference).add(given)]
    monitor = DriftMonitor(router.calibration.reference)
    parts = [test.statistic for part in np.array_split(given, 17) for test in monitor.add(part)]
    assert parts == whole
    assert len(whole) == 2
    assert monitor.queries == 2 * WINDOW


def test_the_reference_is_kept_with_the_artifact_and_older_ones_have_none(router: Router, tmp_path: Path) -> None:
    reference = router.calibration.reference
    assert reference is not None
    assert reference.count <= sum(len(client.train.x) for client in DIGITS.clients)
    save_router(tmp_path / "new", router)
    read = load_router(tmp_path / "new").calibration.reference
    assert read is not None
    assert read.count == reference.count
    np.testing.assert_array_equal(read.mean, reference.mean)
    np.testing.assert_array_equal(read.covariance, reference.covariance)
    save_router(tmp_path / "old", replace(router, calibration=replace(router.calibration, reference=None)))
    assert load_router(tmp_path / "old").calibration.reference is None
    assert leave(router, router.names[0]).calibration.reference is None  # it has this client's samples
    assert drift_reference(torch.zeros(9, 3), torch.zeros(3), torch.ones(9)) is None  # too few


def test_there_is_no_reference_for_more_clients_than_a_window_has_queries() -> None:
    assert MOST_CLIENTS == WINDOW
    for clients in (MOST_CLIENTS, MOST_CLIENTS + 1):
        samples = LEAST_REFERENCE * (clients + 1)
        logits = torch.randn(samples, clients, generator=torch.Generator().manual_seed(0))
        reference = drift_reference(logits, torch.zeros(clients), 1 + torch.rand(samples))
        assert (reference is None) is (clients > MOST_CLIENTS)


@pytest.mark.parametrize("clients", [MOST_CLIENTS, MOST_CLIENTS + 1])
def test_a_fit_with_too_many_clients_says_that_it_leaves_the_drift_test_out(clients: int) -> None:
    rng = np.random.default_rng(0)
    each = {f"site-{i:03}": (rng.normal(i / 10, 1, size=(6, 3)), [0, 1] * 3) for i in range(clients)}
    fitted = fit_router(None, {}, Federation.from_arrays(each, test=each), RouterSettings(features="raw", heads=False))
    many = clients > MOST_CLIENTS
    assert (fitted.router.calibration.reference is None) is many
    line = f"drift test: left out, {clients} clients are more than the {WINDOW} queries of a window"
    assert fitted.chosen.get("left_out") == ([line] if many else None)
