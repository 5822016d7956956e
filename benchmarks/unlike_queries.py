"""Measures which queries that are unlike all training data a router refuses, by one measure and by another.

    python -m benchmarks.unlike_queries [--seeds 5] [--json results/bench/unlike_queries.json]
    python -m benchmarks.unlike_queries --pictures [--seeds 3] [--json results/bench/unlike_pictures.json]

The tables heart and tcga_brca, a division and a router on raw features per seed, without a network. Queries are the
clients' test rows; *uniform* ones, every column drawn in its range; *permuted* ones, every column from another patient;
*halves*, the second half of the columns from another patient. A column's network inputs stay together. ``squares`` is
the mean square of the standardised features, ``decorrelated`` the router's own strangeness; both have the threshold of
the router's calibration. Few rounds are enough: the strangeness does not depend on the router's weights.

With ``--pictures``: the scanned digits, and of CIFAR-10 five clients with up to 300 training and 100 test pictures
each, drawn anew per seed and shifted in colour as the clients are. The router looks at colours, without a network.
``squares`` is the share refused by the strangeness alone, ``roughness`` by the whole router.
"""

from __future__ import annotations

import argparse
import io
import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

import feddrm
from benchmarks.result import finish
from feddrm import Federation
from feddrm.router import Router, RouterSettings, fit_router
from feddrm.router.decisions.decision import UNLIKE
from feddrm.router.features.decorrelated_inputs import strangeness
from feddrm.router.fit.calibration import STRANGER

CATEGORIES = 10  # a column with no more different values is drawn from these
TRAINED, TESTED = 300, 100  # of CIFAR-10, pictures of a client


def columns_of(router: Router) -> list[list[int]]:
    """The network inputs of every raw column of a table."""
    count = router.shape[0]
    if router.schema is None:
        return [[i] for i in range(count)]
    return [[*range(own.start, own.stop), *([] if mark is None else [mark])] for _, own, mark in router.schema.places]


