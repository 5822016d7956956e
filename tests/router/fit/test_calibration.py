"""A router's temperature, percentiles and thresholds from held-out samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddrm import Federation
from feddrm.data import Client, Split
from feddrm.router import RouterSettings, fit_router
from feddrm.router.fit.calibration import MISSES, STRANGER, LocalHeldOut, calibrate, quantiles
from feddrm.router.policy import by_rule, conformal_set
from feddrm.rules import RULES


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_quantiles_are_those_of_torch(values: list[float]) -> None:
    x, grid = torch.tensor(values, dtype=torch.float64), torch.linspace(0, 1, 11, dtype=torch.float64)
    torch.testing.assert_close(quantiles(x, grid), torch.quantile(x, grid), rtol=0, atol=1e-12)


def held_out(scale: float) -> LocalHeldOut:
    """Logits of three clients, ``scale`` times those that the samples are drawn from."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(9000, 3, generator=g, dtype=torch.float64)
    origin = torch.multinomial(logits.softmax(1), 1, generator=g)[:, 0]
    rows = torch.randn(9000, 4, generator=g)
    parts = [origin == client for client in range(3)]
    unseen = torch.full((1, 3), torch.nan, dtype=torch.float64)
    return LocalHeldOut(
        [torch.cat([rows[part], 100 + rows[:1]]) for part in parts],
        [torch.cat([scale * logits[part], unseen]) for part in parts],
        [(rows[:0], logits[:0])] * 3,
        [client(int(part.sum()) + 1, 0) for part in parts],
    )


def client(train: int, test: int, whose: torch.Tensor | None = None, tested: torch.Tensor | None = None) -> Client:
    """So many training and test samples, which may be of subjects."""
    samples = ((torch.zeros(n, 4), torch.zeros(n, dtype=torch.int64)) for n in (train, test))
    return Client("oslo", *(Split(*both, of) for both, of in zip(samples, (whose, tested), strict=True)))


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_the_temperature_undoes_the_scale_and_unseen_samples_do_not_count(scale: float) -> None:
    calibration = calibrate(held_out(scale), torch.full((3,), 1 / 3, dtype=torch.float64).log())
    assert calibration.temperature == pytest.approx(scale, rel=0.05)
    assert calibration.unlike_above < STRANGER * 50, "the sample that no fit held out is not the strangest"
    assert set(calibration.conformal) == {f"{rule}_{miss}" for rule in RULES for miss in MISSES}
    for rule in RULES:
        assert list(calibration.confidence[rule]) == sorted(calibration.confidence[rule])
        assert calibration.conformal[f"{rule}_0.01"] <= calibration.conformal[f"{rule}_0.2"]


def learned_by_heart(tested: int) -> tuple[LocalHeldOut, torch.Tensor, torch.Tensor]:
    """Training samples at three centres, test samples and queries nearer to each other, as after long training."""
    g = torch.Generator().manual_seed(1)
    centres = torch.eye(3, dtype=torch.float64)

    def drawn(count: int, apart: float) -> list[torch.Tensor]:
        return [apart * centre + torch.randn(count, 3, generator=g, dtype=torch.float64) for centre in centres]

    train, test, queries = drawn(3000, 4.0), drawn(tested, 2.0), torch.cat(drawn(3000, 2.0))
    clients = [client(3000, tested)] * 3
    held_out = LocalHeldOut(train, [4.0 * x for x in train], [(x, 4.0 * x) for x in test], clients)
    return held_out, 4.0 * queries, torch.arange(3).repeat_interleave(3000)


@pytest.mark.parametrize("rule", RULES)
def test_sets_of_clients_hold_new_queries_as_often_as_asked_where_the_network_learned_its_samples(rule: str) -> None:
    held_out, queries, origin = learned_by_heart(3000)
    log_prior = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log()
    calibration = calibrate(held_out, log_prior)
    log_weights = by_rule(queries / calibration.temperature, log_prior, rule)
    for miss in MISSES:
        within = conformal_set(log_weights, calibration.least_weight(rule, miss)).gather(1, origin[:, None])
        assert float(within.double().mean()) == pytest.approx(1 - miss, abs=0.015)
    answered = log_weights.exp().amax(1) >= calibration.threshold(rule, 0.8)
    assert float(answered.double().mean()) == pytest.approx(0.8, abs=0.015)
    by_training = calibrate(learned_by_heart(0)[0], log_prior)
    assert by_training.temperature == calibration.temperature, "test samples do not set what changes labels"
    within = conformal_set(log_weights, by_training.least_weight(rule, 0.1)).gather(1, origin[:, None])
    assert float(within.double().mean()) < 0.85, "thresholds of training samples let sets miss too often"


def test_thresholds_count_subjects_of_test_samples_or_of_those_that_a_fit_held_out() -> None:
    """One client has test samples. Of the other, which has none, the crops of a training sample are of its subject."""
    g = torch.Generator().manual_seed(3)
    train = [torch.randn(n, 2, generator=g, dtype=torch.float64) for n in (5, 8)]  # the second: two crops of four
    test = [torch.randn(n, 2, generator=g, dtype=torch.float64) for n in (6, 0)]
    unseen = train[1].clone()
    unseen[[3, 7]] = torch.nan
    own, other = torch.tensor([5, 5, 5, 1, 2, 2]), torch.tensor([9, 9, 4, 4])
    clients = [client(5, 6, tested=own), client(4, 0, whose=other)]
    held_out = LocalHeldOut(train, [train[0], unseen], [(x, x) for x in test], clients)
    found = held_out.confidence(2.0, torch.zeros(2).log_softmax(0).double())
    for log_weights, shares in found.own.values():
        expected = [test[0].div(2).log_softmax(1)[:, 0], train[1][[0, 1, 2, 4, 5, 6]].div(2).log_softmax(1)[:, 1]]
        torch.testing.assert_close(log_weights, torch.cat(expected))
        thirds, quarters = [1 / 3] * 3 + [1, 1 / 2, 1 / 2], [1 / 4, 1 / 4, 1 / 2] * 2
        assert shares.tolist() == pytest.approx(thirds + quarters)


@pytest.mark.parametrize("rule", RULES)
def test_samples_that_are_tied_with_a_threshold_reach_it(rule: str) -> None:
    """Of three columns of zeros and ones there are eight different samples, so many have the weight of a threshold."""
    rng = np.random.default_rng(0)

    def draw(count: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        shares = {"a": (0.2, 0.5, 0.7), "b": (0.6, 0.4, 0.3), "c": (0.5, 0.8, 0.5)}
        return {name: (1.0 * (rng.random((count, 3)) < p), rng.integers(0, 2, count)) for name, p in shares.items()}

    federation = Federation.from_arrays(draw(300), test=draw(200))
    router = fit_router(None, {}, federation, RouterSettings(heads=False)).router
    x = torch.cat([client.test.x for client in federation.clients])
    origin = torch.arange(3).repeat_interleave(200)
    for miss in MISSES:
        within = router.route(x, rule=rule, miss=miss).within
        assert within is not None
        assert int(within.gather(1, origin[:, None]).sum()) >= 600 - int(601 * miss)
    for coverage in (0.5, 0.8, 0.9):
        assert int((~router.route(x, rule=rule, coverage=coverage).abstain).sum()) >= coverage * 600 - 1
