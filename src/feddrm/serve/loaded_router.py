"""The router artifact that the gateway serves: read and tried as a whole, and asked in batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from time import time_ns
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from feddrm.engine.kernels import largest_product
from feddrm.errors import FeddrmError, FieldProblem
from feddrm.io.staging import read_whole
from feddrm.predictor.query_groups import compute_in_groups
from feddrm.router import Decision, Router, load_router, read_manifest
from feddrm.router.artifact import FIT, artifact_version, manifest_task
from feddrm.router.decisions.explanation import Explanation
from feddrm.rules import Competence
from feddrm.serve.batching import Batcher
from feddrm.serve.http.decode import InputSpec
from feddrm.serve.settings import GatewaySettings
from feddrm.serve.telemetry.metrics import Metrics
from feddrm.tasks import require_classes
from feddrm.threads import without_onednn_if_small

FAR = 1e30  # mean square of standardised features; a ratio that is infinite before has weights above 1e20
MANY, TOP = 30, 10  # of more clients than this, an answer has by default only so many: the best


class RouterQuery(NamedTuple):
    """The samples of one request and the options of the decision."""

    kind: str
    x: NDArray[Any]
    rule: str
    coverage: float
    available: tuple[bool, ...]
    max_away: float
    why: str | None = None  # over which client to explain the choice; empty: over the runner-up; None: it is not


def too_far(decision: Decision) -> bool:
    """Whether a sample is so far from the training data that its density ratios may be infinite."""
    return decision.strangeness is None or not (decision.strangeness.numpy() < FAR).all()


@dataclass(eq=False)
class Decisions:
    """The router's decisions about the samples of one request, one row per sample.

    The same fields as :class:`feddrm.router.Decision`, as NumPy arrays: small ones are cheaper than small tensors.
    ``away`` says which clients could not be asked, by number, and why. ``times`` are when the features were begun, when
    the decisions were, and when they were finished, in nanoseconds since 1970.
    """

    client: NDArray[np.int64]
    probabilities: NDArray[np.floating[Any]]
    log_density: NDArray[np.floating[Any]]
    log_pooled_density: NDArray[np.floating[Any]]
    margin: NDArray[np.floating[Any]]
    abstain: NDArray[np.bool_]
    client_probability: NDArray[np.floating[Any]]
    reason: Sequence[str]
    flags: Sequence[Sequence[FieldProblem]] = ()
    right_probability: NDArray[np.floating[Any]] | None = None  # by the competence rule only
    features: NDArray[np.floating[Any]] | None = None
    strangeness: NDArray[np.floating[Any]] | None = None
    explanation: Explanation | None = None  # where it was asked for
    away: Mapping[int, str] = field(default_factory=dict)
    times: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(cls, decision: Decision) -> Decisions:
        probabilities, client = decision.probabilities.numpy(), decision.client.numpy()
        client_probability = probabilities[np.arange(len(client)), client]
        # The probabilities of a sample are numbers for all clients or for none.
        if np.isnan(client_probability).any() or (
            too_far(decision) and not decision.log_density_ratio.isfinite().all()
        ):
            raise FeddrmError("the numbers are too large for this router: check their scale")
        client_probability[client < 0] = 0.0
        return cls(
            client=client,
            probabilities=probabilities,
            log_density=decision.log_density.numpy(),
            log_pooled_density=decision.log_pooled_density.numpy(),
            margin=decision.margin.numpy(),
            abstain=decision.abstain.numpy(),
            client_probability=client_probability,
            reason=decision.reason,
            flags=decision.flags,
            right_probability=None if decision.right is None else decision.right_probability.numpy(),
            features=None if decision.features is None else decision.features.numpy(),
            strangeness=None if decision.strangeness is None else decision.strangeness.numpy(),
        )

    def __getitem__(self, rows: slice) -> Decisions:
        return Decisions(
            self.client[rows], self.probabilities[rows], self.log_density[rows], self.log_pooled_density[rows],
            self.margin[rows], self.abstain[rows], self.client_probability[rows], self.reason[rows],
            flags=self.flags[rows],
            right_probability=None if self.right_probability is None else self.right_probability[rows],
            features=None if self.features is None else self.features[rows],
            strangeness=None if self.strangeness is None else self.strangeness[rows],
            explanation=None if self.explanation is None else self.explanation[rows],
            times=self.times,
        )  # fmt: skip

    @property
    def log_density_ratio(self) -> NDArray[np.floating[Any]]:
        """log dP_i / dP [N, m] of each client against the pooled data."""
        return self.log_density - self.log_pooled_density

    def log_density_ratio_of(self, clients: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
        """Those of some clients [N, k] of every sample."""
        return np.take_along_axis(self.log_density, clients, 1) - self.log_pooled_density

    @property
    def flag_lists(self) -> list[list[dict[str, Any]]]:
        """The flags of every sample, as JSON holds them."""
        return [[flag.as_flag() for flag in flags] for flags in self.flags] or [[] for _ in self.reason]

    @cached_property
    def rankings(self) -> list[list[int]]:
        """All clients of every sample, best first."""
        order: list[list[int]] = self.best(self.probabilities.shape[1]).tolist()
        return order

    def best(self, number: int, among: Collection[int] | None = None) -> NDArray[np.int64]:
        """The best clients [N, number] of every sample, or the best among some, in order.

        Where probabilities are too small to differ, the density decides.
        """
        probabilities, densities = self.probabilities, self.log_density
        clients = np.arange(probabilities.shape[1])
        if among is not None:
            clients = np.array(sorted(among), dtype=np.int64)
            probabilities, densities = probabilities[:, clients], densities[:, clients]
        if number < len(clients):  # to sort all would take longer than the decision
            largest, places = (top.numpy() for top in torch.from_numpy(probabilities).topk(number + 1))
            kept, tied = places[:, :number], (largest[:, number - 1] == largest[:, number]).nonzero()[0]
            kept[tied] = np.lexsort((-densities[tied], -probabilities[tied]), axis=-1)[:, :number]
            kept.sort(1)  # so that of equal clients the first is the better one
            probabilities, densities = (np.take_along_axis(values, kept, 1) for values in (probabilities, densities))
            clients = clients[kept]
        order = np.lexsort((-densities, -probabilities), axis=-1)
        return np.take_along_axis(np.broadcast_to(clients, order.shape), order, 1)

    def shown(self, number: int | None) -> int:
        """How many clients of a ranking an answer has: so many, or by default all of a few and the best of many."""
        clients = int(self.probabilities.shape[1])
        return min(number or (clients if clients <= MANY else TOP), clients)

    @cached_property
    def passed_over(self) -> list[list[int]]:
        """For every sample the clients that are away and likelier than its client, best first; the best of many."""
        if not self.away:
            return [[]] * len(self.client)
        likeliest = self.best(self.shown(None), self.away).tolist()
        rows = zip(likeliest, self.probabilities, self.client_probability, strict=True)
        return [[c for c in ranking if p[c] > own] for ranking, p, own in rows]

    def without_answer(self, rows: Collection[int], reason: str) -> Decisions:
        """The same decisions, but those of ``rows`` abstain for this reason if they did not abstain before."""
        reasons = [reason if i in rows and not old else old for i, old in enumerate(self.reason)]
        return replace(self, abstain=np.array([bool(text) for text in reasons]), reason=reasons)


@dataclass(frozen=True, eq=False)
class LoadedRouter:
    """One artifact with its own batches. A request keeps the artifact it started with."""

    version: str
    router: Router
    classes: int
    spec: InputSpec
    batcher: Batcher[RouterQuery, Decisions]
    fit: str | None  # its name, which refitted heads carry; None for a router of an older version
    class_names: tuple[str, ...] | None = None  # None where the manifest has none

    @property
    def names(self) -> tuple[str, ...]:
        return self.router.names

    @classmethod
    def load(cls, folder: Path, settings: GatewaySettings, metrics: Metrics) -> LoadedRouter:
        """Read an artifact and decide about one sample as a trial; an artifact that cannot do both is an error."""
        version, router, manifest = read_whole(
            folder, lambda _: (artifact_version(folder), load_router(folder), read_manifest(folder))
        )
        require_classes(manifest_task(manifest), "a gateway", "answer queries with 'feddrm predict'")
        columns = manifest["notes"].get("columns")
        spec = InputSpec(
            shape=router.shape,
            features=router.weight.shape[1],
            columns=None if columns is None else tuple(columns),
            max_rows=settings.max_rows,
            max_pixels=settings.max_pixels,
            schema=router.schema,
        )
        blank, all_available = np.zeros((1, *router.shape), np.float32), (True,) * router.clients
        trial = RouterQuery("inputs", blank, settings.rule, settings.coverage, all_available, settings.max_away)
        router.rule(Competence.name, settings.costs)  # refuses costs of unknown clients
        decide(router, [trial], settings.views, settings.costs)
        net, rows = router.net, settings.max_batch_rows
        largest = rows * router.weight.numel() if net is None else largest_product(net, rows)

        def compute(queries: Sequence[RouterQuery]) -> list[Decisions]:
            with without_onednn_if_small(largest):
                answers = decide(router, queries, settings.views, settings.costs)
            clients = [client for decisions in answers for client in decisions.client.tolist()]
            reasons = [reason for decisions in answers for reason in decisions.reason]
            metrics.observe_decisions(version, router.names, clients, reasons)
            return answers

        batcher: Batcher[RouterQuery, Decisions] = Batcher(
            compute,
            batch_rows=settings.max_batch_rows,
            waiting_rows=settings.max_waiting_rows,
            on_batch=metrics.batch_rows.observe,
        )
        notes = manifest["notes"]
        listed = tuple(map(str, notes.get("classes") or ()))
        number = int(manifest["classes"])
        return cls(version, router, number, spec, batcher, notes.get(FIT), listed if len(listed) == number else None)


@dataclass(frozen=True, slots=True, eq=False)
class RequestContext:
    """Who sent a request for what, when, and the router that answers it: a reload does not change it."""

    action: str
    request_id: str
    caller: str
    started: float
    router: LoadedRouter


def decide(
    router: Router, queries: Sequence[RouterQuery], views: int = 1, costs: Mapping[str, float] | None = None
) -> list[Decisions]:
    """Decide about all queries: those with the same kind of samples and the same options in one pass.

    The features of samples are averaged over so many ``views``; features that a query brings are taken as they are.
    ``costs`` of clients are weighed by the competence rule.
    """

    def compute(
        kind: str,
        x: NDArray[Any],
        rule: str,
        coverage: float,
        available: Sequence[bool],
        max_away: float,
        why: str | None,
    ) -> Decisions:
        mask = None if all(available) else torch.tensor(available)
        weighed, began = costs if rule == Competence.name else None, time_ns()
        with torch.inference_mode():
            rows = torch.from_numpy(x)
            route, featured, inputs = router.route_features, began, None
            if kind != "features":
                inputs = router.inputs(rows)
                rows = router.features(inputs, views)
                route, featured = partial(router.route_inputs, inputs), time_ns()
            decision = route(rows, rule=rule, costs=weighed, coverage=coverage, available=mask, max_away=max_away)
            decisions = Decisions.of(decision)
            if why is not None:
                decisions.explanation = router.explain_decision(decision, inputs, over=why or None)
        decisions.times = began, featured, time_ns()
        return decisions

    return compute_in_groups(queries, compute)
