"""What a router says of its own errors comes from samples that its fits had not seen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from documentation import scripts
from feddrm.data import Federation
from feddrm.evaluation import Predictions, Queries, pooled_queries, system_accuracy
from feddrm.router import FittedRouter, RouterSettings, fit_router
from feddrm.router.evaluate import evaluate_router
from feddrm.router.fit import fit_router as fit_router_module
from feddrm.router.fit import selection
from feddrm.router.fit.calibration import STRANGER
from feddrm.router.fit.cohort import Cohort, FitRequest
from feddrm.router.policy import by_rule, consult
from feddrm.threads import intra_op_threads
from refusal import refused

WIDTH, CLASSES = 150, 3


def made(seed: int, *sizes: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """As many features as samples: a fit can learn its own samples by heart, and there is little else to learn."""
    g = torch.Generator().manual_seed(seed)
    found = {}
    for client, size in enumerate(sizes):
        x = torch.randn(size, WIDTH, generator=g)
        x[:, 0] += 0.7 * client
        found[f"site-{client}"] = x, torch.randint(CLASSES, (size,), generator=g)
    return found


@pytest.fixture(scope="module")
def federation() -> Federation:
    return Federation.from_arrays(made(0, 90, 50, 30), test=made(1, 1400, 800, 400))


@pytest.fixture(scope="module")
def fitted(federation: Federation) -> FittedRouter:
    return fit_router(None, {}, federation, RouterSettings(features="raw"))


@pytest.fixture(scope="module")
def asked(federation: Federation) -> tuple[Queries, Predictions]:
    queries = pooled_queries(federation, crop=False, seed=0, round=0)
    logits = torch.randn(3, len(queries.labels), CLASSES, generator=torch.Generator().manual_seed(2))
    return queries, Predictions(logits, queries.labels, queries.origin)


@pytest.fixture(scope="module")
def worth(federation: Federation, fitted: FittedRouter, asked: tuple[Queries, Predictions]) -> dict[str, Any]:
    return evaluate_router(fitted, None, {}, *asked, federation.weights)


def test_it_is_as_sure_as_it_may_be(worth: dict[str, Any]) -> None:
    """On its own samples every fit is right and certain; a temperature from those would be far below one."""
    assert worth["router"]["ece"] < 0.06


@pytest.mark.parametrize("rule", ["density", "posterior"])
@pytest.mark.parametrize("miss", [0.05, 0.1, 0.2])
def test_sets_cover_what_they_promise(worth: dict[str, Any], rule: str, miss: float) -> None:
    assert worth["router"]["conformal"][f"{rule}_{miss}"]["covered"] == pytest.approx(1 - miss, abs=0.05)


def test_a_head_that_learned_noise_by_heart_is_not_trusted(fitted: FittedRouter) -> None:
    """Labels say nothing here. Asked about its own samples a timid head is always right, and would be made loud."""
    assert fitted.heads is not None
    assert sum(fitted.heads.stacks["stacked"].weights.values()) < 0.5


def test_clients_are_consulted_by_the_posterior(
    fitted: FittedRouter, asked: tuple[Queries, Predictions], worth: dict[str, Any]
) -> None:
    queries, answers = asked
    router = fitted.router
    weights = by_rule(router.logits(queries.x.float()).double(), router.log_prior, "posterior")
    mixed = consult(weights, answers.logits.double().log_softmax(-1))
    assert worth["system_accuracy"]["consult_all"] == system_accuracy(mixed.argmax(-1), queries.labels)


def test_nobody_of_the_federation_is_a_stranger(federation: Federation, fitted: FittedRouter) -> None:
    rows = torch.cat([client.view(client.train.x) for client in federation.clients]).float()
    strange = fitted.router.scaler(rows).square().mean(1)
    assert fitted.router.calibration.unlike_above == pytest.approx(STRANGER * float(strange.max()), rel=1e-5)


@pytest.mark.slow
def test_the_documented_router_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (script,) = scripts("docs/router.md")
    monkeypatch.chdir(tmp_path)
    exec(script, {})
    shares = re.findall(r"([\d.]+)%", capsys.readouterr().out)
    assert len(shares) == 8
    assert min(map(float, shares)) > 90


def test_a_small_fit_uses_one_thread_and_leaves_the_setting_as_it_was(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, a fit outside of a run took seven times as long beside other load."""
    seen: list[int] = []

    def fit_cohort(*_: Any) -> None:
        seen.append(torch.get_num_threads())

    monkeypatch.setattr("feddrm.router.fit.fit_router.fit_cohort", fit_cohort)
    with intra_op_threads(2):
        fit_router(None, {}, federation)
        assert torch.get_num_threads() == 2
    assert seen == [1]


