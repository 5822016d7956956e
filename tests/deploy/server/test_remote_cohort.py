"""A router and its heads fitted over messages equal those that one process fits: features, ridges, parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from deployment import NAMES, Deployed, DirectTransport, fit_steps
from feddrm.data import Federation, load
from feddrm.deploy.server.remote_cohort import NO_ROWS, Ask, RemoteCohort, Rows
from feddrm.deploy.server.training import ServerState
from feddrm.deploy.site import site_fit
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.site.site import Site
from feddrm.deploy.site.site_fit import BINS
from feddrm.deploy.wire.messages import Message, unpack
from feddrm.deploy.wire.run_spec import FIT_PROTOCOL
from feddrm.router import (
    FittedRouter,
    Recipe,
    Router,
    RouterSettings,
    fit_router,
    load_heads,
    load_router,
    read_manifest,
)
from feddrm.router.features.basis_functions import BasisFeature
from feddrm.router.fit.cohort import FitRequest, HeldOutHeads, Target, Trunk
from feddrm.router.fit.fit_competence import fit_competence
from feddrm.router.fit.fit_router import fit_cohort
from feddrm.router.fit.head_problems import STRENGTHS
from feddrm.router.fit.local_cohort import LocalCohort
from feddrm.router.fit.selection import FEW_ROUNDS, KEPT_ROUNDS, Softmax
from feddrm.router.private_head import PrivateHead
from feddrm.router.settings import Holdout
from feddrm.router.solver.client_statistics import Sample
from feddrm.router.solver.problem import Problem, add
from feddrm.router.solver.solve import moments_of, solve
from feddrm.rules import RULES
from feddrm.threads import router_kernels
from refusal import refused

pytestmark = pytest.mark.slow

DATA = {"dataset": "digits", "seed": 7, "shift": "none"}  # or the router would never err
Make = Callable[..., Deployed]


def fitted_here(deployment: Deployed, **settings: object) -> tuple[FittedRouter, Federation]:
    """The router that one process fits on the same trunk."""
    federation = load("digits", clients=3, seed=7, shift="none")
    spec = deployment.server().run_spec()
    shared = ServerState.load(deployment.server().checkpoint).shared
    with router_kernels(sum(spec.sizes)):
        net = spec.make_net().requires_grad_(False)
        return fit_router(net, shared, federation, RouterSettings(**settings)), federation  # type: ignore[arg-type]


def test_features_ridge_and_router_are_those_of_one_process(deployed: Make) -> None:
    deployment = deployed(DATA)
    transport = DirectTransport(deployment.folder)
    deployment.server(transport).go()
    folder = deployment.run / "router"
    router, found = load_router(folder), read_manifest(folder)["notes"]["chosen"]
    here, federation = fitted_here(deployment, heads=False, few_messages=True)
    assert router.names == NAMES
    assert found["router"]["recipe"] == here.chosen["router"]["recipe"]
    assert found["router"]["ridge"] == here.chosen["router"]["ridge"]
    assert list(found["candidates"]) == list(here.chosen["candidates"])
    for name, mine in here.chosen["candidates"].items():
        theirs = found["candidates"][name]
        assert [step[0] for step in theirs["path"]] == [step[0] for step in mine["path"]], "the same strengths tried"
        assert theirs["held_out_loss"] == pytest.approx(mine["held_out_loss"], abs=1e-6)
    assert torch.equal(router.scaler.mean, here.router.scaler.mean)
    torch.testing.assert_close(router.weight, here.router.weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(router.bias, here.router.bias, rtol=0, atol=1e-6)
    # Calibration: the same temperature, percentiles within a bin, the same strangest sample.
    mine, theirs = here.router.calibration, router.calibration
    assert theirs.temperature == pytest.approx(mine.temperature, rel=1e-6)
    assert theirs.unlike_above == pytest.approx(mine.unlike_above, rel=1e-6)
    assert astuple(theirs.roughness) == pytest.approx(astuple(mine.roughness), rel=1e-6)
    for rule, percentiles in mine.confidence.items():
        for a, b in zip(theirs.confidence[rule], percentiles, strict=True):
            assert abs(a - b) < 2e-3
    assert all(mine.conformal[key] - 2e-3 <= theirs.conformal[key] <= mine.conformal[key] for key in mine.conformal)

    # In few messages, with the choice and at the optimum of the fit that takes as many rounds as it needs.
    steps = Counter(fit_steps(transport))
    assert steps == {"fold_moments": 1, "evaluate": 3 * FEW_ROUNDS + KEPT_ROUNDS, "slope": 1, "spread": 1}
    assert steps.total() == 20
    usual, _ = fitted_here(deployment, heads=False)
    assert found["router"]["recipe"] == usual.chosen["router"]["recipe"]
    assert found["router"]["ridge"] == usual.chosen["router"]["ridge"]
    with router_kernels(sum(federation.sizes.tolist())):
        best = optimum(router, federation, found["router"]["ridge"])
    torch.testing.assert_close(router.weight.double(), best[:, :-1], rtol=0, atol=1e-6)
    torch.testing.assert_close(router.bias.double(), best[:, -1], rtol=0, atol=1e-6)


def optimum(router: Router, federation: Federation, ridge: float) -> Tensor:
    """The optimum of a router's problem on pooled samples in float64, by the solver of one process."""
    rows = [router.scaler(router.features(client.view(client.train.x))).double() for client in federation.clients]
    y = torch.cat([torch.full((len(x),), number) for number, x in enumerate(rows)])
    problem = Problem(len(rows), rows[0].shape[1], ridge)
    fit = solve(problem, [Sample(torch.cat(rows), y)], moments_of(rows), tolerance=1e-17, rounds=500)
    return fit.point


