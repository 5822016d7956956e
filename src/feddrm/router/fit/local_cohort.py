"""A cohort whose samples are all in this process. It pools them: one large product is faster than many small ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy as shallow
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor

from feddrm.data import Client, Federation, RandomResizedCrop, generator_for
from feddrm.errors import FeddrmError, SettingError
from feddrm.evaluation import Queries, pooled_queries
from feddrm.moments import Moments
from feddrm.router.features.base import Recipe, extract
from feddrm.router.features.design_matrix import DesignMatrix, stretch_of
from feddrm.router.fit.calibration import LocalHeldOut, OnDemand
from feddrm.router.fit.cohort import (
    Corrections,
    Facts,
    FitRequest,
    HeldOutHeads,
    HeldOutRouter,
    Job,
    Judged,
    Target,
    Trunk,
)
from feddrm.router.fit.feature_blocks import MemberMoments, site_moments
from feddrm.router.fit.head_problems import LocalCorrections, OwnCorrections, joint_classes, joint_label
from feddrm.router.fit.selection import FINE_ROUNDS
from feddrm.router.fit.stacking import LocalClasses
from feddrm.router.policy import client_slopes, consult, solve_temperature
from feddrm.router.settings import Holdout, RouterSettings
from feddrm.router.solver.client_statistics import (
    ClientSums,
    Sample,
    client_gradient,
    client_gradients,
    client_scores,
    client_scores_at,
    grouped,
    logits_at,
)
from feddrm.router.solver.hessian import client_hessian, client_score_scatter
from feddrm.router.solver.problem import Scaler, Whitening, add
from feddrm.router.solver.solve import moments_of, noise_of, pooled, scaler_of

JUDGED = Holdout(5, 5)  # the parts of judged samples; where the heads' folds are five, they are the same
ONE_BATCH = 1024  # samples: the crops of a client with so few are one batch; launches cost more than arithmetic there
ROUTER, SOME = int.from_bytes(b"rout", "big"), int.from_bytes(b"some", "big")
Published = Callable[[Tensor], Tensor]  # log class probabilities [m, n, K] of network inputs


class LocalCohort:
    """All clients of a federation. ``published`` are the clients' own models: they allow one more stack.

    ``test`` are the test samples as they are evaluated; without it, whole.
    """

    members = 1

    def __init__(
        self,
        federation: Federation,
        settings: RouterSettings,
        published: Published | None = None,
        test: Queries | None = None,
    ) -> None:
        self.federation, self.seed, self._few = federation, settings.seed, settings.few_messages
        self.facts = Facts.of(federation)
        first = federation.clients[0].train.x
        if self._few and first.is_cuda:
            raise SettingError("few_messages on a CUDA device: fit on the CPU, or leave few_messages out")
        self.views = federation.query_views.take(settings.views)
        self._crop = federation.crop if settings.views == 1 else None  # views are those of the whole image
        self.crops = 1 if self._crop is None else settings.crops_on(first.device)
        self._test = test or pooled_queries(federation, crop=False, seed=0, round=0, views=settings.views)
        self._ask_published = published if settings.heads else None
        self.left_out: list[str] = []
        self._part_bytes = settings.part_bytes
        answers = 8 * len(federation) * self.facts.samples * self.crops * len(federation.classes)
        line = settings.too_large("answers of all clients' models to all training samples", answers, first.device)
        if self._ask_published is not None and line is not None:
            self._ask_published = None
            self.left_out.append(line)
        self._features: list[dict[str, Tensor]] = []
        self._labels = [federation.task.class_of(client.train.y).repeat(self.crops) for client in federation.clients]
        self._parts: list[Tensor] = []
        self._published: list[Tensor] = []
        self._samples = _SampleCache()

    def measure(self, recipe: Recipe, trunk: Trunk, holdout: Holdout) -> None:
        for number, client in enumerate(self.federation.clients):
            rows, answers = [], []
            copies = [training_view(client, number, self._crop, self.seed, copy) for copy in range(self.crops)]
            if len(client.train) * self.crops <= ONE_BATCH:
                copies = [_joined(copies, 0)]
            for x in copies:
                rows.append(self.views.mean(x, lambda view: extract(recipe, trunk.net, trunk.leaves, view)))
                if self._ask_published is not None:
                    answers.append(self._ask_published(x))
            self._features.append({name: _joined([row[name] for row in rows], 0) for name in rows[0]})
            self._parts.append(self._drawn(holdout, number))
            if answers:
                self._published.append(torch.cat(answers, dim=1))
        self._refuse_infinite()
        self._measured, self._holdout, self._trunk = recipe, holdout, trunk
        self.like = next(iter(self._features[0].values())).new_empty(0)
        self.noise = noise_of(self.like.dtype)

    def _drawn(self, holdout: Holdout, number: int) -> Tensor:
        """The part of every sample of one client."""
        train = self.federation.clients[number].train
        part = holdout.draw(number, len(train), self.seed, self.crops, train.subject)
        return part.to(self._labels[number].device)

    def _refuse_infinite(self) -> None:
        """An error that names the first training sample with a feature that is not finite."""
        for name, features in zip(self.facts.names, self._features, strict=True):
            for x in features.values():
                if not bool(x.sum().isfinite()) and not bool((finite := x.isfinite().all(1)).all()):
                    row = int((~finite).nonzero()[0]) % (len(x) // self.crops)
                    raise FeddrmError(
                        f"client '{name}': training sample {row} has a feature that is not finite: correct the sample, "
                        "or the network that computes its features"
                    )

    def some(self, clients: int) -> LocalCohort:
        if self._few or len(self._features) <= clients:
            return self
        drawn = torch.randperm(len(self._features), generator=generator_for(self.seed, SOME))[:clients].sort().values
        part, numbers, facts = shallow(self), drawn.tolist(), self.facts
        part.facts = replace(
            facts,
            names=tuple(facts.names[i] for i in numbers),
            sizes=tuple(facts.sizes[i] for i in numbers),
        )
        part._features, part._labels = [self._features[i] for i in numbers], [self._labels[i] for i in numbers]
        part._parts, part._samples = [self._parts[i] for i in numbers], _SampleCache()
        return part

    def scaler(self, recipe: Recipe) -> Scaler:
        return self._moments.design(recipe).scaler if self._few else scaler_of(self._plain(recipe))

    def design(self, recipe: Recipe, ridges: Mapping[str, float] | None = None) -> DesignMatrix:
        if self._few:
            known = self._moments.design(recipe, ridges)
            return self.standardised(recipe, known.scaler, known.whitening)
        plain = self._plain(recipe)
        scaler = scaler_of(plain)
        if ridges is not None:
            stretch = stretch_of(recipe, self.widths(recipe), ridges)
            scaler = Scaler(scaler.mean, scaler.scale * stretch.to(scaler.scale))
        return self.scaled_design(recipe, scaler, plain)

    def scaled_design(self, recipe: Recipe, scaler: Scaler, plain: Sequence[Tensor] | None = None) -> DesignMatrix:
        """The design matrix with a given standardisation of its columns."""
        rows = tuple(scaler(x) for x in (plain if plain is not None else self._plain(recipe)))
        return DesignMatrix(recipe, scaler, moments_of(rows), rows)

    def _plain(self, recipe: Recipe) -> list[Tensor]:
        return [self.columns(recipe, number) for number in range(len(self._features))]

    def columns(self, recipe: Recipe, number: int) -> Tensor:
        """One client's features of a recipe."""
        return _joined([self._features[number][f.name] for f in recipe.features], 1)

    def widths(self, recipe: Recipe) -> dict[str, int]:
        """The number of columns of every measured feature of a recipe."""
        return {f.name: self._features[0][f.name].shape[1] for f in recipe.features}

    def moments(self, number: int, x: Tensor) -> list[Moments]:
        """One client's moments of features ``x``: in every fold and, where not all parts are held out, in the rest."""
        y, masks = self._labels[number], self._holdout.masks(self._parts[number])
        return [Moments.of(x[mask], y[mask], 0, 1, len(self.facts.classes)) for mask in masks]

    def own_loss(self, number: int, x: Tensor, folds: Sequence[Tensor]) -> float:
        """The log-loss of one client's classes: that of every sample of ``x`` by the fit that did not see it."""
        y, part = self._labels[number], self._parts[number]
        samples = [Sample(x[part == fold], y[part == fold]) for fold in range(len(folds))]
        return sum(float(client_scores(*each)["loss"]) for each in zip(samples, folds, strict=True))

    @cached_property
    def _moments(self) -> MemberMoments:
        """Every client's moments as its site would send them: without its classes."""
        clients = [
            site_moments(self.columns(self._measured, i), self._holdout.masks(part))
            for i, part in enumerate(self._parts)
        ]
        return MemberMoments(clients, self.widths(self._measured))

    def standardised(self, recipe: Recipe, scaler: Scaler, whitening: Whitening | None) -> DesignMatrix:
        """The design matrix with a given standardisation and whitening."""
        return DesignMatrix(recipe, scaler, whitening, tuple(scaler(x) for x in self._plain(recipe)))

    def held_out_figures(self, design: DesignMatrix, folds: Sequence[Tensor], target: Target) -> tuple[float, float]:
        """The temperature of fits on what each did not see, and the share of it that they get right."""
        each = zip(self.held_out_logits(design, folds), self._targets(target), strict=True)
        seen = [(logits[mask], y[mask]) for logits, y, mask in ((z, y, ~z[:, 0].isnan()) for z, y in each)]
        logits, y = (torch.cat(parts) for parts in zip(*seen, strict=True))
        right = float((logits.argmax(1) == y).double().mean())
        return solve_temperature(lambda scale: client_slopes(logits, y, scale)), right

    def batches(self, jobs: Iterable[Job]) -> Iterator[Sequence[Job]]:
        """One after another: only one design matrix is in memory besides the best one."""
        return ([job] for job in jobs)

    def gradients(
        self, requests: Mapping[str, FitRequest], points: Mapping[str, Tensor]
    ) -> dict[str, dict[int, ClientSums]]:
        return {key: {0: client_gradient(self._sample(r, False), points[key])} for key, r in requests.items()}

    def scores(self, requests: Mapping[str, FitRequest], points: Mapping[str, Tensor]) -> dict[str, ClientSums]:
        return {key: client_scores(self._sample(r, True), points[key]) for key, r in requests.items()}

    def at_zero(self, request: FitRequest) -> tuple[dict[int, ClientSums], ClientSums]:
        answers, scores = self._moments.at_zero(request)
        return {0: add(list(answers.values()))}, scores

    def evaluate(
        self, requests: Mapping[str, FitRequest], points: Mapping[str, Tensor], curved: Collection[str]
    ) -> tuple[dict[str, dict[int, ClientSums]], dict[str, ClientSums]]:
        gradients: dict[str, dict[int, ClientSums]] = {}
        scores: dict[str, ClientSums] = {}
        alike = {key: (id(request.design), request.target, request.fold) for key, request in requests.items()}
        for keys in grouped(alike).values():
            request, tried = requests[keys[0]], [points[key] for key in keys]
            sample = self._sample(request, False)
            for key, point, sums in zip(keys, tried, client_gradients(sample, tried), strict=True):
                gradients[key] = {0: sums | (client_hessian(sample, point) if key in curved else {})}
            if request.fold is not None:
                scores |= zip(keys, client_scores_at(self._sample(request, True), tried), strict=True)
        return gradients, scores

    def score_scatter(self, request: FitRequest, point: Tensor) -> ClientSums:
        samples = map(Sample, request.design.rows, self._targets(request.target))
        subjects = (client.train.subject_of_sample.repeat(self.crops) for client in self.federation.clients)
        return add(
            [client_score_scatter(sample, point, whose) for sample, whose in zip(samples, subjects, strict=True)]
        )

    def held_out_router(self, design: DesignMatrix, folds: Sequence[Tensor], point: Tensor) -> LocalHeldOut:
        test, trunk = self._test, self._trunk
        columns = test.views.mean(test.x, lambda view: extract(design.recipe, trunk.net, trunk.leaves, view))
        rows = design.scaler(_joined([columns[f.name] for f in design.recipe.features], 1))

        def tested(number: int) -> tuple[Tensor, Tensor]:
            own = rows[test.origin == number]
            return own, logits_at(own, point)

        logits = self.held_out_logits(design, folds)
        return LocalHeldOut(design.rows, logits, OnDemand(len(self.federation), tested), self.federation.clients)

    def corrections(self, design: DesignMatrix, probes: Sequence[Tensor]) -> Corrections:
        if self._few:
            return OwnCorrections(self.facts.names, partial(self.each, design), probes, FINE_ROUNDS, self._remaining)
        return LocalCorrections(self.facts.names, partial(self.each, design), design, probes, self._part_bytes)

    def _remaining(self, fold: int | None) -> int:
        """How many samples a fit without a fold sees, as sites compute it: they do not know each other's subjects."""
        return self.crops * sum(self._holdout.remaining(size, fold) for size in self.facts.sizes)

    def held_out_classes(self, heads: HeldOutHeads, router: HeldOutRouter, temperature: float) -> LocalClasses:
        """The answers of the probe, of all corrected heads as the router mixes them, and of the joint model."""
        assert isinstance(router, LocalHeldOut)
        clients = len(self.facts.names)
        weights = OnDemand(clients, lambda number: (router.logits[number] / temperature).log_softmax(1))
        answers = {
            "global_probe": [z.log_softmax(1) for z in self.held_out_logits(heads.design, heads.probes)],
            "refit_all": [
                _spread(consult(w[seen], a), seen)
                for w, (seen, a) in zip(weights, self._held_out_answers(heads), strict=True)
            ],
        }
        if heads.joints is not None:
            joint = self.held_out_logits(heads.design, heads.joints)
            answers["joint"] = [joint_classes(logits, clients) for logits in joint]
        stacks = {"stacked": list(answers)}
        if self._published:
            # The published heads were trained on these very samples: this stack trusts them too much.
            answers["consult_all"] = [consult(w, p) for w, p in zip(weights, self._published, strict=True)]
            stacks["stacked_published"] = list(answers)
        return LocalClasses(stacks, answers, self._labels)

    def judge(self, design: DesignMatrix, heads: HeldOutHeads) -> Judged:
        """Answers by the trained models where there are any, else by the refitted heads.

        A client's own samples are always answered by its refitted head without their fold: its trained model has
        learned them. No other client's head has.
        """
        each = []
        for number, (seen, refitted) in enumerate(self._held_out_answers(heads)):
            y, answers = self._labels[number], refitted
            if self._published:
                answers = self._published[number][:, seen]
                answers[number] = refitted[number]
            part = self._drawn(JUDGED, number)[seen]
            each.append((design.rows[number][seen], (answers.argmax(-1) == y[seen]).T, part))
        return Judged(*(torch.cat(tensors) for tensors in zip(*each, strict=True)))

    def held_out_logits(self, design: DesignMatrix, folds: Sequence[Tensor]) -> Sequence[Tensor]:
        """Every client's logits by the fit that did not see the sample; NaN for samples that no fit held out."""

        def logits_of(number: int) -> Tensor:
            x, part = design.rows[number], self._parts[number]
            logits = torch.full((len(x), len(folds[0])), torch.nan, dtype=torch.float64, device=x.device)
            for fold, point in enumerate(folds):
                inside = part == fold
                logits[inside] = logits_at(x[inside], point)
            return logits

        return OnDemand(len(design.rows), logits_of)

    def each(self, design: DesignMatrix, fold: int | None, inside: bool = False) -> list[Sample]:
        """Every client's samples with their classes: all of them, or those inside or outside a fold."""
        samples = [Sample(x, y) for x, y in zip(design.rows, self._labels, strict=True)]
        if fold is None:
            return samples
        return [sample.rows((part == fold) == inside) for sample, part in zip(samples, self._parts, strict=True)]

    def _sample(self, request: FitRequest, inside: bool) -> Sample:
        """All clients' samples that a request is fitted on, or that it holds out, as those of one client."""
        return self._samples.get(
            request.design, (request.target, request.fold, inside), lambda: self._pooled(request, inside)
        )

    def _pooled(self, request: FitRequest, inside: bool) -> Sample:
        each = self.each(request.design, request.fold, inside)
        targets = self._targets(request.target)
        if request.fold is not None:
            targets = [y[(p == request.fold) == inside] for y, p in zip(targets, self._parts, strict=True)]
        sample = pooled([Sample(sample.x, y) for sample, y in zip(each, targets, strict=True)])
        return sample.double() if self._few else sample  # as sites compute

    def _targets(self, target: Target) -> list[Tensor]:
        return [target_of(target, i, y, len(self.facts.classes)) for i, y in enumerate(self._labels)]

    def _held_out_answers(self, heads: HeldOutHeads) -> Iterator[tuple[Tensor, Tensor]]:
        """Of every client which samples are held out, and log class probabilities [m, n, K] of them by all heads."""
        clients, classes = len(self.facts.names), len(heads.probes[0])
        # All heads of a fold as one point: a small product for each of many clients takes far longer.
        each = zip(heads.probes, heads.corrections, strict=True)
        points = [probe.repeat(clients, 1) + corrections for probe, corrections in each]
        for x, part in zip(heads.design.rows, self._parts, strict=True):
            seen = part < len(points)
            own, fold_of = x[seen], part[seen]
            answers = torch.empty((clients, len(own), classes), dtype=torch.float64, device=x.device)
            for fold, point in enumerate(points):
                inside = fold_of == fold
                logits = logits_at(own[inside], point).view(-1, clients, classes)
                answers[:, inside] = logits.log_softmax(-1).transpose(0, 1)
            yield seen, answers


