"""The artifact that is being served: read whole, checked, then put in the place of the one before."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from feddrm.errors import FeddrmError
from feddrm.router import Decision, Router, load_router, read_manifest
from feddrm.serve.batching import Batcher
from feddrm.serve.reading import Wanted
from feddrm.serve.settings import GatewaySettings


class Query(NamedTuple):
    """Samples of one request and how to decide about them."""

    kind: str
    x: Tensor
    rule: str
    coverage: float
    available: tuple[bool, ...]


class Row(NamedTuple):
    """The decision about one sample, in plain numbers."""

    client: int
    probabilities: list[float]
    ratios: list[float]
    margin: float
    abstain: bool
    reason: str

    def order(self, clients: Iterable[int]) -> list[int]:
        """The best first; by density ratio where probabilities are too small to differ."""
        return sorted(clients, key=lambda c: (-self.probabilities[c], -self.ratios[c]))


@dataclass(frozen=True, eq=False)
class Holding:
    """One artifact with its own batches: requests that began with it end with it."""

    version: str
    router: Router
    wanted: Wanted
    batcher: Batcher[Query, list[Row]]

    @classmethod
    def load(cls, folder: Path, settings: GatewaySettings, on_batch: Callable[[int], None] | None = None) -> Holding:
        """Read and try it: an artifact that cannot decide about a sample is refused like one that cannot be read."""
        version = version_of(folder)
        router = load_router(folder)
        columns = read_manifest(folder)["notes"].get("columns")
        wanted = Wanted(
            shape=router.shape,
            features=router.weight.shape[1],
            columns=None if columns is None else tuple(columns),
            rows=settings.max_rows,
            pixels=settings.max_pixels,
        )
        everybody = (True,) * router.clients
        sample = torch.zeros(1, *router.shape)
        decide(router, [Query("inputs", sample, settings.rule, settings.coverage, everybody)])
        batcher: Batcher[Query, list[Row]] = Batcher(
            lambda queries: decide(router, queries),
            batch_rows=settings.max_batch_rows,
            waiting_rows=settings.max_waiting_rows,
            on_batch=on_batch,
        )
        return cls(version, router, wanted, batcher)


def version_of(folder: Path) -> str:
    """The manifest lists the digests of all files, so its own digest names the artifact."""
    try:
        return hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise FeddrmError(
            f"{folder} holds no router ({error.strerror}): fit one with 'feddrm fit-router RUN'"
        ) from error


def decide(router: Router, queries: Sequence[Query]) -> list[list[Row]]:
    """All queries' rows at once: one pass of the network, one decision per set of options."""
    features: list[Tensor | None] = [q.x if q.kind == "features" else None for q in queries]
    for dtype in {q.x.dtype for q in queries if q.kind == "inputs"}:
        places = [i for i, q in enumerate(queries) if q.kind == "inputs" and q.x.dtype == dtype]
        found = router.features(torch.cat([queries[i].x for i in places]))
        for i, rows_found in zip(places, torch.split(found, [len(queries[i].x) for i in places]), strict=True):
            features[i] = rows_found
    groups: dict[tuple[str, float, tuple[bool, ...]], list[int]] = {}
    for i, query in enumerate(queries):
        groups.setdefault((query.rule, query.coverage, query.available), []).append(i)
    answers: list[list[Row]] = [[] for _ in queries]
    for (rule, coverage, available), places in groups.items():
        x = torch.cat([part for i in places if (part := features[i]) is not None])
        mask = None if all(available) else torch.tensor(available)
        rows = iter(_rows(router.route_features(x, rule=rule, coverage=coverage, available=mask)))
        for i in places:
            answers[i] = [next(rows) for _ in range(len(queries[i].x))]
    return answers


def _rows(decision: Decision) -> list[Row]:
    if not bool(decision.log_density_ratio.isfinite().all()) or bool(decision.probabilities.isnan().any()):
        raise FeddrmError("the numbers are too large for this router: check their scale")
    return [
        Row(*row)
        for row in zip(
            decision.client.tolist(),
            decision.probabilities.tolist(),
            decision.log_density_ratio.tolist(),
            decision.margin.tolist(),
            decision.abstain.tolist(),
            decision.reason,
            strict=True,
        )
    ]