@pytest.mark.parametrize("seed", [2, 5])
def test_the_choice_is_that_of_many_messages(seed: int) -> None:
    """Where clients overlap, held-out likelihoods decide, and few rounds find the same features and ridge."""
    federation = load("digits", clients=3, seed=seed, shift="none")
    chosen = [
        fit_router(None, {}, federation, RouterSettings(heads=False, few_messages=few)).chosen["router"]
        for few in (False, True)
    ]
    assert chosen[0]["recipe"] == chosen[1]["recipe"]
    assert chosen[0]["ridge"] == chosen[1]["ridge"]


def ask_sites(deployment: Deployed, place: str) -> Ask:
    """The same sites in this process, without signatures, files or Flower's messages."""
    spec = deployment.server().run_spec()
    sites = [Site(deployment.folder / "sites" / name) for name in NAMES]
    for site in sites:
        site.folder = site.folder.parent.parent / place / site.name

    def ask(header: Mapping[str, Any], tensors: Mapping[str, Tensor], rows: Rows = NO_ROWS) -> dict[int, Message]:
        whole = {"brief": spec.as_dict(), "fit_protocol": FIT_PROTOCOL, **header}
        return {i: unpack(site._fit(Message(whole, {**tensors, **rows.to_site(i)}))) for i, site in enumerate(sites)}

    return ask


def test_messages_lose_nothing(deployed: Make) -> None:
    """With and without signatures, files and Flower's messages every number is the same."""
    routing = {"heads": True, "joint": True, "features": "raw", "path_rounds": 1, "rounds": 2}
    deployment = deployed(few=True, routing=routing)
    deployment.server().go()
    run = deployment.run
    server = deployment.server()
    spec, settings = server.run_spec(), server.settings.router_settings
    with router_kernels(sum(spec.sizes)):
        trunk = Trunk(spec.make_net().requires_grad_(False), ServerState.load(run / "checkpoint.safetensors").shared)
        cohort = RemoteCohort(ask_sites(deployment, "again"), spec.facts, spec.crop, settings)
        fitted = fit_cohort(cohort, trunk, settings)
        fitted.artifact(dict(spec.model)).write(deployment.folder / "again" / "router")
    first, again = (read_manifest(folder / "router")["notes"] for folder in (run, deployment.folder / "again"))
    assert first == again
    assert set(fitted.chosen["stacked"]) == {"global_probe", "joint"}
    assert not fitted.private, "corrections stay on their sites"
    heads = load_heads(run / "router")
    for name, value in load_heads(deployment.folder / "again" / "router").items():
        assert torch.equal(heads[name], value)
    for name in NAMES:
        own = PrivateHead.read(deployment.folder / "sites" / name / "clients" / name / "head.safetensors", "")
        copy = PrivateStore(deployment.folder / "again" / name / "runs" / spec.run).recall("fit-head")
        assert copy is not None
        assert own.correction.shape == heads["probe"].shape
        assert torch.equal(own.correction, copy.tensors["correction"])
        assert own.calibration.temperature == pytest.approx(copy.header["temperature"], rel=1e-6)  # stored as float32
        assert own.fit == first["fit"]