@pytest.mark.parametrize(("given", "router", "heads"), [(None, None, 60), (7, 7, 7)])
def test_the_router_has_as_many_rounds_as_it_needs_and_heads_have_sixty(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, given: int | None, router: int | None, heads: int
) -> None:
    bounds: dict[str, set[int | None]] = {"client": set(), "class": set(), "pair": set()}
    solve_requests = selection.solve_requests

    def noted(
        cohort: Cohort, requests: Mapping[str, FitRequest], rounds: int | None, tolerance: float, *more: int | None
    ) -> object:
        if tolerance != selection.PATH_TOLERANCE:
            bounds[next(iter(requests.values())).target].add(rounds)
        return solve_requests(cohort, requests, rounds, tolerance, *more)

    monkeypatch.setattr(selection, "solve_requests", noted)
    fit_router(None, {}, federation, RouterSettings(features="raw", rounds=given))
    assert bounds == {"client": {router}, "class": {heads}, "pair": {heads}}


def test_many_clients_choose_on_some_and_fit_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ridge of the sum of losses stays; the fit that is kept is the optimum of all clients with it."""
    federation = Federation.from_arrays(made(0, *[40] * 8), test=made(1, *[10] * 8))
    settings = RouterSettings(features="raw", heads=False)
    whole = fit_router(None, {}, federation, settings)
    assert "compared" not in whole.chosen
    monkeypatch.setattr(fit_router_module, "MANY", 4)
    monkeypatch.setattr(selection, "MANY", 4)
    monkeypatch.setattr(selection, "LARGE", 1)
    fitted = fit_router(None, {}, federation, settings)
    assert fitted.chosen["compared"] == 4
    best = min(fitted.chosen["router"]["path"], key=lambda step: step[1])
    assert fitted.chosen["router"]["ridge"] == pytest.approx(best[0] / 2)
    assert fitted.chosen["router"]["converged"]
    assert fitted.chosen["router"]["held_out_loss"] > best[1], "eight clients are harder to tell apart than four"
    monkeypatch.undo()
    monkeypatch.setattr(selection, "FINER", (fitted.chosen["router"]["ridge"] / whole.chosen["router"]["ridge"],))
    monkeypatch.setattr(selection, "RIDGES", (whole.chosen["router"]["ridge"],))
    same_ridge = fit_router(None, {}, federation, settings)
    assert same_ridge.chosen["router"]["ridge"] == pytest.approx(fitted.chosen["router"]["ridge"])
    away = fitted.router.weight - same_ridge.router.weight
    assert (away - away.mean(0)).abs().max() < 0.02 * same_ridge.router.weight.abs().max()


@pytest.mark.parametrize("few_messages", [False, True])
def test_one_training_sample_at_every_client_is_refused_with_the_reason(few_messages: bool) -> None:
    federation = Federation.from_arrays(made(0, *[1] * 8), test=made(0, *[1] * 8))
    with refused("each of the 8 clients has 1 training sample", "give clients at least 2"):
        fit_router(None, {}, federation, RouterSettings(features="raw", few_messages=few_messages))


@pytest.mark.parametrize("larger", range(4))
def test_clients_with_one_sample_are_fitted_beside_a_larger_one(larger: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the larger one is among the clients that compare recipes."""
    monkeypatch.setattr(fit_router_module, "MANY", 2)
    sizes = [4 if i == larger else 1 for i in range(4)]
    federation = Federation.from_arrays(made(0, *sizes), test=made(0, *sizes))
    fitted = fit_router(None, {}, federation, RouterSettings(features="raw", heads=False))
    assert bool(fitted.router.weight.isfinite().all())
