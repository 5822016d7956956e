"""The cohort protocol: the clients as a router's fit sees them.

A fit asks a cohort for sums and gets sums. A :class:`~feddrm.router.fit.local_cohort.LocalCohort` holds all samples
and pools them for speed. A remote cohort sends messages to sites that hold the samples. The fit is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from feddrm.data import Federation
from feddrm.data.query_views import QueryViews
from feddrm.methods import Tensors
from feddrm.models import Net
from feddrm.moments.score_test import SampleMoments
from feddrm.router.features.base import Recipe
from feddrm.router.features.decorrelated_inputs import DecorrelatedInputs
from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.features.roughness import RoughnessRange
from feddrm.router.fit.ridge_path import Chosen
from feddrm.router.settings import Holdout
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.router.solver.problem import Problem, Scaler
from feddrm.tables.table_schema import TableSchema
from feddrm.tasks import CLASSIFICATION, Task

Job = tuple[DesignMatrix, Sequence[float]]  # ridge strengths to be tried on a design matrix
Target = Literal["client", "class", "pair"]  # what a fit tells apart; a pair is a client and a class


@dataclass(frozen=True)
class Facts:
    """What the server knows of the clients before it asks them anything."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]  # training samples
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    scale: tuple[tuple[float, ...], tuple[float, ...]]  # mean and std of the network's input
    own_scales: bool = False  # whether clients scale raw samples each in its own way
    columns: tuple[str, ...] | None = None
    schema: TableSchema | None = None
    query_views: QueryViews = field(default_factory=QueryViews)
    task: Task = CLASSIFICATION

    @classmethod
    def of(cls, federation: Federation) -> Facts:
        """What a server would know of this federation's clients."""
        view = federation.clients[0].view  # the first client's, where clients scale each in its own way
        return cls(
            names=federation.names,
            sizes=tuple(federation.sizes.tolist()),
            classes=federation.classes,
            shape=federation.shape,
            scale=(view.mean, view.std),
            own_scales=len({(client.view.mean, client.view.std) for client in federation.clients}) > 1,
            columns=federation.columns,
            schema=federation.schema,
            query_views=federation.query_views,
            task=federation.task,
        )

    @property
    def samples(self) -> int:
        return sum(self.sizes)

    @property
    def log_prior(self) -> Tensor:
        """The logarithms of n_i / N."""
        return (torch.tensor(self.sizes).double() / self.samples).log()


@dataclass(frozen=True, eq=False)
class Trunk:
    """The network as far as the server holds it: leaves by name, and the module that computes with them."""

    net: Net | None
    leaves: Tensors


@dataclass(frozen=True, eq=False)
class FitRequest:
    """One fit: what it tells apart, on which features, without which fold, from which point."""

    design: DesignMatrix
    target: Target
    problem: Problem
    fold: int | None
    start: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Confidence:
    """How sure a router is of samples that nothing was fitted on, by rule."""

    top: Mapping[str, Tensor]  # weight of every sample's best client
    own: Mapping[str, tuple[Tensor, Tensor]]  # log-weights of the samples' own clients, with subject_shares
    strangest: float  # the largest strangeness of a held-out sample
    reference: SampleMoments | None = None  # for drift; None where the samples are elsewhere
    roughness: RoughnessRange | None = None  # of the training pictures; None for tables


@dataclass(frozen=True, eq=False)
class HeldOutHeads:
    """Fitted class heads of every fold, on one design matrix."""

    design: DesignMatrix
    probes: Sequence[Tensor]
    corrections: Sequence[Tensor]  # empty where they stay with their clients
    joints: Sequence[Tensor] | None
    probe_ridge: float
    correction_ridge: float


@dataclass(frozen=True, eq=False)
class Judged:
    """Held-out samples that every client has answered, and whether its answer was right."""

    x: Tensor  # [n, d] the router's standardised features
    right: Tensor  # [n, m] bool
    part: Tensor  # [n] by which they are held out in turn; the crops of a sample share it


