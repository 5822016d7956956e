"""The router: its arithmetic, its inputs, when it abstains, and what it refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from feddrm.router import Calibration, Recipe, Router
from feddrm.router.decisions.decision import AWAY, BROKEN, DOWN, UNLIKE, UNSURE
from feddrm.router.solver.problem import Scaler
from refusal import refused


def test_probabilities_and_density_ratios_in_closed_form(router: Router, images: torch.Tensor) -> None:
    features = router.features(images)
    decision = router.route(images)
    z = ((features - router.scaler.mean) / router.scaler.scale) @ router.weight.T + router.bias
    z = z / 1.3
    assert torch.allclose(decision.probabilities, (z - router.log_prior).softmax(1), atol=1e-5)
    assert torch.allclose(decision.log_density_ratio, z.log_softmax(1) - router.log_prior, atol=1e-4)
    assert torch.equal(decision.client, decision.probabilities.argmax(1))
    assert torch.allclose(router.route(images, rule="posterior").probabilities, z.softmax(1), atol=1e-5)
    assert len(decision) == 20
    assert not decision.abstain.any()
    assert set(decision.reason) == {""}


def test_raw_images_and_network_inputs_agree(router: Router, images: torch.Tensor) -> None:
    inputs = images.float() / 255 * 2 - 1
    assert torch.allclose(router.route(images).probabilities, router.route(inputs).probabilities, atol=1e-5)
    features = router.features(images)
    assert torch.equal(router.route_features(features).client, router.route(images).client)


def test_density_ratios_average_to_one_under_the_mixture(router: Router, images: torch.Tensor) -> None:
    """sum_i prior_i dP_i / dP = 1 for every sample: that is what a density ratio against the pool means."""
    decision = router.route(images)
    assert torch.allclose((decision.log_density_ratio.exp() * router.log_prior.exp()).sum(1), torch.ones(20), atol=1e-5)


@pytest.fixture
def mixed(router: Router, images: torch.Tensor) -> Router:
    """The same router, moved so that every client has some of the images and the probabilities differ."""
    z = (router.features(images) - router.scaler.mean) / router.scaler.scale @ router.weight.T
    return dataclasses.replace(router, bias=router.log_prior - z.mean(0))


def test_with_max_away_one_nobody_abstains_even_where_the_sum_is_rounded_up() -> None:
    g = torch.Generator().manual_seed(0)
    bias = torch.zeros(40)
    bias[0] = -60.0  # the others hold all the probability
    names, scaler = tuple(map(str, range(40))), Scaler(torch.zeros(5), torch.ones(5))
    router = Router(names, Recipe.parse("raw"), scaler, torch.randn(40, 5, generator=g), bias, torch.zeros(40))
    features = torch.randn(500, 5, generator=g)
    assert (router.route_features(features).probabilities[:, 1:].sum(1) > 1).any()
    assert not router.route_features(features, available=["0"], max_away=1).abstain.any()


def test_away_clients_keep_their_probability_and_the_next_one_is_named(mixed: Router, images: torch.Tensor) -> None:
    everyone = mixed.route(images)
    some = mixed.route(images, available=["oslo", "kyoto"], max_away=1)
    assert torch.equal(some.probabilities, everyone.probabilities)
    assert torch.equal(some.margin, everyone.margin)
    assert some.away.tolist() == [False, True, False]
    assert not everyone.away.any()
    assert torch.equal(some.client, everyone.probabilities[:, [0, 2]].argmax(1) * 2)
    assert torch.equal(some.client_probability, everyone.probabilities[torch.arange(20), some.client])
    assert torch.equal(some.fallback, everyone.client == 1)
    assert 0 < int(some.fallback.sum()) < 20
    assert not everyone.fallback.any()
    nobody = mixed.route(images, available=[])
    assert set(nobody.client.tolist()) == {-1}
    assert set(nobody.reason) == {DOWN}
    assert nobody.abstain.all()
    assert not nobody.client_probability.any()
    assert not nobody.fallback.any()
    assert set(mixed.route(images, available=torch.tensor([False, True, False]), max_away=1).client.tolist()) == {1}
    assert set(mixed.route(images, available=torch.tensor([0, 1, 0]), max_away=1).client.tolist()) == {1}
    assert not mixed.route(images, available=mixed.names, max_away=0.0).abstain.any(), "nobody is away"
    with refused("unknown client 'osl'", "did you mean 'oslo'"):
        mixed.route(images, available=["osl"])
    with refused("availability of 2 clients for a router of 3"):
        mixed.route(images, available=torch.tensor([True, False]))


def test_the_router_abstains_where_away_clients_hold_too_much(mixed: Router, images: torch.Tensor) -> None:
    share = mixed.route(images).probabilities[:, 1]
    available = ["oslo", "kyoto"]
    for decision, allowed in (
        (mixed.route(images, available=available), 0.5),
        (mixed.route(images, available=available, max_away=0.3), 0.3),
    ):
        assert torch.equal(decision.abstain, share > allowed)
        assert decision.reason == tuple(AWAY if p > allowed else "" for p in share.tolist())
        assert 0 < int(decision.abstain.sum()) < 20
    assert not mixed.route(images, available=available, max_away=1).abstain.any()
    # Only one client is left, and it is all but impossible: a fallback that was asked for is still no abstention.
    hopeless = dataclasses.replace(mixed, bias=torch.tensor([-500.0, 500.0, -500.0]))
    assert not hopeless.route(images, available=["oslo"], max_away=1).abstain.any()
    for bad in (-0.1, 1.5, float("nan")):
        with refused("max_away", "from 0 to 1"):
            mixed.route(images, max_away=bad)


def test_the_reasons_to_abstain_have_an_order(router: Router, images: torch.Tensor) -> None:
    """A broken value, nobody there, unlike all data, best client away, unsure."""
    doubtful = dataclasses.replace(router, calibration=Calibration(1.3, {"density": (2.0,) * 101}))
    unlike = dataclasses.replace(doubtful, calibration=dataclasses.replace(doubtful.calibration, unlike_above=0.0))
    features = router.features(images)
    broken = features.clone()
    broken[:, 0] = torch.nan
    options: dict[str, Any] = {"coverage": 0.5, "max_away": 0.0, "available": ["oslo"]}
    assert set(unlike.route_features(broken, **{**options, "available": []}).reason) == {BROKEN}
    assert set(unlike.route_features(features, **{**options, "available": []}).reason) == {DOWN}
    assert set(unlike.route_features(features, **options).reason) == {UNLIKE}
    assert set(doubtful.route_features(features, **options).reason) == {AWAY}
    assert set(doubtful.route_features(features, coverage=0.5).reason) == {UNSURE}


def test_confidence_is_over_all_clients_whoever_is_away(mixed: Router, images: torch.Tensor) -> None:
    """The percentiles were measured with all clients, and who is away says nothing about a sample."""
    everyone = mixed.route(images, coverage=0.5)
    some = mixed.route(images, coverage=0.5, available=["oslo"], max_away=1)
    assert torch.equal(some.abstain, everyone.abstain)
    assert everyone.abstain.any()


def test_unsure_and_unlike_samples_abstain(router: Router, images: torch.Tensor) -> None:
    top = router.route(images).probabilities.amax(1)
    decision = router.route(images, coverage=0.5)
    assert torch.equal(decision.abstain, top < 0.5)  # the percentiles of the fixture are the identity
    assert {r for r, a in zip(decision.reason, decision.abstain.tolist(), strict=True) if a} <= {UNSURE}
    strange = dataclasses.replace(router, calibration=Calibration(unlike_above=0.0)).route(images)
    assert set(strange.reason) == {UNLIKE}
    with refused("coverage=1.5"):
        router.route(images, coverage=1.5)
    with refused("no held-out confidences"):
        router.route(images, coverage=0.5, rule="posterior")


def test_conformal_sets(router: Router, images: torch.Tensor) -> None:
    known = Calibration(temperature=1.3, conformal={"density_0.1": 0.25, "density_0.2": 0.4})
    calibrated = dataclasses.replace(router, calibration=known)
    everyone = calibrated.route(images)
    assert everyone.within is None
    within = calibrated.route(images, miss=0.1).within
    assert within is not None
    assert torch.equal(within, everyone.probabilities >= 0.25)
    assert 0 < int(within.sum()) < within.numel()
    # Leaving a client out admits no other client: the guarantee holds for the weights of all clients.
    without_lima = calibrated.route(images, miss=0.1, available=["oslo", "kyoto"]).within
    assert without_lima is not None
    assert torch.equal(without_lima, within & torch.tensor([True, False, True]))
    with refused("miss=0.15", "choose 0.1, 0.2"):
        calibrated.route(images, miss=0.15)
    with refused("miss=0.1", "'posterior'", "fit it again"):
        calibrated.route(images, miss=0.1, rule="posterior")


def test_arrays_and_lists_are_accepted_as_samples(router: Router, images: torch.Tensor) -> None:
    want = router.route(images).client
    read_only = images.numpy().copy()
    read_only.setflags(write=False)  # as pandas gives them
    for form in (images.numpy(), read_only, images.long(), images.numpy().astype(np.int16), images.tolist()):
        assert torch.equal(router.route(form).client, want)
    floats = images.double() / 255 * 2 - 1
    assert torch.equal(router.route(floats.numpy()).client, want)
    grey = images[:, 0]
    assert torch.equal(router.route(grey).client, want)  # as Federation.from_arrays takes them
    assert torch.equal(router.route(grey[:1]).client, want[:1])
    with refused("one sample", "x[None]"):
        dataclasses.replace(router, shape=(3, 8, 8)).route(torch.zeros(3, 8, 8))
    with refused("samples of shape (8, 1), the router wants (1, 8, 8): bring them to it"):
        router.route(images.transpose(1, 3)[:, 0])
    with refused("pixels from", "0..255"):
        router.route(images.long() * 2)
    swapped = floats.numpy().astype(">f8")  # as FITS files hold them
    assert torch.equal(router.route(swapped).client, want)
    with refused("no array of numbers"):
        router.route(["scan.png"])
    for form in (floats.numpy() + 1j, floats + 1j):
        with refused("complex numbers: give real ones"):
            router.route(form)
    for wrong in ([0], "oslo", 3):
        with refused("available=", "give a Tensor or a list, each item text"):
            router.route(images, available=wrong)
    for option in ("coverage", "max_away", "miss"):
        with refused(f"{option}='x': give a number"):
            router.route(images, **{option: "x"})
    with refused("views='x': give a whole number"):
        router.route(images, views="x")  # type: ignore[arg-type]


def test_a_missing_or_infinite_value_has_its_own_reason(router: Router, images: torch.Tensor) -> None:
    features = router.features(images)
    features[3, 0], features[5, 1] = float("nan"), float("inf")
    decision = router.route_features(features)
    assert [i for i, reason in enumerate(decision.reason) if reason == BROKEN] == [3, 5]
    features[2, 0] = 1e30  # finite, but its square is not
    assert [i for i, reason in enumerate(router.route_features(features).reason) if reason == BROKEN] == [3, 5]
    assert [i for i, client in enumerate(decision.client.tolist()) if client == -1] == [3, 5]
    assert decision.abstain.tolist() == [i in (3, 5) for i in range(20)]


def test_wrong_shapes_and_unknown_rules_are_refused(router: Router) -> None:
    with refused("(3, 8, 8)", "(1, 8, 8)"):
        router.route(torch.zeros(1, 3, 8, 8))
    with refused("5 features", "raw+multiscale+colour"):
        router.route_features(torch.zeros(2, 5))
    with refused("unknown rule 'densty'"):
        router.route_features(torch.zeros(2, router.weight.shape[1]), rule="densty")


def test_competence_asks_the_client_that_is_likeliest_right(router: Router, images: torch.Tensor) -> None:
    assert router.competence is not None
    x = (router.features(images) - router.scaler.mean) / router.scaler.scale
    right = (x @ router.competence[:, :-1].T + router.competence[:, -1]).sigmoid()
    decision = router.route(images, rule="competence")
    assert decision.right is not None
    assert torch.allclose(decision.right, right, atol=1e-5)
    assert torch.equal(decision.client, right.argmax(1))
    assert len(set(decision.client.tolist())) > 1
    assert torch.allclose(decision.right_probability, right.amax(1), atol=1e-5)
    odds = right / (1 - right)
    assert torch.allclose(decision.probabilities, odds / odds.sum(1, keepdim=True), atol=1e-4)
    assert torch.equal(decision.log_density_ratio, router.route(images).log_density_ratio)


def test_costs_move_queries_to_cheaper_clients(router: Router, images: torch.Tensor) -> None:
    free = router.route(images, rule="competence")
    assert free.right is not None
    costs = {"oslo": 0.2, "kyoto": 0.05}
    dear = router.route(images, rule="competence", costs=costs)
    assert torch.equal(dear.client, (free.right - torch.tensor([0.2, 0.0, 0.05])).argmax(1))
    assert int((dear.client == 0).sum()) < int((free.client == 0).sum())
    assert torch.equal(dear.right, free.right), "costs change who is asked, not who is right"
    assert torch.equal(router.route(images, rule="competence", costs={}).client, free.client)
    as_numpy = {name: np.float32(cost) for name, cost in costs.items()}
    assert torch.equal(router.route(images, rule="competence", costs=as_numpy).client, dear.client)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "density", "costs": {"oslo": 0.1}}, "costs with rule 'density': only rule 'competence' weighs costs"),
        ({"rule": "competence", "costs": {"osl": 0.1}}, "unknown client 'osl'; did you mean 'oslo'?"),
        ({"rule": "competence", "costs": {"oslo": -0.1}}, "cost of 'oslo' is -0.1: give a share of the probability"),
        ({"rule": "competence", "costs": {"oslo": float("nan")}}, "cost of 'oslo' is nan"),
        ({"rule": "competence", "costs": {"oslo": "dear"}}, "cost of 'oslo' is dear"),
        ({"rule": "competence", "costs": [0.1]}, "costs=[0.1]: give a dict"),
        ({"rule": "competence", "miss": 0.1}, "such sets are of origin, give rule density or posterior"),
        ({"rule": "competence", "coverage": 0.5}, "no held-out confidences for rule 'competence': fit it again"),
        ({"rule": "confident"}, "(known: density, posterior, competence)"),
    ],
)
def test_competence_refuses(router: Router, images: torch.Tensor, options: dict[str, Any], message: str) -> None:
    with refused(message):
        router.route(images, **options)


def test_a_router_without_competence_says_so_in_one_line(router: Router, images: torch.Tensor) -> None:
    older = dataclasses.replace(router, competence=None, means=None)
    assert older.route(images).right is None
    with refused("this router knows no client's competence: fit it again, with heads and in one process"):
        older.route(images, rule="competence")
    with refused("the rules of origin do not say who is right: route by rule 'competence'"):
        _ = older.route(images).right_probability


def test_coverage_abstains_where_nobody_is_likely_to_be_right(router: Router, images: torch.Tensor) -> None:
    surest = router.route(images, rule="competence").right_probability
    percentiles = torch.quantile(surest, torch.linspace(0, 1, 101))
    confidence = {"competence": tuple(percentiles.tolist())}
    calibrated = dataclasses.replace(router, calibration=Calibration(1.3, confidence))
    decision = calibrated.route(images, rule="competence", coverage=0.75)
    assert torch.equal(decision.abstain, surest < percentiles[25])
    assert {decision.reason[i] for i in decision.abstain.nonzero()[:, 0].tolist()} == {UNSURE}


def test_a_client_that_is_away_is_passed_over_by_competence(router: Router, images: torch.Tensor) -> None:
    decision = router.route(images, rule="competence", available=["lima", "kyoto"], max_away=1)
    assert decision.right is not None
    assert torch.equal(decision.client, 1 + decision.right[:, 1:].argmax(1))
    broken = router.route_features(router.features(images) * torch.nan, rule="competence")
    assert set(broken.reason) == {BROKEN}
    assert broken.right_probability.tolist() == [0.0] * 20