@pytest.mark.parametrize("target", ["client", "class", "pair"])
def test_both_cohorts_answer_every_question_alike(deployed: Make, target: Target) -> None:
    """The sums over clients, whoever computes them: design, gradients, scores, slopes, confidence, curves."""
    deployment = deployed(DATA, router=False)
    deployment.server().go()
    spec, settings = deployment.server().run_spec(), RouterSettings()
    federation = load("digits", clients=3, seed=7, shift="none")
    remote = RemoteCohort(ask_sites(deployment, "questions"), spec.facts, spec.crop, settings)
    local = LocalCohort(federation, settings)
    assert replace(remote.facts, names=local.facts.names) == local.facts
    recipe, holdout, trunk = Recipe.parse("raw", *spec.scale), Holdout(4, 2), Trunk(None, {})
    outputs = {"client": 3, "class": 10, "pair": 30}[target]
    sums, confidences = [], []
    for cohort in (local, remote):
        cohort.measure(recipe, trunk, holdout)
        design = cohort.design(recipe)
        point = torch.linspace(-0.2, 0.3, outputs * (design.width + 1), dtype=torch.float64).view(outputs, -1)
        problem = Problem(outputs, design.width, 1e-2)
        requests = {str(fold): FitRequest(design, target, problem, fold) for fold in (0, 1, None)}
        gradients = cohort.gradients(requests, dict.fromkeys(requests, point))
        scored = {key: request for key, request in requests.items() if request.fold is not None}
        answers = {f"gradient {key}": add(list(of.values())) for key, of in gradients.items()}
        answers |= {f"scores {k}": of for k, of in cohort.scores(scored, dict.fromkeys(scored, point)).items()}
        answers["scaler"] = {"mean": design.scaler.mean, "scale": design.scaler.scale}
        if target == "client":
            router = cohort.held_out_router(design, [point, -point], point / 9)
            answers["slopes"] = router.slopes(0.7)
            confidences.append(router.confidence(1.3, cohort.facts.log_prior))
        else:
            probes, joints = ([point, -point], None) if target == "class" else ([point[:10]] * 2, [point, -point])
            heads = HeldOutHeads(
                design, probes, [torch.zeros(30, design.width + 1, dtype=torch.float64)] * 2, joints, 0.1, 0.1
            )
            router = cohort.held_out_router(design, [point[:3], point[:3]], point[:3])
            classes = cohort.held_out_classes(heads, router, 1.0)
            models = ["global_probe"] if joints is None else ["global_probe", "joint"]
            answers["curves"] = classes.curves(models)(torch.full((len(models),), 0.4, dtype=torch.float64))
        sums.append(answers)
    for question, expected in sums[0].items():
        assert expected.keys() == sums[1][question].keys()
        for name, value in expected.items():
            torch.testing.assert_close(sums[1][question][name], value, rtol=2e-5, atol=1e-4, msg=f"{question} {name}")
    if confidences:
        expected, found = confidences
        assert found.strangest == pytest.approx(expected.strangest, rel=1e-5)
        assert found.roughness == expected.roughness
        for rule in RULES:
            (own, shares), (edges, counts) = expected.own[rule], found.own[rule]
            assert bool((shares == 1).all()), "each sample is of its own subject"
            each = edges.exp().repeat_interleave(counts.long())
            for values, bins in ((expected.top[rule], found.top[rule]), (own.exp(), each)):
                assert len(bins) == len(values) == sum(len(client.test) for client in federation.clients)
                below = values.sort().values - bins.sort().values
                assert -1e-6 < float(below.min()) <= float(below.max()) < 1 / BINS + 1e-6