def odd_queries(router: Router, known: Tensor, rows: Tensor, random: torch.Generator) -> dict[str, Tensor]:
    """As many queries of every kind as there are test rows."""
    count, columns = len(rows), columns_of(router)
    uniform, permuted, halves = (rows.clone() for _ in range(3))
    for column in columns:
        values = torch.unique(known[:, column], dim=0)
        drawn = values[torch.randint(len(values), (count,), generator=random)]
        if len(values) > CATEGORIES:
            low, high = values[:, 0].min(), values[:, 0].max()
            drawn[:, 0] = low + (high - low) * torch.rand(count, generator=random)
        uniform[:, column] = drawn
        permuted[:, column] = rows[torch.randperm(count, generator=random)][:, column]
    other = rows[torch.randperm(count, generator=random)]
    for column in columns[len(columns) // 2 :]:
        halves[:, column] = other[:, column]
    return {"uniform": uniform, "permuted": permuted, "halves": halves}


def measure(data: str, seed: int) -> dict[str, Any]:
    """Shares refused, in percent, and the area under the ROC curve against test rows, of one division."""
    federation = feddrm.load(data, seed=seed)
    router = fit_router(None, {}, federation, RouterSettings(features="raw", heads=False, rounds=3)).router
    known = torch.cat([client.view(client.train.x) for client in federation.clients])
    rows = torch.cat([client.view(client.test.x) for client in federation.clients])
    queries = {"test": rows, **odd_queries(router, known, rows, torch.Generator().manual_seed(seed))}

    def squares(x: Tensor) -> Tensor:
        return strangeness(router.scaler(router.features(x)), None)

    scores = {"squares": (squares, STRANGER * float(squares(known).max()))}
    scores["decorrelated"] = (lambda x: router.strangeness(router.features(x)), router.calibration.unlike_above)
    figures: dict[str, Any] = {"inputs": router.shape[0], "training_rows": len(known)}
    for name, (score, most) in scores.items():
        found = {kind: score(x) for kind, x in queries.items()}
        figures[name] = {
            "threshold": most,
            "refused_percent": {kind: 100 * float((values > most).double().mean()) for kind, values in found.items()},
            "auroc": {kind: area(found["test"], found[kind]) for kind in found if kind != "test"},
        }
    return figures


@cache
def whole(data: str) -> Federation:
    """A federation of pictures, read once for all seeds."""
    return feddrm.load(data, **({"clients": 5} if data == "cifar10" else {}))


def pictures(data: str, seed: int) -> Federation:
    """Some pictures of every client, as it sees them; of the few digits a division by the seed."""
    if data == "digits":
        return feddrm.load(data, seed=seed)
    random = torch.Generator().manual_seed(seed)
    some: dict[str, dict[str, tuple[Tensor, Tensor]]] = {"train": {}, "test": {}}
    for client in whole(data).clients:
        for part, split, count in (("train", client.train, TRAINED), ("test", client.test, TESTED)):
            drawn = torch.randperm(len(split), generator=random)[:count]
            x = split.x[drawn].contiguous()
            shift = client.view.shift
            some[part][client.name] = (x if shift is None else shift.direct(x), split.y[drawn])
    return Federation.from_arrays(some["train"], test=some["test"])


def odd_pictures(x: Tensor, random: torch.Generator) -> dict[str, Tensor]:
    """As many pictures of every kind, of uint8 pictures; the first are real ones."""
    count, _, height, width = x.shape
    order = torch.rand(count, 1, height * width, generator=random).argsort(2).expand(-1, x.shape[1], -1)
    grey = torch.randint(256, (count, 1, 1, 1), generator=random, dtype=torch.uint8)
    noisy = x.float() + 25 * torch.randn(x.shape, generator=random)
    return {
        "test": x,
        "turned by 90 degrees": x.rot90(1, (2, 3)),
        "turned by 15 degrees": each(x, lambda image: image.rotate(15, Image.Resampling.BILINEAR)),
        "jpeg, quality 30": each(x, jpeg),
        "blurred by 1 pixel": each(x, lambda image: image.filter(ImageFilter.GaussianBlur(1))),
        "noise of 10 %": noisy.clamp(0, 255).to(torch.uint8),
        "shuffled pixels": x.flatten(2).gather(2, order).view_as(x),
        "uniform noise": torch.randint(256, x.shape, generator=random, dtype=torch.uint8),
        "grey pages": grey.expand_as(x).contiguous(),
    }


def each(x: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Every picture changed by Pillow."""
    rows = x.permute(0, 2, 3, 1).numpy()
    changed = [np.asarray(change(Image.fromarray(row.squeeze()))).reshape(row.shape) for row in rows]
    return torch.from_numpy(np.stack(changed)).permute(0, 3, 1, 2).contiguous()


def jpeg(image: Image.Image) -> Image.Image:
    image.save(file := io.BytesIO(), "JPEG", quality=30)
    return Image.open(file)


def measure_pictures(data: str, seed: int) -> dict[str, Any]:
    """Shares refused as unlike the training data, in percent, of one division."""
    federation = pictures(data, seed)
    router = fit_router(None, {}, federation, RouterSettings(features="colour", heads=False, rounds=3)).router
    tested = torch.cat([client.view.pixels(client.test.x) for client in federation.clients])
    queries = odd_pictures(tested, torch.Generator().manual_seed(seed))
    known = router.calibration.roughness
    assert known is not None
    figures: dict[str, Any] = {
        "training_pictures": int(federation.sizes.sum()),
        "roughness": {"least": known.least, "most": known.most},
    }
    for name, route in (("squares", lambda x: router.route_features(router.features(x))), ("roughness", router.route)):
        refused = {kind: [reason == UNLIKE for reason in route(x).reason] for kind, x in queries.items()}
        shares = {kind: 100 * sum(of) / len(of) for kind, of in refused.items()}
        figures[f"refused_percent_by_{name}"] = shares
    return figures


def area(usual: Tensor, odd: Tensor) -> float:
    """The probability that an odd query is stranger than a usual one."""
    return float((odd[:, None] > usual).double().mean() + (odd[:, None] == usual).double().mean() / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names, of = (("digits", "cifar10"), measure_pictures) if options.pictures else (("heart", "tcga_brca"), measure)
    found = {data: [of(data, seed) for seed in range(options.seeds)] for data in names}
    finish({"seeds": options.seeds, **{data: means(rows) for data, rows in found.items()}}, options.json)


def means(values: Any) -> Any:
    """The mean of every number over seeds."""
    if isinstance(values[0], dict):
        return {key: means([value[key] for value in values]) for key in values[0]}
    return round(statistics.mean(values), 4)


if __name__ == "__main__":
    main()
