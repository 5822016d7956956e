"""Why a client was chosen: terms that add up to what was decided, over whom, in numbers and in words."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddrm.data import Federation
from feddrm.data.query_views import QueryViews
from feddrm.router import Calibration, Recipe, Router, RouterSettings, fit_router, join_client, leave
from feddrm.router.artifact import load_router, save_router
from feddrm.router.decisions.decision import DOWN, UNLIKE, Decision
from feddrm.router.decisions.explanation import Explanation
from feddrm.router.solver.problem import Scaler
from feddrm.tables.column_kinds import CategoryColumn, NumberColumn
from feddrm.tables.table_schema import TableSchema
from refusal import refused
from router.conftest import make_router

RECIPES = (
    "raw", "multiscale", "colour", "embedding", "hidden", "client",
    "raw+multiscale+colour", "colour+client+hidden+embedding",
)  # fmt: skip
SCHEMA = TableSchema(
    (
        NumberColumn("age", centre=50, scale=10),
        CategoryColumn("cp", categories={"1": "typical", "2": "atypical", "3": "none"}, missing=True),
        NumberColumn("dose", missing=True),
    )
)
#            age cp_1 cp_2 cp_3 dose cp_missing dose_missing
WEIGHTS = [[0.5, 0.1, 0.2, 0.3, 1.0, 0.4, -2.0], [0.0] * 7, [-0.5, 0, 0, 0, 0, 0, 0]]


def in_double(router: Router) -> Router:
    """The same router, which decides in float64."""
    return dataclasses.replace(
        router,
        scaler=Scaler(router.scaler.mean.double(), router.scaler.scale.double()),
        weight=router.weight.double(),
        bias=router.bias.double(),
        log_prior=router.log_prior.double(),
    )


def decided(decision: Decision, explained: Explanation, log_prior: torch.Tensor) -> torch.Tensor:
    """The difference of the log-odds of the explained pair of clients, from the decision."""
    scores = decision.log_density + (log_prior if decision.rule == "posterior" else 0)
    mine, other = (scores.gather(1, clients[:, None])[:, 0] for clients in (explained.client, explained.over))
    return mine - other


@pytest.fixture
def tables() -> Router:
    """A router of raw columns with the weights above; Oslo has half of the samples."""
    width = len(SCHEMA.encoded)
    prior = torch.tensor([0.5, 0.3, 0.2]).log()
    scaler = Scaler(torch.zeros(width), torch.ones(width))
    return Router(
        ("oslo", "lima", "pune"), Recipe.parse("raw"), scaler, torch.tensor(WEIGHTS), prior + torch.tensor([0.1, 0, 0]),
        prior, shape=(width,), columns=SCHEMA.encoded, schema=SCHEMA,
    )  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_terms_of_every_recipe_add_up_to_what_was_decided(recipe: str, images: torch.Tensor) -> None:
    exact = in_double(make_router(4, recipe))
    for router, error in ((exact, 1e-12), (make_router(4, recipe), 1e-6)):
        features = router.features(images)
        for rule in ("density", "posterior"):
            decision = router.route_features(features, rule=rule)
            for over in (None, *router.names):
                explained = router.explain_decision(decision, over=over)
                size = explained.terms.abs().sum(1) + 10  # what is added up, and so its rounding
                off = (explained.log_odds - decided(decision, explained, router.log_prior)).abs() / size
                assert off.max() < error
                assert explained.terms.shape == (20, len(router.term_names.names))
                assert bool((explained.client != explained.over).all())


@given(
    st.floats(0.05, 20),
    st.sampled_from(["density", "posterior"]),
    st.sets(st.sampled_from(["oslo", "lima", "kyoto", "quito"]), min_size=1),
    st.integers(0, 2**31),
)
def test_they_add_up_at_every_temperature_whoever_is_away(
    temperature: float, rule: str, available: set[str], seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    router = in_double(make_router(4, "raw", calibration=Calibration(temperature)))
    features = torch.randn(5, 64, generator=g, dtype=torch.float64)
    decision = router.route_features(features, rule=rule, available=sorted(available))
    explained = router.explain_decision(decision)
    torch.testing.assert_close(
        explained.log_odds, decided(decision, explained, router.log_prior), rtol=1e-11, atol=1e-11
    )
    there = torch.tensor([name in available for name in router.names])
    assert bool(there[explained.client].all())
    if len(available) > 1:
        assert bool(there[explained.over].all())
        assert bool((explained.log_odds >= 0).all())


def test_a_term_is_what_is_lost_where_its_features_are_average(images: torch.Tensor) -> None:
    router = in_double(make_router(3, "raw+multiscale+colour"))
    features = router.features(images).double()
    decision = router.route_features(features, rule="posterior")
    explained = router.explain_decision(decision)
    whole = decided(decision, explained, router.log_prior)
    for number in range(len(explained.names)):
        without = torch.where(router.term_names.places == number, router.scaler.mean, features)
        left = decided(router.route_features(without, rule="posterior"), explained, router.log_prior)
        torch.testing.assert_close(explained.terms[:, number], whole - left, rtol=0, atol=1e-10)
    average = router.route_features(router.scaler.mean[None])
    alone = router.explain_decision(average)
    assert not alone.terms.any()
    torch.testing.assert_close(alone.baseline, decided(average, alone, router.log_prior))
    assert not alone.sizes.any(), "rule density does not count the sizes of the clients"
    ratio = router.log_prior[explained.client] - router.log_prior[explained.over]
    torch.testing.assert_close(explained.sizes, ratio)


def test_the_columns_of_a_table_by_hand(tables: Router) -> None:
    rows = SCHEMA.encode_named([{"age": 80, "cp": "2", "dose": None}, {"age": 30, "cp": None, "dose": 2.5}])
    explained = tables.explain(rows, over="lima", rule="posterior")
    assert explained.names == ("age", "cp", "dose")
    assert explained.values == [[80, 30], ["atypical", None], [None, 2.5]]
    torch.testing.assert_close(explained.terms[1], torch.tensor([-1.0, 0.4, 2.5], dtype=torch.float64))
    first = tables.explain(rows[:1])
    assert (first.client.tolist(), first.over.tolist()) == ([1], [0]), "log-odds: oslo -0.2, lima 0, pune -1.5"
    torch.testing.assert_close(first.terms[0], -torch.tensor([1.5, 0.2, -2.0], dtype=torch.float64))
    assert [round(number, 6) for number in (*first.baseline.tolist(), *first.sizes.tolist())] == [-0.1, 0.0]
    posterior = tables.explain(rows[1:], rule="posterior")
    torch.testing.assert_close(posterior.sizes, torch.tensor([5 / 2], dtype=torch.float64).log())


def test_plain_values_and_sentences(tables: Router) -> None:
    rows = SCHEMA.encode_named([{"age": 80, "cp": "2", "dose": None}, {"age": 30, "cp": None, "dose": 2.5}])
    explained = tables.explain(rows, rule="posterior")
    assert explained.sentences() == [
        "oslo over lima +0.31: dose missing -2.00, age 80 +1.50, cp atypical +0.20, baseline +0.10, sizes +0.51",
        "oslo over pune +1.92: dose 2.5 +2.50, age 30 -2.00, cp missing +0.40, baseline +0.10, sizes +0.92",
    ]
    (entry,) = explained[:1].as_dicts(2)
    assert entry is not None
    assert [(term["name"], term["value"], round(term["log_odds"], 6)) for term in entry["terms"]] == [
        ("dose", None, -2.0), ("age", 80, 1.5)
    ]  # fmt: skip
    assert round(entry["rest"], 6) == 0.2
    parts = sum(term["log_odds"] for term in entry["terms"]) + entry["rest"] + entry["baseline"] + entry["sizes"]
    assert abs(parts - entry["log_odds"]) < 1e-12
    assert (entry["client"], entry["over"], entry["unlike"]) == ("oslo", "lima", [])
    without_values = tables.explain_decision(tables.route(rows))
    assert without_values.sentences()[0].startswith("lima over oslo +0.20: dose +2.00, age -1.50")


def test_slices_are_explanations_of_some_samples(router: Router, images: torch.Tensor) -> None:
    whole = router.explain(images)
    assert len(whole[3:5]) == 2
    assert whole[3:5].as_dicts() == whole.as_dicts()[3:5]
    assert repr(whole) == f"Explanation(20 samples, {len(whole.names)} terms)"


def test_the_other_client_is_the_runner_up_or_the_one_that_is_named(router: Router, images: torch.Tensor) -> None:
    decision = router.route(images, rule="posterior")
    ranked = decision.probabilities.argsort(1, descending=True)
    assert torch.equal(router.explain(images, rule="posterior").over, ranked[:, 1])
    named = router.explain(images, over="lima", rule="posterior")
    assert torch.equal(named.over, torch.where(ranked[:, 0] == 1, ranked[:, 1], 1))
    # Of clients that are away nobody could be chosen. If there is no other, the likeliest of them is compared.
    two = router.explain(images, available=["oslo", "kyoto"])
    assert set(zip(two.client.tolist(), two.over.tolist(), strict=True)) <= {(0, 2), (2, 0)}
    one = router.route(images, available=["oslo"])
    likeliest = 1 + one.probabilities[:, 1:].argmax(1)
    assert torch.equal(router.explain_decision(one).over, likeliest)
    with refused("unknown client 'osl'", "did you mean 'oslo'"):
        router.explain(images, over="osl")
    with refused("over=3"):
        router.explain(images, over=3)  # type: ignore[arg-type]


def test_competence_is_refused(router: Router, images: torch.Tensor) -> None:
    with refused("rule 'competence'", "no sum of terms", "choose rule density or posterior"):
        router.explain(images, rule="competence")


def test_without_a_client_there_are_no_terms(router: Router, images: torch.Tensor) -> None:
    features = router.features(images)
    features[3, 0] = torch.nan
    explained = router.explain_decision(router.route_features(features))
    assert [i for i, entry in enumerate(explained.as_dicts()) if entry is None] == [3]
    assert [i for i, text in enumerate(explained.sentences()) if not text] == [3]
    assert bool(explained.log_odds.isnan()[3])
    assert explained.over.tolist()[3] == -1
    assert int(explained.log_odds.isnan().sum()) == 1
    nobody = router.route_features(features, available=[])
    assert DOWN in nobody.reason
    assert router.explain_decision(nobody).sentences() == [""] * 20


def test_shares_of_the_strangeness_name_what_is_unlike(tables: Router) -> None:
    strict = dataclasses.replace(tables, calibration=Calibration(unlike_above=2.0))
    rows = SCHEMA.encode_named([{"age": 90, "cp": "1", "dose": 1}, {"age": 50, "cp": "2", "dose": 0}])
    decision = strict.route(rows)
    assert decision.reason == (UNLIKE, "")
    explained = strict.explain(rows)
    # (90 - 50) / 10 = 4: squares 16, 1 and 1, as the deviations are one.
    torch.testing.assert_close(explained.unlike[0], torch.tensor([16, 1, 1], dtype=torch.float64) / 18)
    assert not explained.unlike[1].any()
    assert explained.sentences()[0] == "unlike the training data: age 90 (89%), cp typical (6%), dose 1 (6%)"
    first, second = explained.as_dicts(1)
    assert first is not None
    assert second is not None
    assert [(term["name"], round(term["share"], 4)) for term in first["unlike"]] == [("age", 0.8889)]
    assert second["unlike"] == []
    scaled = dataclasses.replace(strict, scaler=Scaler(strict.scaler.mean, 2 * strict.scaler.scale))
    strange = dataclasses.replace(scaled, calibration=Calibration(unlike_above=0.01)).explain(rows)
    torch.testing.assert_close(strange.unlike.sum(1), torch.ones(2, dtype=torch.float64))


def test_terms_are_those_of_the_clients_that_remain(images: torch.Tensor) -> None:
    router = make_router(4)
    without = leave(router, "lima")
    features = router.features(images)
    pair = torch.tensor([0, 3])
    for rule in ("density", "posterior"):
        before = router.explain_decision(router.route_features(features, rule=rule, available=["oslo", "quito"]))
        after = without.explain_decision(without.route_features(features, rule=rule, available=["oslo", "quito"]))
        assert bool((torch.isin(before.client, pair)).all())
        assert torch.equal(before.terms, after.terms)
        torch.testing.assert_close(before.log_odds, after.log_odds, rtol=0, atol=1e-6)


def test_a_router_that_a_client_has_joined_is_explained(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(2)
    rows = {
        name: (torch.randn(60, 6, generator=g) + i * torch.eye(6)[i], torch.arange(60) % 2)
        for i, name in enumerate(("oslo", "lima", "kyoto"))
    }
    settings = RouterSettings(features="raw", heads=False, rounds=50)
    columns = tuple("abcdef")
    two, three = (
        dataclasses.replace(Federation.from_arrays({name: rows[name] for name in names}, seed=1), columns=columns)
        for names in (("oslo", "lima"), ("oslo", "lima", "kyoto"))
    )
    before = fit_router(None, {}, two, settings)
    joined = join_client(before.router, three, before.chosen["router"]["ridge"], settings)
    x = torch.cat([client.test.x for client in three.clients])
    decision, explained = joined.route(x), joined.explain(x)
    assert explained.names == columns
    assert 2 in explained.client
    torch.testing.assert_close(
        explained.log_odds, decided(decision, explained, joined.log_prior).double(), rtol=1e-5, atol=1e-5
    )
    save_router(tmp_path, joined, notes={"columns": list(columns)})
    assert load_router(tmp_path).explain(x).as_dicts() == explained.as_dicts()


def test_views_and_raw_pixels(images: torch.Tensor) -> None:
    router = make_router(3, "multiscale+colour", query_views=QueryViews(crops=True, mirrors=True))
    by_pixels, by_inputs = router.explain(images), router.explain(images.float() / 255 * 2 - 1)
    torch.testing.assert_close(by_pixels.terms, by_inputs.terms, rtol=0, atol=1e-5)
    averaged, decision = router.explain(images, views=3), router.route(images, views=3)
    torch.testing.assert_close(
        averaged.log_odds, decided(decision, averaged, router.log_prior).double(), rtol=1e-5, atol=1e-5
    )
    assert not torch.allclose(averaged.terms, by_pixels.terms, atol=1e-3)
