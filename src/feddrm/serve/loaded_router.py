"""The artifact that is being served: read whole, checked, then put in the place of the one before."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from feddrm.engine.kernels import largest_product
from feddrm.errors import FeddrmError
from feddrm.router import Decision, Router, load_router, read_manifest
from feddrm.serve.batching import Batcher
from feddrm.serve.http.decode import Wanted
from feddrm.serve.settings import GatewaySettings
from feddrm.threads import without_onednn_if_small

OnDecided = Callable[[Sequence[str], Sequence[int], Sequence[str]], None]  # names, clients chosen, reasons to doubt


class Query(NamedTuple):
    """Samples of one request and how to decide about them."""

    kind: str
    x: NDArray[Any]
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


@dataclass(slots=True, eq=False)
class Decided:
    """The decisions about the samples of one request, as arrays: many samples are not looked at one by one."""

    client: NDArray[np.int64]
    probabilities: NDArray[np.floating[Any]]
    ratios: NDArray[np.floating[Any]]
    margin: NDArray[np.floating[Any]]
    abstain: NDArray[np.bool_]
    best: NDArray[np.floating[Any]]  # the largest probability
    reason: Sequence[str]

    def __len__(self) -> int:
        return len(self.client)

    @classmethod
    def of(cls, decision: Decision) -> Decided:
        ratios, probabilities = decision.log_density_ratio.numpy(), decision.probabilities.numpy()
        if not np.isfinite(ratios).all() or np.isnan(probabilities).any():
            raise FeddrmError("the numbers are too large for this router: check their scale")
        numbers = decision.client.numpy(), probabilities, ratios, decision.margin.numpy(), decision.abstain.numpy()
        return cls(*numbers, probabilities.max(1), decision.reason)

    def part(self, start: int, stop: int) -> Decided:
        here = slice(start, stop)
        return Decided(
            self.client[here], self.probabilities[here], self.ratios[here],
            self.margin[here], self.abstain[here], self.best[here], self.reason[here],
        )  # fmt: skip

    def rows(self) -> list[Row]:
        arrays = (self.client, self.probabilities, self.ratios, self.margin, self.abstain)
        return [Row(*row) for row in zip(*(array.tolist() for array in arrays), self.reason, strict=True)]


@dataclass(frozen=True, eq=False)
class LoadedRouter:
    """One artifact with its own batches: requests that began with it end with it."""

    version: str
    router: Router
    classes: int
    wanted: Wanted
    batcher: Batcher[Query, Decided]

    @classmethod
    def load(
        cls,
        folder: Path,
        settings: GatewaySettings,
        on_batch: Callable[[int], None] | None = None,
        on_decided: OnDecided = lambda *_: None,
    ) -> LoadedRouter:
        """Read and try it: an artifact that cannot decide about a sample is refused like one that cannot be read."""
        version = version_of(folder)
        router = load_router(folder)
        manifest = read_manifest(folder)
        columns = manifest["notes"].get("columns")
        wanted = Wanted(
            shape=router.shape,
            features=router.weight.shape[1],
            columns=None if columns is None else tuple(columns),
            rows=settings.max_rows,
            pixels=settings.max_pixels,
        )
        everybody = (True,) * router.clients
        sample = np.zeros((1, *router.shape), np.float32)
        decide(router, [Query("inputs", sample, settings.rule, settings.coverage, everybody)])
        net, rows = router.net, settings.max_batch_rows
        largest = rows * router.weight.numel() if net is None else largest_product(net, rows)

        def work(queries: Sequence[Query]) -> list[Decided]:
            with without_onednn_if_small(largest):
                found = decide(router, queries)
            clients = [client for decided in found for client in decided.client.tolist()]
            on_decided(router.names, clients, [reason for decided in found for reason in decided.reason])
            return found

        batcher: Batcher[Query, Decided] = Batcher(
            work,
            batch_rows=settings.max_batch_rows,
            waiting_rows=settings.max_waiting_rows,
            on_batch=on_batch,
        )
        return cls(version, router, int(manifest["classes"]), wanted, batcher)


def version_of(folder: Path) -> str:
    """The manifest lists the digests of all files, so its own digest names the artifact."""
    try:
        return hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise FeddrmError(
            f"{folder} holds no router ({error.strerror}): fit one with 'feddrm fit-router RUN'"
        ) from error


def decide(router: Router, queries: Sequence[Query]) -> list[Decided]:
    """All queries' rows at once: one pass of the network and one decision per kind of sample and set of options."""
    groups: dict[Any, list[int]] = {}
    for i, query in enumerate(queries):
        groups.setdefault((query.kind, query.x.dtype, *query[2:]), []).append(i)
    answers: dict[int, Decided] = {}
    for (kind, _, rule, coverage, available), places in groups.items():
        mask = None if all(available) else torch.tensor(available)
        with torch.inference_mode():
            x = torch.from_numpy(np.concatenate([queries[i].x for i in places]))
            features = x if kind == "features" else router.features(x)
            found = Decided.of(router.route_features(features, rule=rule, coverage=coverage, available=mask))
        start = 0
        for i in places:
            stop = start + len(queries[i].x)
            answers[i] = found.part(start, stop)
            start = stop
    return [answers[i] for i in range(len(queries))]