def test_slopes_are_the_same_however_many_scales_are_computed_at_a_time(
    deployed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites with many samples compute one after another."""
    deployment = deployed(few=True, router=False)
    deployment.server().go()
    spec = deployment.server().run_spec()
    cohort = RemoteCohort(ask_sites(deployment, "slopes"), spec.facts, spec.crop, RouterSettings())
    recipe = Recipe.parse("raw", *spec.scale)
    cohort.measure(recipe, Trunk(None, {}), Holdout(4, 2))
    design = cohort.design(recipe)
    point = torch.linspace(-0.2, 0.3, 3 * (design.width + 1), dtype=torch.float64).view(3, -1)
    slopes = []
    for scaled in (site_fit.SCALED, 2000, 1):
        monkeypatch.setattr(site_fit, "SCALED", scaled)
        slopes.append(cohort.held_out_router(design, [point, -point], point).slopes(0.7))
    for other in slopes[1:]:
        torch.testing.assert_close(other, slopes[0], rtol=1e-12, atol=0)  # sums may be taken in another order


def agreed(deployment: Deployed) -> Deployed:
    """All sites let features of held-out samples out."""
    for name in NAMES:
        deployment.change_site(name, share={"features": True})
    return deployment


def test_competence_is_that_of_one_process_with_the_same_heads(deployed: Make) -> None:
    """Features, judgements and fitted weights."""
    deployment = agreed(deployed(DATA, router=False))
    deployment.server().go()
    spec, settings = deployment.server().run_spec(), RouterSettings(few_messages=True)
    holdout, recipe, ridge = Holdout(5, 5), Recipe.parse("multiscale", *spec.scale), STRENGTHS[0]
    trunk = Trunk(spec.make_net().requires_grad_(False), ServerState.load(deployment.server().checkpoint).shared)
    with router_kernels(sum(spec.sizes)):
        local = LocalCohort(load("digits", clients=3, seed=7, shift="none"), settings)
        remote = RemoteCohort(ask_sites(deployment, "competence"), spec.facts, spec.crop, settings)
        for cohort in (local, remote):
            cohort.measure(recipe, trunk, holdout)
        design = local.design(recipe)
        softmax = Softmax(local, "class", lambda width, ridge: Problem(10, width, ridge), RouterSettings())
        probes = softmax.choose_one(design, [1e-2], holdout.used, 60).folds
        corrections, _ = local.corrections(design, probes).scores(ridge, [None] * holdout.used)
        here = HeldOutHeads(design, probes, corrections, None, 1e-2, ridge)
        there = replace(here, design=remote.design(recipe), corrections=[])
        mine, theirs = local.judge(here.design, here), remote.judge(there.design, there)
        fitted = [
            fit_competence(cohort, heads.design, heads, holdout, settings)
            for cohort, heads in ((local, here), (remote, there))
        ]
    assert torch.equal(theirs.x, mine.x)
    assert torch.equal(theirs.part, mine.part)
    assert torch.equal(theirs.right, mine.right)
    assert (mine.right.double().mean(0) < 0.95).all(), "clients err, each elsewhere"
    torch.testing.assert_close(fitted[1].point, fitted[0].point, rtol=0, atol=1e-6)
    assert fitted[1].chosen == fitted[0].chosen


def test_a_deployed_router_knows_its_sites_competence_where_all_agree(deployed: Make) -> None:
    """Weights of competence and heads are those of one process that fits as a deployed federation does."""
    routing = {"features": "multiscale", "heads": True, "joint": False, "path_rounds": 2, "rounds": 5}
    deployment = agreed(deployed(DATA, routing={**routing, "competence": True}))
    transport = DirectTransport(deployment.folder)
    deployment.server(transport).go()
    assert not deployment.complaints
    router, chosen = load_router(deployment.run / "router"), read_manifest(deployment.run / "router")["notes"]["chosen"]
    steps = fit_steps(transport)
    added = steps[len(steps) - steps[::-1].index("curves") :]
    assert added[-3:] == ["held_out_rows", "answer_rows", "judge_rows"]
    assert set(added[:-3]) == {"gradient"}
    assert len(added) <= 5 + 3, "the probes of the folds that the heads left out, and three messages"
    here, federation = fitted_here(deployment, **routing, competence=True, few_messages=True)
    assert chosen["competence"]["judged"] == here.chosen["competence"]["judged"] == sum(federation.sizes.tolist())
    assert here.router.competence is not None
    assert here.heads is not None
    torch.testing.assert_close(router.competence, here.router.competence, rtol=0, atol=1e-6)
    torch.testing.assert_close(load_heads(deployment.run / "router")["probe"], here.heads.probe, rtol=0, atol=1e-6)
    everything = b"".join(signed for *_, signed in transport.messages)
    for name, own, kept in zip(NAMES, deployment.samples(), here.private.values(), strict=True):
        head = PrivateHead.read(deployment.site_folder(name) / "clients" / name / "head.safetensors", "").correction
        torch.testing.assert_close(head, kept, rtol=0, atol=1e-6)
        private = [*own[:20], *own[:20].float(), *head, *head.double()]
        assert not [row for row in private if row.numpy().tobytes() in everything], "neither samples nor heads travel"
    # A site learns the answers about its own samples alone, and sends no label.
    messages = [unpack(signed[2 + int.from_bytes(signed[:2], "big") :]) for *_, signed in transport.messages[-12:-6]]
    sizes = federation.sizes.tolist()
    assert [len(message.tensors["rows/answers"]) for message in messages[::2]] == sizes
    assert [tuple(message.tensors["rows/right"].shape) for message in messages[1::2]] == [(n, 3) for n in sizes]


def test_features_of_samples_leave_a_site_only_if_it_agreed(deployed: Make) -> None:
    """Whatever the server asks, and never the samples themselves."""
    deployment = deployed(DATA, router=False)
    deployment.server().go()
    spec = deployment.server().run_spec()
    deployment.change_site("oslo", share={"features": True})
    ask = ask_sites(deployment, "refusing")
    cohort = RemoteCohort(ask, spec.facts, spec.crop, RouterSettings())
    cohort.measure(Recipe.parse("raw", *spec.scale), Trunk(None, {}), Holdout(4, 2))
    with refused("raw features contain these samples themselves: none leave this site"):
        ask({"step": "held_out_rows", "features": ["raw"]}, {})  # oslo is asked first
    deployment.change_site("oslo", share={})
    for step in ("held_out_rows", "answer_rows", "judge_rows"):
        with refused("its site.yaml does not say 'share: {features: true}'", "none leave this site"):
            ask_sites(deployment, "refusing")({"step": step, "features": []}, {})


def test_no_row_of_a_table_leaves_a_site_for_competence(deployed: Make) -> None:
    """Neither with the features of a fit of competence, nor where a server asks for those that contain rows."""
    routing = {"heads": True, "competence": True, "features": "embedding", "path_rounds": 1, "rounds": 1}
    deployment = agreed(deployed(few=True, routing=routing))
    transport = DirectTransport(deployment.folder)
    deployment.server(transport).go()
    assert fit_steps(transport)[-1] == "judge_rows"
    everything = b"".join(signed for *_, signed in transport.messages)
    assert not [row for own in deployment.samples() for row in own if row.numpy().tobytes() in everything]
    spec, shared = deployment.server().run_spec(), ServerState.load(deployment.server().checkpoint).shared
    ask, net = ask_sites(deployment, "refusing"), spec.make_net().requires_grad_(False)
    for recipe in (Recipe.parse("multiscale"), Recipe((BasisFeature("identity", (0,), (0.0,), (1.0,)),))):
        cohort = RemoteCohort(ask, spec.facts, spec.crop, RouterSettings())
        cohort.measure(recipe, Trunk(net, shared), Holdout(4, 2))
        with refused(f"{recipe.name} features contain these samples themselves: none leave this site"):
            ask({"step": "held_out_rows", "features": [recipe.name]}, {})


def test_crops_and_holdout_are_settings_of_a_deployed_fit_too(deployed: Make) -> None:
    deployment = deployed(DATA, router=False)
    deployment.server().go()
    spec = deployment.server().run_spec()
    cohort = RemoteCohort(ask_sites(deployment, "crops"), spec.facts, True, RouterSettings(crops=2))
    cohort.measure(Recipe.parse("raw", *spec.scale), Trunk(None, {}), Holdout(4, 2))
    assert cohort.moments.total.count == 2 * sum(spec.sizes)


def test_heads_are_as_good_as_those_of_one_process(deployed: Make) -> None:
    """The class fits end before they have converged, where rounding has grown: hence a thousandth here."""
    routing = {"heads": True, "joint": False, "features": "raw", "rounds": 10}
    deployment = deployed(DATA, routing=routing)
    deployment.server().go()
    folder = deployment.run / "router"
    found = read_manifest(folder)["notes"]["chosen"]
    here, _ = fitted_here(deployment, **routing, competence=False)
    assert found["probe"]["recipe"] == here.chosen["probe"]["recipe"]
    assert found["probe"]["ridge"] == here.chosen["probe"]["ridge"]
    assert found["probe"]["held_out_loss"] == pytest.approx(here.chosen["probe"]["held_out_loss"], abs=1e-3)
    assert found["private"]["held_out_loss"] <= found["probe"]["held_out_loss"]
    assert not list((deployment.folder / "server").rglob("head.safetensors")), "corrections stay on their sites"


def test_a_fit_starts_again_when_a_site_is_missing(deployed: Make) -> None:
    """At its first message and at a later one; the outcome is the same as without."""
    routing = {"features": "raw", "path_rounds": 2, "rounds": 3}
    deployment = deployed(few=True, routing=routing)
    # hello, two rounds; then lima misses the first message of the fit, and later one with scores
    transport = DirectTransport(deployment.folder, away=lambda name, count: name == "lima" and count in (4, 7))
    deployment.server(transport).go()
    folder = deployment.run / "router"
    disturbed = load_router(folder)
    assert fit_steps(transport)[:5] == ["fold_moments", "fold_moments", "evaluate", "evaluate", "fold_moments"]
    (deployment.run / "summary.json").unlink()
    (folder / "manifest.json").unlink()
    deployment.restart_sites()
    replace(deployment).server().go()
    assert torch.equal(load_router(folder).weight, disturbed.weight)
