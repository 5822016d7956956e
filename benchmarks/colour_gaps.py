"""Tests whether colour statistics use the gaps between pixel values of rounded images (CIFAR-10 Dir-0.3, no network).

    FEDDRM_DATA=folder python -m benchmarks.colour_gaps [--ridge 3e-5] [--rounds 60] [--json FILE]

The router uses only the colour statistics, with one crop of every training image. Random shifts of up to one or two of
256 levels fill the gaps: either all channels of a pixel shift together, or every channel shifts by itself, which also
blurs the colours of dark and grey pixels. One router is fitted on the original images and tested on shifted ones,
another is fitted and tested on shifted images. If routers used the gaps, the accuracy of the second would fall, too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.result import finish
from feddrm.data import generator_for, load
from feddrm.evaluation import client_accuracy, pooled_queries
from feddrm.router import Recipe
from feddrm.router.features.base import extract
from feddrm.router.fit.cohort import Facts
from feddrm.router.solver.client_statistics import Sample, logits_at
from feddrm.router.solver.problem import Problem
from feddrm.router.solver.solve import moments_of, scaler_of, solve

MOVES = [(0, "as they are"), (1, "whole pixels"), (2, "whole pixels"), (1, "channels"), (2, "channels")]


def moved(x: Tensor, most: int, alike: bool, mean: Tensor, std: Tensor, seed: int) -> Tensor:
    """Network inputs with every value shifted by up to ``most`` levels, clipped to the range of 8 bits."""
    levels = ((x * std + mean) * 255).round()
    shape = (len(x), 1 if alike else x.shape[1], *x.shape[2:])
    noise = torch.randint(-most, most + 1, shape, generator=torch.Generator().manual_seed(seed))
    return ((levels + noise).clamp_(0, 255).div_(255) - mean) / std


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ridge", type=float, default=3e-5)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    federation = load("cifar10")
    assert federation.crop is not None
    scale = Facts.of(federation).scale
    recipe = Recipe.parse("colour", *scale)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in scale)
    seen = []
    for number, client in enumerate(federation.clients):
        boxes = federation.crop.boxes(len(client.train), *federation.shape[1:], generator_for(0, number))
        seen.append(client.view(client.train.x, boxes))
    test = pooled_queries(federation, crop=True, seed=0, round=0)
    figures = []
    plain = None
    for most, what in MOVES:

        def statistics(x: Tensor, seed: int, most: int = most, alike: bool = what == "whole pixels") -> Tensor:
            return extract(recipe, None, {}, moved(x, most, alike, mean, std, seed))["colour"]

        found = [statistics(x, 1 + i) for i, x in enumerate(seen)]
        scaler = scaler_of(found)
        samples = [Sample(scaler(x), torch.full((len(x),), i)) for i, x in enumerate(found)]
        problem = Problem(len(samples), found[0].shape[1], arguments.ridge)
        own = (scaler, solve(problem, samples, moments_of([s.x for s in samples]), rounds=arguments.rounds).point)
        plain = plain or own
        queries = statistics(test.x, 0)
        row = {"moved_by": most, "what": what}
        for name, (scaling, point) in {"fitted_as_they_are": plain, "fitted_alike": own}.items():
            logits = logits_at(scaling(queries), point)
            row[name] = round(client_accuracy(logits, test.origin, federation.weights, "density"), 4)
        figures.append(row)
        print(row, flush=True)
    result = {
        "features": problem.features,
        "ridge": arguments.ridge,
        "rounds": arguments.rounds,
        "rule": "density",
        "test": len(test.labels),
        "client_accuracy": figures,
    }
    finish(result, arguments.json)


if __name__ == "__main__":
    main()
