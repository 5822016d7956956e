from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from feddrm.errors import FeddrmError
from feddrm.router import Router, load_router
from feddrm.router.artifact import artifact_version
from feddrm.router.decisions.decision import AWAY, UNLIKE
from feddrm.rules import RULES
from feddrm.serve.loaded_router import Decisions, LoadedRouter, RouterQuery, decide
from feddrm.serve.settings import GatewaySettings
from feddrm.serve.telemetry.metrics import Metrics
from photographs import allow_views
from refusal import refused

ALL = (True, True, True)


@pytest.fixture(scope="module")
def router(run: Path) -> Router:
    return load_router(run / "router")


def test_queries_of_one_batch_get_the_decisions_they_would_get_alone(router: Router, images: torch.Tensor) -> None:
    features = router.features(images).numpy()
    queries = [
        RouterQuery("inputs", images[:2].numpy(), "density", 1.0, ALL, 0.5),
        RouterQuery("features", features[2:5], "posterior", 0.5, ALL, 0.5),
        RouterQuery("inputs", images[5:6].numpy(), "density", 1.0, ALL, 0.5),
        RouterQuery("inputs", images[6:8].numpy(), "density", 1.0, (True, False, True), 0.5),
        RouterQuery("inputs", images[6:8].numpy(), "density", 1.0, (True, False, True), 1.0),
        RouterQuery("inputs", images[:8].numpy(), "competence", 0.5, ALL, 0.5),
    ]
    for query, decisions in zip(queries, decide(router, queries), strict=True):
        mask = None if all(query.available) else torch.tensor(query.available)
        x = torch.from_numpy(query.x)
        expected = (router.route_features if query.kind == "features" else router.route)(
            x, rule=query.rule, coverage=query.coverage, available=mask, max_away=query.max_away
        )
        assert decisions.client.tolist() == expected.client.tolist()
        assert decisions.abstain.tolist() == expected.abstain.tolist()
        assert list(decisions.reason) == list(expected.reason)
        np.testing.assert_allclose(decisions.probabilities, expected.probabilities, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(decisions.log_density_ratio, expected.log_density_ratio, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(decisions.margin, expected.margin, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(decisions.client_probability, expected.client_probability, rtol=1e-4, atol=1e-6)
        assert (decisions.right_probability is None) == (query.rule != "competence")
        if decisions.right_probability is not None:
            np.testing.assert_allclose(decisions.right_probability, expected.right_probability, rtol=1e-4, atol=1e-6)


def test_explanations_are_for_the_queries_that_ask(router: Router, images: torch.Tensor) -> None:
    def ask(kind: str, x: NDArray[np.float32], rule: str, why: str | None) -> RouterQuery:
        return RouterQuery(kind, x, rule, 1.0, ALL, 0.5, why)

    features = router.features(images).numpy()
    queries = [
        ask("inputs", images[:3].numpy(), "density", ""),
        ask("inputs", images[:3].numpy(), "density", None),
        ask("features", features[2:6], "posterior", ""),
        ask("inputs", images[3:8].numpy(), "density", ""),
        ask("inputs", images[:8].numpy(), "density", router.names[2]),
    ]
    first, plain, by_features, second, named = decide(router, queries)
    assert plain.explanation is None
    whole = router.explain(images[:8]).as_dicts()
    for found, expected in (
        (first, whole[:3]),
        (second, whole[3:]),
        (by_features, router.explain(images[2:6], rule="posterior").as_dicts()),
        (named, router.explain(images[:8], over=router.names[2]).as_dicts()),
    ):
        assert found.explanation is not None
        for own, other in zip(found.explanation.as_dicts(), expected, strict=True):
            assert own is not None
            assert other is not None
            assert (own["client"], own["over"]) == (other["client"], other["over"])
            assert own["log_odds"] == pytest.approx(other["log_odds"], abs=1e-4)
    with refused("rule 'competence'", "choose rule density or posterior"):
        decide(router, [ask("inputs", images[:3].numpy(), "competence", "")])


def test_costs_are_weighed_by_competence_alone(router: Router, images: torch.Tensor) -> None:
    costs = {router.names[0]: 1.0}
    queries = [RouterQuery("inputs", images.numpy(), rule, 1.0, ALL, 0.5) for rule in ("density", "competence")]
    by_origin, by_competence = decide(router, queries, costs=costs)
    assert np.array_equal(by_origin.client, decide(router, queries)[0].client)
    assert 0 not in by_competence.client
    expected = router.route(images, rule="competence", costs=costs)
    assert by_competence.client.tolist() == expected.client.tolist()


def made_up_decisions() -> Decisions:
    return Decisions(
        client=np.array([2, 1]),
        probabilities=np.array([[0.2, 0.0, 0.8, 0.0], [0.0, 1.0, 0.0, 0.0]]),
        log_density=np.array([[1.0, -9.0, 2.0, -3.0], [5.0, 1.0, 5.0, 6.0]]),
        log_pooled_density=np.array([[0.5], [2.0]]),
        margin=np.zeros(2),
        abstain=np.zeros(2, bool),
        client_probability=np.array([0.8, 1.0]),
        reason=("", UNLIKE),
    )


def test_clients_are_ranked_by_probability_and_then_by_density_ratio() -> None:
    decisions = made_up_decisions()
    assert decisions.rankings == [[2, 0, 3, 1], [1, 3, 0, 2]]
    assert decisions[1:2].rankings == [[1, 3, 0, 2]]
    assert decisions.log_density_ratio.tolist() == [[0.5, -9.5, 1.5, -3.5], [3.0, -1.0, 3.0, 4.0]]
    assert decisions[1:].log_density_ratio_of(np.array([[3, 1]])).tolist() == [[4.0, -1.0]]


@pytest.mark.parametrize("decimals", [6, 1, 0], ids=["no ties", "some ties", "many ties"])
def test_the_best_clients_are_the_first_of_the_whole_ranking(decimals: int) -> None:
    rng = np.random.default_rng(0)
    probabilities, ratios = rng.random((20, 40)).round(decimals), rng.normal(size=(20, 40)).round(decimals)
    decisions = Decisions(*[np.zeros(20)], probabilities, ratios, *[np.zeros(20)] * 4, reason=("",) * 20)
    assert decisions.rankings == np.lexsort((-ratios, -probabilities)).tolist()
    for number in (1, 7, 39, 40):
        assert decisions.best(number).tolist() == [ranking[:number] for ranking in decisions.rankings]
    among = {3: "", 8: "", 30: ""}
    for number in (2, 3, 10):
        expected = [[client for client in ranking if client in among][:number] for ranking in decisions.rankings]
        assert decisions.best(number, among).tolist() == expected


def test_an_answer_has_all_of_a_few_clients_and_the_best_of_many() -> None:
    few, many = (
        Decisions(np.zeros(1), np.zeros((1, clients)), np.zeros((1, clients)), *[np.zeros(1)] * 4, reason=("",))
        for clients in (30, 31)
    )
    assert [few.shown(top) for top in (None, 4, 100)] == [30, 4, 30]
    assert [many.shown(top) for top in (None, 4, 100)] == [10, 4, 31]
    many.away = dict.fromkeys(range(31), "unhealthy")
    many.probabilities[0] = np.arange(31)
    assert many.passed_over == [list(range(30, 20, -1))]


def test_clients_are_passed_over_if_they_are_away_and_likelier() -> None:
    decisions = made_up_decisions()
    assert decisions.passed_over == [[], []]
    stand_in = replace(decisions, client=np.array([0, 1]), client_probability=np.array([0.2, 1.0]))
    stand_in.away = {2: "unhealthy", 3: "unhealthy"}
    assert stand_in.passed_over == [[2], []]
    nobody = replace(decisions, client=np.array([-1, -1]), client_probability=np.zeros(2))
    nobody.away = dict.fromkeys(range(4), "unhealthy")
    assert nobody.passed_over == [[2, 0], [1]]


def test_decisions_can_abstain_afterwards_and_keep_an_earlier_reason() -> None:
    decisions = made_up_decisions()
    after = decisions.without_answer([0, 1], AWAY)
    assert list(after.reason) == [AWAY, UNLIKE]
    assert after.abstain.tolist() == [True, True]
    assert list(decisions.reason) == ["", UNLIKE]


def test_numbers_that_overflow_are_an_error(router: Router) -> None:
    with refused("too large", "scale"):
        decide(router, [RouterQuery("features", np.full((1, 16), 3e38, np.float32), "density", 1.0, ALL, 0.5)])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("scale", np.logspace(0, 38, 39))
def test_every_decision_has_finite_ratios_or_is_refused(router: Router, rule: str, scale: float) -> None:
    x = np.random.default_rng(int(np.log10(scale))).normal(size=(64, 16)) * scale
    query = RouterQuery("features", x.astype(np.float32), rule, 1.0, ALL, 0.5)
    try:
        decisions = decide(router, [query])[0]
    except FeddrmError:
        assert scale > 1e15
        return
    assert np.isfinite(decisions.log_density_ratio).all()
    assert np.isfinite(decisions.client_probability).all()


def test_an_artifact_is_tried_when_it_is_loaded(run: Path, tmp_path: Path) -> None:
    loaded = LoadedRouter.load(run / "router", GatewaySettings(), Metrics())
    assert (loaded.version, loaded.classes) == (artifact_version(run / "router"), 10)
    assert (loaded.spec.shape, loaded.spec.features) == ((1, 8, 8), 16)
    with refused("unknown client 'rio'"):
        LoadedRouter.load(run / "router", GatewaySettings(costs={"rio": 0.1}), Metrics())
    with refused("unknown rule 'x'"):
        LoadedRouter.load(run / "router", GatewaySettings(rule="x"), Metrics())
    with refused("holds no router", "fit-router"):
        LoadedRouter.load(tmp_path, GatewaySettings(), Metrics())


def test_views_are_averaged_for_samples_alone(run: Path, images: torch.Tensor, tmp_path: Path) -> None:
    router = load_router(allow_views(run, tmp_path / "run") / "router")
    features = router.features(images[:3], views=4).numpy()
    queries = [
        RouterQuery("inputs", images[:3].numpy(), "density", 1.0, ALL, 0.5),
        RouterQuery("features", features, "density", 1.0, ALL, 0.5),
    ]
    samples, given = decide(router, queries, views=4)
    np.testing.assert_allclose(samples.probabilities, given.probabilities, rtol=1e-4, atol=1e-6)
    (alone,) = decide(router, queries[:1])
    assert not np.allclose(alone.probabilities, samples.probabilities)


def test_a_gateway_with_views_that_the_data_do_not_allow_does_not_start(run: Path) -> None:
    with refused("views=4: these data allow no crops"):
        LoadedRouter.load(run / "router", GatewaySettings(views=4), Metrics())
