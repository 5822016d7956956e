"""The evaluation of a router without heads: accuracies, coverage and calibration in closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from feddrm.data import QueryViews
from feddrm.evaluation import Predictions, Queries, client_accuracy, confusion, routed_predictions, system_accuracy
from feddrm.router import FittedRouter, Router
from feddrm.router.answer_calibration import HeldOutAnswers
from feddrm.router.evaluate import (
    BYTES,
    COVERAGES,
    _conformal,
    answers_left_out,
    evaluate_routed,
    evaluate_router,
)
from feddrm.router.fit.cohort import Facts
from feddrm.router.label_sets import label_set_figures
from feddrm.router.policy import Calibration, by_rule, consult, reliability
from feddrm.router.settings import RouterSettings
from feddrm.router.solver.client_statistics import BLOCK
from feddrm.rules import RULES
from feddrm.tasks import Classification

FACTS = Facts(("oslo", "lima", "kyoto"), (5, 3, 2), ("a", "b", "c"), (1, 8, 8), ((0.5,), (0.5,)))
CLASSES, WEIGHTS = 3, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


@pytest.fixture
def predictions(images: torch.Tensor) -> Predictions:
    g = torch.Generator().manual_seed(3)
    count = len(images)
    origin = torch.arange(count) % 3
    return Predictions(
        torch.randn(3, count, CLASSES, generator=g), torch.randint(CLASSES, (count,), generator=g), origin
    )


@pytest.fixture
def measured(router: Router, images: torch.Tensor, predictions: Predictions) -> dict[str, Any]:
    fitted = FittedRouter(router, None, {}, {}, FACTS)
    test = Queries(router.inputs(images), predictions.labels, predictions.origin)
    return evaluate_router(fitted, router.net, router.leaves, test, predictions, WEIGHTS)


def test_every_rule_has_its_accuracies(measured, router, images, predictions):
    logits = router.logits(router.features(images)).double()
    for rule in RULES:
        routes = by_rule(logits, WEIGHTS.log(), rule).argmax(1)
        name = f"exact_{rule}"
        right = system_accuracy(routed_predictions(predictions.logits, routes), predictions.labels)
        assert measured["system_accuracy"][name] == right
        assert measured["client_accuracy"][name] == client_accuracy(logits, predictions.origin, WEIGHTS, rule)
        assert measured["confusion"][name] == confusion(routes, predictions.origin, 3).tolist()


def test_label_sets_are_measured_without_the_sample_and_calibrations_are_the_clients(
    measured, router, images, predictions
):
    kept, held_out = HeldOutAnswers.of(predictions.logits.double(), predictions.labels, predictions.origin)
    log_weights = by_rule(router.logits(router.features(images)).double(), router.log_prior, "density")
    expected = label_set_figures(held_out, log_weights, predictions.labels)
    for miss, figures in measured["router"]["label_sets"]["trained"].items():
        assert figures == pytest.approx(expected[miss])
    found = measured["calibrations"]["trained"]
    assert [found[name].temperature for name in router.names] == pytest.approx([own.temperature for own in kept])


def test_features_are_averaged_over_the_views_of_the_test_samples(router, images, predictions):
    views = QueryViews(crops=True, mirrors=True)
    fitted = FittedRouter(replace(router, query_views=views), None, {}, {}, FACTS)
    test = Queries(router.inputs(images), predictions.labels, predictions.origin, views.take(4))
    found = evaluate_router(fitted, router.net, router.leaves, test, predictions, WEIGHTS)
    logits = torch.stack([router.logits(router.features(x)).double() for x in views.take(4)(test.x)]).mean(0)
    expected = reliability(by_rule(logits, router.log_prior, "posterior"), predictions.origin)
    assert found["router"]["ece"] == pytest.approx(expected.error)
    alone = evaluate_router(fitted, router.net, router.leaves, replace(test, views=views), predictions, WEIGHTS)
    assert found["router"]["ece"] != pytest.approx(alone["router"]["ece"])


def test_competence_and_the_rivals_choose_among_the_trained_heads(measured, router, images, predictions):
    features = router.features(images)
    x = router.scaler(features).double()
    answers = predictions.logits.double().softmax(-1)
    routes = {
        "exact_competence": router.right(features).argmax(1),
        "rival_confident": answers.amax(2).argmax(0),
        "rival_entropy": torch.special.entr(answers).sum(2).argmin(0),
        "rival_nearest": torch.cdist(x, router.means.double()).argmin(1),
        "rival_cosine": torch.cosine_similarity(x[:, None], router.means.double()[None], dim=2).argmax(1),
    }
    for name, chosen in routes.items():
        right = system_accuracy(routed_predictions(predictions.logits, chosen), predictions.labels)
        assert measured["system_accuracy"][name] == right, name
    assert all(len(set(chosen.tolist())) > 1 for chosen in routes.values())
    assert measured["router"]["expected_right"] == pytest.approx(float(router.right(features).amax(1).mean()))


def test_rules_whose_evidence_is_missing_are_left_out(router, images, predictions):
    older = FittedRouter(replace(router, competence=None, means=None), None, {}, {}, FACTS)
    test = Queries(router.inputs(images), predictions.labels, predictions.origin)
    measured = evaluate_router(older, router.net, router.leaves, test, predictions, WEIGHTS)
    names = {name for name in measured["system_accuracy"] if name.startswith("rival") or "competence" in name}
    assert names == {"rival_confident", "rival_entropy"}
    assert measured["router"]["expected_right"] is None


def test_mixtures_use_the_posterior_weights(measured, router, images, predictions):
    logits = router.logits(router.features(images)).double()
    weights = by_rule(logits, router.log_prior, "posterior")
    published = predictions.logits.double().log_softmax(-1)
    for name, k in (("consult_2", 2), ("consult_all", None)):
        right = system_accuracy(consult(weights, published, k).argmax(-1), predictions.labels)
        assert measured["system_accuracy"][name] == right


def test_without_heads_there_are_no_figures_of_heads(measured):
    assert measured["refit_oracle_accuracy"] is None
    assert not [
        name for name in measured["system_accuracy"] if name.startswith(("refit", "joint", "stacked", "global"))
    ]
    assert measured["router"]["temperature"] == 1.3


def test_coverage_is_measured_on_the_queries_that_the_option_answers(router, images, predictions):
    """The figures of another ranking, by the clients' labels, promised up to 12 points more than the option gave."""
    tops = router.route(images).probabilities.amax(1).double()
    percentiles = tuple(tops.quantile(torch.linspace(0, 1, 101, dtype=torch.float64)).tolist())
    router = replace(router, calibration=replace(router.calibration, confidence={"density": percentiles}))
    test = Queries(router.inputs(images), predictions.labels, predictions.origin)
    fitted = FittedRouter(router, None, {}, {}, FACTS)
    rows = evaluate_router(fitted, router.net, router.leaves, test, predictions, WEIGHTS)["router"]["coverage"]
    assert [row["coverage"] for row in rows] == list(COVERAGES)
    for row in rows:
        decision = router.route(images, coverage=row["coverage"])
        answered = ~decision.abstain
        right = (routed_predictions(predictions.logits, decision.client) == predictions.labels)[answered]
        assert (row["answered"], row["accuracy"]) == (float(answered.double().mean()), float(right.double().mean()))
    assert rows[0]["answered"] < rows[-1]["answered"]


