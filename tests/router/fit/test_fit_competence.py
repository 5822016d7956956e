"""The competence fit: against scikit-learn, its choice of ridge, and the folds that it adds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from feddrm.data import Federation
from feddrm.router import Recipe, RouterSettings, fit_router
from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.fit import fit_competence as competence
from feddrm.router.fit.cohort import HeldOutHeads, Judged, Trunk
from feddrm.router.fit.fit_competence import RIDGES, all_folds, choose_ridge, fit_competence, odds_of_right
from feddrm.router.fit.fit_heads import LinearHeads
from feddrm.router.fit.head_problems import POINTS
from feddrm.router.fit.local_cohort import LocalCohort
from feddrm.router.settings import Holdout
from feddrm.router.solver.client_statistics import Sample, logits_at
from feddrm.router.solver.problem import Problem, Scaler
from feddrm.router.solver.solve import Fit, moments_of

RAW = Recipe.parse("raw")
EXACT = RouterSettings(rounds=500, tolerance=1e-12)


class Judges:
    """A cohort that does nothing but judge."""

    def __init__(self, judged: Judged) -> None:
        self.judged = judged

    def judge(self, design: DesignMatrix, heads: HeldOutHeads) -> Judged:
        return self.judged


def made(competent: Callable[[Tensor], Tensor], samples: int = 400) -> tuple[Judged, DesignMatrix]:
    """Standard normal features; the probabilities [n, m] that each client is right are a function of them."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(samples, 3, generator=g, dtype=torch.float64)
    probability = competent(x)
    right = torch.rand(probability.shape, generator=g, dtype=torch.float64) < probability
    scaler = Scaler(torch.zeros(3), torch.ones(3))
    return Judged(x, right, torch.arange(samples) % 5), DesignMatrix(RAW, scaler, moments_of([x]), (x,))


def fit(judged: Judged, design: DesignMatrix) -> Any:
    cohort: Any = Judges(judged)
    heads = HeldOutHeads(design, [torch.zeros(0)] * 5, [], None, 0.1, 0.1)  # of all folds: none is added
    return fit_competence(cohort, design, heads, Holdout(5, 5), EXACT)


def test_the_fit_is_every_clients_own_logistic_regression() -> None:
    judged, design = made(lambda x: torch.stack([(2 * x[:, 0]).sigmoid(), (-2 * x[:, 0] + x[:, 1]).sigmoid()], 1))
    fitted = fit(judged, design)
    for client, point in enumerate(fitted.point):
        # Two outputs, w and -w, share the penalty; the loss is a mean over samples and clients.
        weight = 2 / (fitted.chosen["ridge"] * judged.right.numel())
        sklearn = LogisticRegression(C=weight, tol=1e-10, max_iter=1000)
        sklearn.fit(judged.x.numpy(), judged.right[:, client].numpy())
        wanted = torch.tensor([*sklearn.coef_[0], *sklearn.intercept_])
        torch.testing.assert_close(point, wanted, rtol=0, atol=1e-3)  # sklearn's intercept has no ridge at all
    assert fitted.chosen["judged"] == 400


def test_where_features_say_nothing_every_client_keeps_nearly_its_mean_accuracy() -> None:
    judged, design = made(lambda x: torch.tensor([0.9, 0.6]).expand(len(x), 2))
    expected = logits_at(judged.x, fit(judged, design).point).sigmoid()
    assert (expected - judged.right.double().mean(0)).abs().max() < 0.1
    assert (expected.argmax(1) == 0).all()


def test_the_percentiles_are_of_the_surest_clients_probability() -> None:
    fitted = fit(*made(lambda x: torch.stack([x[:, 0].sigmoid(), (-x[:, 0]).sigmoid()], 1)))
    assert len(fitted.confidence) == 101
    assert list(fitted.confidence) == sorted(fitted.confidence)
    assert 0.4 < fitted.confidence[0] < fitted.confidence[100] < 1  # one of the two is right half the time at least


def test_a_client_that_is_always_right_has_finite_odds() -> None:
    fitted = fit(*made(lambda x: torch.tensor([1.0, 0.5]).expand(len(x), 2)))
    assert fitted.point.isfinite().all()
    assert float(fitted.point[0, -1]) > 4


def test_odds_are_the_difference_of_right_and_wrong() -> None:
    point = torch.tensor([[1.0, 2.0], [4.0, 8.0], [0.0, 1.0], [-1.0, 0.0]])
    assert odds_of_right(point).tolist() == [[3.0, 6.0], [-1.0, -1.0]]


def rows() -> Federation:
    g = torch.Generator().manual_seed(0)
    made = {}
    for name, size in (("oslo", 60), ("lima", 40)):
        x = torch.randn(size, 4, generator=g) + (name == "lima")
        made[name] = (x, (x[:, 0] > 0.5).long())
    return Federation.from_arrays(made, test=made)