def _joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    """The parts as one; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=axis)


def _spread(values: Tensor, seen: Tensor) -> Tensor:
    """The values of the samples that are seen as rows of all, NaN for the others."""
    out = values.new_full((len(seen), *values.shape[1:]), torch.nan)
    out[seen] = values
    return out


class _SampleCache:
    """Pooled samples of one design matrix. Those of the matrix before are dropped: they take as much memory as it."""

    def __init__(self) -> None:
        self._design: DesignMatrix | None = None
        self._samples: dict[tuple[Target, int | None, bool], Sample] = {}

    def get(self, design: DesignMatrix, key: tuple[Target, int | None, bool], make: Callable[[], Sample]) -> Sample:
        if design is not self._design:
            self._design, self._samples = design, {}
        if key not in self._samples:
            self._samples[key] = make()
        return self._samples[key]


def training_view(client: Client, number: int, crop: RandomResizedCrop | None, seed: int, copy: int = 0) -> Tensor:
    """A client's training samples as the network sees them, with the ``copy``-th draw of crops where there are any."""
    boxes = None
    if crop is not None:
        height, width = client.train.x.shape[-2:]
        generator = generator_for(seed, ROUTER, number, copy)
        boxes = crop.boxes(len(client.train), height, width, generator).to(client.train.x.device)
    return client.view(client.train.x, boxes)


def target_of(target: Target, client: int, y: Tensor, classes: int) -> Tensor:
    """The labels of a client's samples for what a fit tells apart."""
    if target == "client":
        return torch.full_like(y, client)
    return y if target == "class" else joint_label(client, y, classes)