class HeldOutRouter(Protocol):
    """The router's scores of held-out samples, each by the fit that did not see the sample, and of test samples."""

    def slopes(self, scale: float) -> ClientSums:
        """Slope and curvature of the held-out loss at an inverse temperature."""

    def confidence(self, temperature: float, log_prior: Tensor, inputs: DecorrelatedInputs | None = None) -> Confidence:
        """Weights of test samples by every rule; of the held-out ones of a client without test samples.

        ``inputs`` are those that the strangeness is measured on.
        """


class Corrections(Protocol):
    """The fits of every client's private correction of the probe."""

    def scores(self, ridge: float, starts: Sequence[Tensor | None]) -> tuple[Sequence[Tensor], Sequence[ClientSums]]:
        """Per fold the corrections, where they are here, and their scores on held-out samples."""

    def keep(self, chosen: Chosen, probe: Tensor, rounds: int) -> Mapping[str, Tensor]:
        """Fit on all samples with the chosen ridge; corrections by client where they are here, none elsewhere."""


class HeldOutClasses(Protocol):
    """Class probabilities of held-out samples by several models, each by the fit that did not see the sample."""

    @property
    def stacks(self) -> Mapping[str, Sequence[str]]:
        """The stacks that can be fitted, with the names of their models."""

    def curves(self, models: Sequence[str]) -> Callable[[Tensor], ClientSums]:
        """Loss, slope and curvature of the stack of these models, as a function of its weights."""


class Cohort(Protocol):
    """Clients that answer the questions of a fit."""

    facts: Facts
    members: int  # how many answers a question gets; pooled clients answer as one
    noise: float  # relative error of their losses
    like: Tensor  # an empty tensor of the type and on the device of the fitted parameters
    crops: int  # of every training sample
    left_out: list[str]  # lines about what is too large to be asked

    def measure(self, recipe: Recipe, trunk: Trunk, holdout: Holdout) -> None:
        """Compute the features of a recipe on all training samples."""

    def some(self, clients: int) -> Cohort:
        """So many of the clients, drawn at random, for fits that compare; all of them where none can be left out."""

    def scaler(self, recipe: Recipe) -> Scaler:
        """Pooled means and deviations of some of the measured features."""

    def design(self, recipe: Recipe, ridges: Mapping[str, float] | None = None) -> DesignMatrix:
        """The design matrix of some of the measured features; ``ridges`` are those that suit each feature alone."""

    def batches(self, jobs: Iterable[Job]) -> Iterator[Sequence[Job]]:
        """The jobs that are worked on side by side."""

    def gradients(
        self, requests: Mapping[str, FitRequest], points: Mapping[str, Tensor]
    ) -> Mapping[str, Mapping[int, ClientSums]]:
        """Loss and gradient by request and number of the client that answered; clients may be missing."""

    def scores(self, requests: Mapping[str, FitRequest], points: Mapping[str, Tensor]) -> Mapping[str, ClientSums]:
        """Loss and correct answers on what each request holds out."""

    def at_zero(self, request: FitRequest) -> tuple[Mapping[int, ClientSums], ClientSums]:
        """Loss and gradient at zero by client, and the scores there; known from moments, without a question."""

    def evaluate(
        self, requests: Mapping[str, FitRequest], points: Mapping[str, Tensor], curved: Collection[str]
    ) -> tuple[Mapping[str, Mapping[int, ClientSums]], Mapping[str, ClientSums]]:
        """As the answer to one question: gradients, those of ``curved`` with second derivatives, and scores of folds.

        All clients answer, in float64.
        """

    def score_scatter(self, request: FitRequest, point: Tensor) -> ClientSums:
        """The sum of :func:`~feddrm.router.solver.hessian.client_score_scatter` over the clients, in float64."""

    def held_out_router(self, design: DesignMatrix, folds: Sequence[Tensor], point: Tensor) -> HeldOutRouter:
        """The scores of a router's fits; ``point`` is the one on all training samples."""

    def corrections(self, design: DesignMatrix, probes: Sequence[Tensor]) -> Corrections:
        """The corrections of the probes of every fold."""

    def held_out_classes(self, heads: HeldOutHeads, router: HeldOutRouter, temperature: float) -> HeldOutClasses:
        """The answers of class heads."""

    def judge(self, design: DesignMatrix, heads: HeldOutHeads) -> Judged:
        """Held-out samples with every client's answer."""
