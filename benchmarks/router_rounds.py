"""Measures how many gradient rounds the exact router needs on real features (CIFAR-10, client accuracy on test data).

    FEDDRM_DATA=folder python -m benchmarks.router_rounds [--run RUN --device cuda] [--json FILE]

Without ``--run``, the features are the colour statistics, which need no network, so that anyone can repeat it. With
``--run``, they are the channel statistics of the run's trunk and the colour statistics, as in ``feddrm fit-router``.
Every sample has one crop. The ridge is the one chosen on held-out training samples, and for comparison a hundred
times that. The first gradient is taken at zero and gives the linear discriminant; the gradients after it are
counted. After each round, the server's best point is tested and compared with the point after 300 rounds.
Besides, the fits that a router keeps (without the held-out samples, then on all) are taken to 60 rounds and to
their optimum.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.result import finish
from feddrm.data import Federation, load
from feddrm.engine import load_state
from feddrm.evaluation import pooled_queries
from feddrm.models import Model, Net
from feddrm.router import Recipe
from feddrm.router.features.base import extract
from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.fit.cohort import Facts, Trunk
from feddrm.router.fit.local_cohort import LocalCohort
from feddrm.router.fit.ridge_path import Chosen
from feddrm.router.fit.selection import Softmax, choose_recipe
from feddrm.router.settings import Holdout, RouterSettings
from feddrm.router.solver.client_statistics import Sample, logits_at
from feddrm.router.solver.lbfgs import FitState, objective
from feddrm.router.solver.problem import Problem
from feddrm.router.solver.solve import pooled, solve
from feddrm.runs import Run

WEAKER, ROUNDS, SHOWN = (1.0, 10.0, 100.0), 300, (1, 2, 5, 10, 15, 20, 30, 60, 100)


def trained(path: Path, federation: Federation, device: str) -> tuple[Net, dict[str, torch.Tensor]]:
    """A run's network and the leaves that its server holds."""
    settings = dict(Run.open(path).config["model"])
    model = Model.make(settings.pop("name"), **settings)
    net = model.build(federation.shape, len(federation.classes), len(federation), 0).to(device)
    return net.requires_grad_(False), dict(load_state(path / "checkpoint" / "state.safetensors", device).shared)


def kept(
    softmax: Softmax, design: DesignMatrix, chosen: Chosen, rounds: int | None
) -> tuple[FitState, dict[str, object]]:
    """The fits that a router keeps, and the rounds, processor seconds and gradient of the last one."""
    bounded = replace(softmax, settings=replace(softmax.settings, rounds=rounds))
    began = time.process_time()
    folds = bounded.finish_folds(design, chosen)
    halfway = time.process_time()
    state = bounded.fit_all(design, chosen.ridge, folds)
    if state.iterate.is_cuda:
        torch.cuda.synchronize()
    seconds = {"without held-out": halfway - began, "all": time.process_time() - halfway}
    problem = softmax.problem(design.width, chosen.ridge)
    loss, gradient = objective(problem, state.iterate, state.losses, state.gradients, state.counts)
    return state, {
        "rounds": int(state.rounds),
        "converged": bool(state.done),
        "loss": float(loss),
        "gradient_norm": float(gradient.norm()),
        "processor_seconds": {name: round(value, 1) for name, value in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a finished FedDRM run on CIFAR-10")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    federation = load("cifar10").to(arguments.device)
    assert federation.crop is not None
    net, leaves = trained(arguments.run, federation, arguments.device) if arguments.run else (None, {})
    recipe = Recipe.parse("multiscale+colour" if arguments.run else "colour", *Facts.of(federation).scale)
    settings = RouterSettings(crops=1)
    cohort, holdout = LocalCohort(federation, settings), Holdout.suggested(int(federation.sizes.sum()))
    cohort.measure(recipe, Trunk(net, leaves), holdout)
    test = pooled_queries(federation, crop=True, seed=0, round=0)
    queries_by_feature = extract(recipe, net, leaves, test.x)
    softmax = Softmax(cohort, "client", lambda width, ridge: Problem(len(federation), width, ridge), settings)
    design, chosen, _ = choose_recipe(softmax, [recipe], holdout, print)
    queries = design.scaler(torch.cat([queries_by_feature[f.name] for f in recipe.features], dim=1))
    samples = pooled([Sample(x, torch.full((len(x),), i, device=x.device)) for i, x in enumerate(design.rows)])
    figures: dict[str, object] = {}
    for bound in (60, None):
        state, figure = kept(softmax, design, chosen, bound)
        right = float((logits_at(queries, state.iterate).argmax(1) == test.origin).double().mean())
        name = "kept fits, at most 60 rounds" if bound else "kept fits, to the optimum"
        figures[name] = {**figure, "client_accuracy": round(100 * right, 2)}
        print(f"{name}: {figures[name]}", flush=True)
    for ridge in (chosen.ridge * times for times in WEAKER):
        for name, whitening in (("whitened", design.whitening), ("plain", None)):
            trace: list[float] = []

            def watch(state: FitState, trace: list[float] = trace) -> None:
                answers = logits_at(queries, state.iterate).argmax(1)
                trace.append(round(100 * float((answers == test.origin).double().mean()), 2))

            problem = Problem(len(federation), design.width, ridge)
            rounds = ROUNDS if whitening is not None else 100
            solve(problem, [samples], whitening, rounds=rounds, tolerance=0.0, watch=watch)
            del trace[: int(whitening is not None)]  # the gradient at zero
            after = {str(n): trace[n - 1] for n in SHOWN if n <= len(trace)}
            print(f"ridge {ridge:g}, {name}: {after}, at the end {trace[-1]}", flush=True)
            figures[f"ridge {ridge:g}, {name}"] = {"client_accuracy_after_rounds": after, "at_the_end": trace[-1]}
    result = {
        "recipe": recipe.name,
        "features": design.width,
        "samples": len(samples),
        "test": len(queries),
        "chosen_ridge": chosen.ridge,
        **figures,
    }
    finish(result, arguments.json, arguments.device)


if __name__ == "__main__":
    main()