def test_folds_that_the_heads_left_out_are_added_and_the_others_stay() -> None:
    cohort = LocalCohort(rows(), RouterSettings())
    cohort.measure(RAW, Trunk(None, {}), Holdout(5, 5))
    design = cohort.design(RAW)
    zeros = [torch.zeros(2, 5, dtype=torch.float64)] * 2
    heads = HeldOutHeads(design, zeros, [torch.zeros(4, 5, dtype=torch.float64)] * 2, None, 0.1, 0.1)
    assert all_folds(cohort, heads, Holdout(16, 1), RouterSettings()) is heads
    every = all_folds(cohort, heads, Holdout(5, 5), RouterSettings())
    assert len(every.probes) == len(every.corrections) == 5
    assert every.probes[0] is zeros[0]
    assert all(float(probe.abs().max()) > 0.1 for probe in every.probes[2:])


def test_a_router_has_its_clients_competence_where_heads_are_fitted() -> None:
    fitted = fit_router(None, {}, rows(), RouterSettings(joint=False))
    router = fitted.router
    assert isinstance(fitted.heads, LinearHeads)
    assert router.competence is not None
    assert router.competence.shape == (2, 5)
    assert fitted.chosen["competence"]["judged"] == 100  # every sample has been held out once
    assert fitted.chosen["competence"]["ridge"] in RIDGES
    assert len(router.calibration.confidence["competence"]) == 101
    unjudged = fit_router(None, {}, rows(), RouterSettings(joint=False, competence=False))
    assert unjudged.router.competence is None
    assert "competence" not in unjudged.chosen
    without = fit_router(None, {}, rows(), RouterSettings(heads=False)).router
    assert without.competence is None
    assert set(without.calibration.confidence) == {"density", "posterior"}


def test_many_clients_share_the_ridge_that_suits_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six clients that are right in the same cases: what suits one of them suits all."""
    monkeypatch.setattr(competence, "FINE_ROUNDS", 500)
    monkeypatch.setattr(competence, "PATH_TOLERANCE", 1e-14)
    judged, design = made(lambda x: (2 * x[:, :1]).sigmoid())
    alone = choose_ridge(judged, design)
    monkeypatch.setattr(competence, "MANY", 1)
    together = choose_ridge(replace(judged, right=judged.right.expand(-1, 6)), design)
    assert together.ridge == pytest.approx(alone.ridge / 6)
    assert together.path == alone.path
    assert together.loss == pytest.approx(alone.loss, abs=1e-6)  # the small ridge of the biases is not divided
    for fold, point in zip(together.folds, alone.folds, strict=True):
        odds = odds_of_right(fold)
        assert len(odds) == 6
        torch.testing.assert_close(odds, odds_of_right(point).expand(6, -1), rtol=0, atol=1e-4)


def test_right_answers_take_one_byte_each_until_they_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as samples times clients, in every fold: as numbers they would take eight times the memory."""
    types = []
    solve = competence.solve

    def noted(problem: Problem, samples: list[Sample], *given: Any, **more: Any) -> Fit:
        types.append(samples[0].y.dtype)
        return solve(problem, samples, *given, **more)

    monkeypatch.setattr(competence, "solve", noted)
    judged, design = made(lambda x: torch.stack([x[:, 0].sigmoid(), (-x[:, 0]).sigmoid()], 1))
    fitted = fit(judged, design)
    assert set(types) == {torch.bool}
    as_numbers = fit(replace(judged, right=judged.right.long()), design)
    assert torch.equal(fitted.point, as_numbers.point)
    assert fitted.confidence == as_numbers.confidence


def test_clients_whose_common_fit_would_take_too_much_memory_are_fitted_in_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(competence, "FINE_ROUNDS", 500)
    monkeypatch.setattr(competence, "PATH_TOLERANCE", 1e-14)
    judged, design = made(lambda x: (x @ torch.linspace(-2, 2, 9).view(3, 3).double()).sigmoid())
    whole, grouped = (choose_ridge(judged, design, part_bytes) for part_bytes in (None, 2 * 8 * POINTS * 2 * 4))
    assert grouped.ridge == whole.ridge
    assert grouped.loss == pytest.approx(whole.loss, abs=1e-7)
    for one, other in zip(grouped.folds, whole.folds, strict=True):
        torch.testing.assert_close(odds_of_right(one), odds_of_right(other), rtol=0, atol=1e-4)


def test_a_competence_that_is_too_large_is_left_out_with_a_line_that_says_so() -> None:
    size = 6 * 100 * 2  # every sample was held out once, and five folds hold what they see
    settings = RouterSettings(joint=False, features="raw", part_bytes=size)
    assert fit_router(None, {}, rows(), settings).router.competence is not None
    fitted = fit_router(None, {}, rows(), replace(settings, part_bytes=size - 1))
    assert fitted.router.competence is None
    assert "competence" not in fitted.chosen
    (line,) = fitted.chosen["left_out"]
    assert line.startswith("competence from the answers of all clients: left out")
