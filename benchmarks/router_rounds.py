"""Measures how many gradient rounds the exact router needs on real features (CIFAR-10, client accuracy on test data).

    FEDDRM_DATA=folder python -m benchmarks.router_rounds [--run RUN --device cuda] [--json FILE]

Without ``--run``, the features are the colour statistics, which need no network, so that anyone can repeat it. With
``--run``, they are the channel statistics of the run's trunk and the colour statistics, as in ``feddrm fit-router``.
Every sample has one crop. The ridge is the one chosen on held-out training samples, and for comparison a hundred
times that. Round zero is the linear discriminant, computed from sums that clients have already sent; the gradients
after it are counted. After each round, the server's best point is tested and compared with the point after 300 rounds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.result import finish
from feddrm.data import Federation, generator_for, load
from feddrm.engine import load_state
from feddrm.evaluation import pooled_queries
from feddrm.models import Model, Net
from feddrm.router import Holdout, Recipe
from feddrm.router.features.base import extract
from feddrm.router.fit.design_matrix import choose_recipe, input_scale, local_choice, local_tables
from feddrm.router.solver.solve import FitState, Problem, Sample, client_sums, logits_at, pooled, round_zero, solve
from feddrm.runs import Run

WEAKER, ROUNDS, SHOWN = (1.0, 10.0, 100.0), 300, (1, 2, 5, 10, 15, 20, 30, 60, 100)


def trained(path: Path, federation: Federation, device: str) -> tuple[Net, dict[str, torch.Tensor]]:
    """A run's network and the leaves that its server holds."""
    settings = dict(Run.open(path).config["model"])
    model = Model.make(settings.pop("name"), **settings)
    net = model.build(federation.shape, len(federation.classes), len(federation), 0).to(device)
    return net.requires_grad_(False), dict(load_state(path / "checkpoint" / "state.safetensors", device).shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a finished FedDRM run on CIFAR-10")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    federation = load("cifar10").to(arguments.device)
    assert federation.crop is not None
    net, leaves = trained(arguments.run, federation, arguments.device) if arguments.run else (None, {})
    recipe = Recipe.parse("multiscale+colour" if arguments.run else "colour", *input_scale(federation))
    found = []
    for number, client in enumerate(federation.clients):
        boxes = federation.crop.boxes(len(client.train), *federation.shape[1:], generator_for(0, number))
        found.append(extract(recipe, net, leaves, client.view(client.train.x, boxes.to(arguments.device))))
    test = pooled_queries(federation, crop=True, seed=0, round=0)
    seen = extract(recipe, net, leaves, test.x)
    targets = [torch.full_like(client.train.y, i) for i, client in enumerate(federation.clients)]
    holdout = Holdout.suggested(sum(map(len, targets)))
    parts = holdout.draw([len(y) for y in targets], 0)
    choose = local_choice(targets, parts, lambda d: lambda ridge: Problem(len(targets), d, ridge))
    table, chosen, _ = choose_recipe([recipe], local_tables(found), choose, holdout, print)
    raw = [torch.cat([rows[f.name] for f in recipe.features], dim=1) for rows in found]
    queries = table.scaler(torch.cat([seen[f.name] for f in recipe.features], dim=1))
    sums = [client_sums(x) for x in raw]
    samples = [Sample(x, y) for x, y in zip(table.x, targets, strict=True)]
    figures: dict[str, object] = {}
    for ridge in (chosen.ridge * times for times in WEAKER):
        for name, whitening in (("whitened", table.whitening), ("plain", None)):
            right: list[float] = []

            def watch(state: FitState, right: list[float] = right) -> None:
                answers = logits_at(queries, state.at).argmax(1)
                right.append(round(100 * float((answers == test.origin).double().mean()), 2))

            problem = Problem(len(federation), table.width, ridge)
            if whitening is not None:
                begun = round_zero(problem, sums, table.scaler, whitening)
                solve(problem, samples, whitening, start=begun, rounds=ROUNDS, tolerance=0.0, watch=watch)
            else:
                solve(problem, [pooled(samples)], rounds=100, tolerance=0.0, watch=watch)
            after = {str(n): right[n - 1] for n in SHOWN if n <= len(right)}
            print(f"ridge {ridge:g}, {name}: {after}, at the end {right[-1]}", flush=True)
            figures[f"ridge {ridge:g}, {name}"] = {"client_accuracy_after_rounds": after, "at_the_end": right[-1]}
    result = {
        "recipe": recipe.name,
        "features": table.width,
        "samples": sum(map(len, targets)),
        "test": len(queries),
        "chosen_ridge": chosen.ridge,
        **figures,
    }
    finish(result, arguments.json, arguments.device)


if __name__ == "__main__":
    main()
