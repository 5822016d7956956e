"""Policy: masks, mixtures, margins, conformal sets, temperature and reliability, in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddrm.evaluation import route
from feddrm.router.answer_calibration import AnswerCalibration
from feddrm.router.policy import (
    FLOAT32,
    RULES,
    TIED,
    Calibration,
    by_rule,
    client_slopes,
    conformal_set,
    conformal_threshold,
    consult,
    leaders,
    log_pooled_density,
    reliability,
    solve_temperature,
    subject_shares,
)
from feddrm.rules import Evidence, Rule
from refusal import refused
from visits import visits_of


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def temperature_of(logits: torch.Tensor, target: torch.Tensor) -> float:
    return solve_temperature(lambda scale: client_slopes(logits, target, scale))


def test_rules_are_those_of_the_evaluation() -> None:
    logits, weights = random(50, 4), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    for rule in RULES:
        assert torch.equal(by_rule(logits, weights.log(), rule).argmax(1), route(logits, weights, rule))
    with refused("unknown rule 'odds'"):
        by_rule(logits, weights.log(), "odds")


def test_consulting_one_is_hard_routing_and_all_is_the_mixture() -> None:
    log_weights, log_classes = random(20, 4).log_softmax(1), random(4, 20, 3, seed=1).log_softmax(-1)
    best = log_weights.argmax(1)
    assert torch.allclose(consult(log_weights, log_classes, 1), log_classes[best, torch.arange(20)])
    mixture = torch.einsum("nm,mnk->nk", log_weights.exp(), log_classes.exp())
    assert torch.allclose(consult(log_weights, log_classes).exp(), mixture)
    assert torch.allclose(consult(log_weights, log_classes, 4), consult(log_weights, log_classes))
    two = consult(log_weights, log_classes, 2)
    assert torch.allclose(two.exp().sum(1), torch.ones(20, dtype=torch.float64))
    with refused("consult 5 of 4"):
        consult(log_weights, log_classes, 5)


def test_leaders_and_ties() -> None:
    weights = torch.tensor([[0.2, 0.3, 0.5], [0.4, 0.4, 0.2], [0.1, torch.nan, 0.9]])
    kept = weights.clone()
    top, best, margin = leaders(weights)
    assert best.tolist() == [2, 0, 1]
    assert torch.allclose(top, torch.tensor([0.5, 0.4, torch.nan]), equal_nan=True)
    assert torch.allclose(margin, torch.tensor([0.2, 0.0, torch.nan]), equal_nan=True, atol=1e-7)
    assert torch.equal(weights.nan_to_num(), kept.nan_to_num())
    assert [column.tolist() for column in leaders(torch.ones(1, 1))] == [[1.0], [0], [1.0]]


def test_leaders_are_the_two_largest_of_many() -> None:
    weights = random(50, 1000).softmax(1).float()
    top, best, margin = leaders(weights)
    two = weights.topk(2, dim=1)
    assert torch.equal(best, two.indices[:, 0])
    assert torch.equal(top, two.values[:, 0])
    assert torch.equal(margin, two.values[:, 0] - two.values[:, 1])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_the_pooled_density_is_the_normaliser_of_the_posterior(rule: str, scale: float) -> None:
    logits, log_prior = scale * random(20, 7), random(7).log_softmax(0)
    scores = Rule.find(rule)().scores(Evidence(logits.clone(), log_prior))
    weights = scores.softmax(1)
    found = log_pooled_density(scores, log_prior, rule, weights, weights.argmax(1))
    torch.testing.assert_close(found, logits.logsumexp(1, keepdim=True), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("miss", [0.05, 0.1, 0.3])
def test_conformal_sets_hold_the_true_client_as_often_as_promised(miss: float) -> None:
    """Simulation, with a router that is badly overconfident: the promise does not need a good model."""
    g = torch.Generator().manual_seed(7)
    hits, trials, n = 0.0, 400, 79
    for _ in range(trials):
        logits = 2 * torch.randn(n + 40, 5, generator=g, dtype=torch.float64)
        origin = torch.multinomial((0.5 * logits).softmax(1), 1, generator=g)[:, 0]
        log_weights = logits.log_softmax(1)
        own = log_weights.gather(1, origin[:, None])[:n, 0]
        threshold = conformal_threshold(own, torch.ones(n), miss)
        inside = conformal_set(log_weights[n:], threshold)
        hits += float(inside.gather(1, origin[n:, None]).double().mean())
    # Exactly 1 - floor(80 miss) / 80 on average; three standard errors of the simulation.
    promised = 1 - int(80 * miss) / 80
    assert promised >= 1 - miss
    assert abs(hits / trials - promised) < 0.01


def test_the_least_weight_of_a_set_is_the_measured_one_or_says_which_there_are() -> None:
    calibration = Calibration(conformal={"density_0.1": 0.25, "density_0.2": 0.5, "posterior_0.1": 0.75})
    for rule, miss, weight in (("density", 0.1, 0.25), ("density", 0.2, 0.5), ("posterior", 0.1, 0.75)):
        margin = TIED * (1 - weight) + FLOAT32  # samples tied with it reach it, too
        assert calibration.least_weight(rule, miss) == pytest.approx(weight * (1 - margin), rel=1e-12)
    with refused("miss=0.3", "for rule 'density'", "choose 0.1, 0.2"):
        calibration.least_weight("density", 0.3)
    with refused("for rule 'posterior'", "fit it again"):
        Calibration().least_weight("posterior", 0.1)
    with refused("for rule 'competence'", "such sets are of origin, give rule density or posterior"):
        calibration.least_weight("competence", 0.1)


def test_too_few_samples_admit_every_client() -> None:
    assert conformal_threshold(random(5).sigmoid().log(), torch.ones(5), 0.01) == 0.0


@given(st.integers(1, 120), st.floats(0.001, 0.999))
def test_of_subjects_with_one_sample_each_a_threshold_is_an_order_statistic(samples: int, miss: float) -> None:
    own, subject = random(samples).sigmoid(), torch.randperm(samples, generator=torch.Generator().manual_seed(1))
    rank = math.floor((samples + 1) * miss)
    expected = float(own.log().exp().sort().values[rank - 1]) if rank else 0.0
    assert conformal_threshold(own.log(), subject_shares(subject), miss) == expected


WEIGHTS, WHOSE = torch.tensor([0.1, 0.9, 0.4, 0.8, 0.6, 0.7]).double(), torch.tensor([5, 5, 5, 5, 2, 8])


@pytest.mark.parametrize(("miss", "least"), [(0.2, None), (0.3, 0), (0.4, 4), (0.6, 4), (0.65, 5), (0.9, 3), (0.95, 1)])
def test_samples_of_one_subject_count_as_one_in_a_threshold(miss: float, least: int | None) -> None:
    """Of three patients one has four visits, a quarter each. A threshold needs more than 4 x miss - 1 below."""
    expected = 0.0 if least is None else float(WEIGHTS[least])
    assert conformal_threshold(WEIGHTS.log(), subject_shares(WHOSE), miss) == pytest.approx(expected, rel=1e-12)
    p_values = AnswerCalibration.of_scores(1.0, WEIGHTS, WHOSE).p_values(WEIGHTS)
    assert float(WEIGHTS[p_values > miss].min()) >= expected, "label sets count the same"
    assert least is None or p_values[least] > miss


@pytest.mark.parametrize("miss", [0.05, 0.1, 0.2, 0.5])
def test_repeated_samples_of_a_subject_change_no_threshold(miss: float) -> None:
    own = random(39).sigmoid().log()  # (39 + 1) x miss is a whole number: a rounding error would change the rank
    often = torch.randint(1, 8, (39,), generator=torch.Generator().manual_seed(0))
    rows = torch.arange(39).repeat_interleave(often)
    once = conformal_threshold(own, torch.ones(39), miss)
    assert conformal_threshold(own[rows], subject_shares(rows), miss) == once


def test_sets_of_clients_miss_new_subjects_as_rarely_as_promised() -> None:
    """39 patients with 1, 10 or 30 visits each, which resemble each other. Counted one by one, sets miss more."""
    subjects, missed = 39, {True: 0.0, False: 0.0}
    for seed in range(600):
        whose, weights = visits_of(subjects + 1, seed)
        own, known = weights.log(), whose < subjects
        for by_subject in missed:
            shares = subject_shares(whose[known]) if by_subject else torch.ones(int(known.sum()))
            threshold = conformal_threshold(own[known], shares, 0.1)
            missed[by_subject] += float((~conformal_set(own[~known, None], threshold)).double().mean()) / 600
    assert missed[True] == pytest.approx(0.1, abs=0.025)
    assert missed[False] > 0.14


@pytest.mark.parametrize("true", [0.5, 1.0, 3.0])
def test_temperature_undoes_overconfidence(true: float) -> None:
    logits = 2 * random(20000, 4)
    target = torch.multinomial(logits.softmax(1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    assert temperature_of(logits * true, target) == pytest.approx(true, rel=0.05)


def test_the_calibration_error_in_closed_form() -> None:
    log_weights = torch.tensor([[0.8, 0.2]] * 10).log()
    target = torch.tensor([0] * 8 + [1] * 2)
    assert reliability(log_weights, target).error == pytest.approx(0, abs=1e-6)
    assert reliability(log_weights, torch.ones(10, dtype=torch.int64)).error == pytest.approx(0.8, abs=1e-6)
    curve = reliability(log_weights, target)
    assert int(curve.count.sum()) == 10
    assert len(curve.as_dict()["edges"]) == 16


@pytest.mark.parametrize("count", [1, 40, 3000])
@pytest.mark.parametrize("gap", [3.0, 60.0])
def test_the_temperature_is_bounded_if_every_sample_is_right(count: int, gap: float) -> None:
    """Two clients, a gap of g everywhere, nothing wrong: one more sample from either makes T = g / log(2 n + 1).

    At a gap of 60 the curvature rounds to zero where Newton's method starts.
    """
    logits = torch.tensor([[gap, 0.0]], dtype=torch.float64).repeat(count, 1)
    temperature = temperature_of(logits, torch.zeros(count, dtype=torch.int64))
    assert temperature == pytest.approx(gap / math.log(2 * count + 1), rel=1e-9)


@pytest.mark.parametrize("gap", [30.0, 90.0])
def test_the_temperature_finds_its_way_from_logits_that_are_far_too_sure(gap: float) -> None:
    logits = torch.tensor([[gap, 0.0]], dtype=torch.float64).repeat(30, 1)
    target = torch.zeros(30, dtype=torch.int64)
    target[0] = 1
    temperature = temperature_of(logits, target)
    wrong = 1.5 / 31  # one of 30, and half of the sample that is added
    assert temperature == pytest.approx(gap / math.log((1 - wrong) / wrong), rel=1e-9)


def test_a_temperature_has_bounds() -> None:
    target = torch.tensor([0, 1])
    assert temperature_of(torch.tensor([[0.0, 1e5]] * 2, dtype=torch.float64), target) == 100.0
    assert temperature_of(torch.tensor([[1e-5, 0.0], [0.0, 1e-5]], dtype=torch.float64), target) == 0.01