def test_conformal_sets_are_counted_by_rule_and_miss():
    log_weights = torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log()
    older = Calibration(conformal={"density_0.1": 0.5, "density_0.2": 0.25})
    counted = _conformal(older, "density", log_weights[:, :1], torch.arange(2), log_weights.split(1))
    assert counted == {"density_0.1": {"covered": 0.5, "size": 1.0}, "density_0.2": {"covered": 1.0, "size": 2.0}}


def test_sets_whose_threshold_comes_from_the_same_samples_are_counted_without_them():
    own = torch.tensor([0.9, 0.5, 0.6, 0.7, 0.8], dtype=torch.float64)  # one sample per part
    log_weights = torch.stack([own, 1 - own], dim=1).log()
    calibration = Calibration(conformal={"density_0.2": 0.5}, tested=True)
    counted = _conformal(calibration, "density", log_weights[:, :1], torch.arange(5), [log_weights])
    # Of four others, the lowest is the threshold. Only the lowest sample of all lies below that of its others.
    assert counted["density_0.2"]["covered"] == pytest.approx(0.8)
    # The two lowest are of one subject, so both lie below the threshold of the others.
    calibration, unit = Calibration(conformal={"density_0.25": 0.5}, tested=True), torch.tensor([0, 1, 1, 2, 3])
    counted = _conformal(calibration, "density", log_weights[:, :1], unit, [log_weights])
    assert counted["density_0.25"]["covered"] == pytest.approx(0.6)
    # Three copies of every sample, of its subject, change nothing.
    log_weights = torch.rand(22, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log_softmax(1)
    rows = torch.arange(22).repeat_interleave(3)
    calibration = Calibration(conformal={"density_0.1": 0.5, "density_0.2": 0.5}, tested=True)
    once, often = (
        _conformal(calibration, "density", log_weights[some, :1], some, [log_weights[some]])
        for some in (torch.arange(22), rows)
    )
    assert often == once
    assert 0 < once["density_0.2"]["covered"] < 1


@pytest.mark.parametrize("block", [1, 7, 2**19])
def test_one_answer_per_query_gives_the_same_figures_as_all_answers(
    measured, router, images, predictions, block, monkeypatch
):
    monkeypatch.setitem(BLOCK, "cpu", 3 * block)
    asked = []

    def ask(routes: torch.Tensor) -> torch.Tensor:
        asked.append(routes)
        return predictions.logits[routes, torch.arange(len(routes))]

    test = Queries(router.inputs(images), predictions.labels, predictions.origin)
    fitted = FittedRouter(router, None, {}, {}, FACTS)
    routed = evaluate_routed(fitted, router.net, router.leaves, test, ask, Classification(), WEIGHTS)
    assert any((routes != predictions.origin).any() for routes in asked)
    assert set(routed["system_accuracy"]) == {f"exact_{rule}" for rule in RULES}
    for kind in ("system_accuracy", "client_accuracy", "confusion"):
        assert routed[kind] == {name: measured[kind][name] for name in routed[kind]}
    assert routed["class_confusion"] == measured["class_confusion"]
    for key in ("ece", "ece_density", "temperature"):
        assert routed["router"][key] == pytest.approx(measured["router"][key], rel=1e-6)  # logits are float32
    assert routed["router"]["conformal"] == measured["router"]["conformal"]
    answers, expected = (figures["router"]["answers"]["exact_density"] for figures in (routed, measured))
    assert set(answers) == set(expected)
    for key in set(answers) - {"reliability"}:
        assert answers[key] == pytest.approx(expected[key], rel=1e-9), key
    for name, calibration in routed["calibrations"]["trained"].items():
        assert calibration.temperature == pytest.approx(measured["calibrations"]["trained"][name].temperature, rel=1e-6)


def test_answers_that_take_more_than_the_part_are_left_out():
    test = Queries(torch.zeros(5, 1), torch.zeros(5), torch.zeros(5))
    size = BYTES * 3 * 5 * 3
    assert answers_left_out(FACTS, test, RouterSettings(part_bytes=size)) is None
    assert "left out" in answers_left_out(FACTS, test, RouterSettings(part_bytes=size - 1))
