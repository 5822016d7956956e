"""The density ratio model when every population sits at its own site: sites send sums, no observation leaves one.

The dual likelihood is a sum over observations. The router's solver (``router/solver``) finds its optimum from the
sites' losses and gradients; one or two Newton steps with the sites' second derivatives make it exact, and the same
message has the sums that standard errors need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from feddrm.drm.basis import BASES, Basis, Floats, check_basis, evaluate_basis, terms
from feddrm.drm.inference import Estimate, HypothesisTest
from feddrm.drm.logistic import information
from feddrm.errors import FeddrmError, SettingError
from feddrm.router.solver.client_statistics import (
    ClientSums,
    Sample,
    client_gradient,
    client_moments,
    client_sums,
    logits_at,
)
from feddrm.router.solver.lbfgs import Minimisation, first_state, minimise
from feddrm.router.solver.problem import Problem, Scaler, Whitening, add

MOST_POLISH = 10  # Newton's steps after the solver; two are usual
LARGEST_SPREAD = 50.0  # of log ratios, in pooled standard deviations: populations that the basis separates


class RemotePopulation(Protocol):
    """A population as the fit sees it: it answers with sums over its observations."""

    name: str

    def sums(self) -> ClientSums:
        """Number, sum and sum of squares of the basis functions."""

    def moments(self, scaler: Scaler) -> ClientSums:
        """The sum of products of the standardised basis functions."""

    def gradient(self, scaler: Scaler, number: int, point: Tensor) -> ClientSums:
        """Loss and gradient at a point [populations, functions + 1], as the ``number``-th population."""

    def curvature(self, scaler: Scaler, number: int, point: Tensor) -> Mapping[str, Floats]:
        """The second derivative, and the sums of the scores and of their products."""


@dataclass(frozen=True, eq=False)
class PopulationSite:
    """A site in this process, with its sample."""

    name: str
    sample: Any
    basis: Basis

    def sums(self) -> ClientSums:
        return client_sums(self._features)

    def moments(self, scaler: Scaler) -> ClientSums:
        return client_moments(scaler(self._features))

    def gradient(self, scaler: Scaler, number: int, point: Tensor) -> ClientSums:
        x = scaler(self._features)
        return client_gradient(Sample(x, torch.full((len(x),), number)), point)

    def curvature(self, scaler: Scaler, number: int, point: Tensor) -> Mapping[str, Floats]:
        x = scaler(self._features)
        posterior = logits_at(x, point).softmax(1).numpy()
        design = np.hstack([x.numpy(), np.ones((len(x), 1))])
        residual = (np.arange(len(point)) == number) - posterior
        scores = (residual[:, 1:, None] * design[:, None, :]).reshape(len(x), -1)
        blank = np.zeros((design.shape[1],) * 2)
        return {
            "information": information(design, posterior, blank),
            "scores": scores.sum(0),
            "products": scores.T @ scores,
        }

    @property
    def _features(self) -> Tensor:
        return torch.from_numpy(evaluate_basis(self.basis, self.sample))


@dataclass(frozen=True, eq=False)
class FederatedFit:
    """Tilts against the first population with errors, and the test that all are equal; from sums alone."""

    names: tuple[str, ...]
    counts: Floats
    terms: tuple[str, ...]
    tilts: Estimate  # one row (gamma dagger, xi) per population
    log_likelihood: float
    rounds: int  # messages of the solver to every site

    @property
    def homogeneity(self) -> HypothesisTest:
        """The likelihood ratio with its chi-square limit. A correction would need the observations."""
        null = float((self.counts * np.log(self.counts / self.counts.sum())).sum())
        statistic = max(0.0, 2 * (self.log_likelihood - null))
        degrees = (len(self.names) - 1) * len(self.terms)
        return HypothesisTest(" = ".join(self.names), statistic, degrees, float(chi2.sf(statistic, degrees)))


def fit_sites(
    sites: Sequence[RemotePopulation], basis: str, columns: Sequence[str] = ("x",), tolerance: float = 1e-9
) -> FederatedFit:
    """Fit by messages to the sites. The basis must be a named one: ``auto`` would have to see the observations."""
    check_basis(basis)
    if basis not in BASES:
        raise SettingError(f"basis '{basis}' cannot be agreed on over sites: give one of {', '.join(BASES)}")
    if len(sites) < 2:
        raise FeddrmError(f"a density ratio needs two populations, but there is {len(sites)}: give one more site")
    messages = [site.sums() for site in sites]
    counts = np.array([float(message["count"]) for message in messages])
    scaler = Scaler.of(add(messages))
    whitening = Whitening.of(add([site.moments(scaler) for site in sites]))
    width = len(scaler.mean)
    if (size := 1 + width) > counts.min():
        name = sites[int(counts.argmin())].name
        raise FeddrmError(
            f"site '{name}' has {counts.min():.0f} observations for the {size} parameters of its tilt: give more, or a "
            f"basis with fewer functions"
        )
    if float(whitening.values.min()) < 1e-10:
        raise FeddrmError("the basis functions are dependent on these samples: choose a basis with fewer functions")
    problem = Problem(len(sites), width, ridge=0.0)

    def gradients(points: Mapping[str, Tensor]) -> dict[str, dict[int, ClientSums]]:
        return {k: {i: site.gradient(scaler, i, p) for i, site in enumerate(sites)} for k, p in points.items()}

    task = Minimisation(problem, whitening, first_state(problem, len(sites)))
    state = minimise({"fit": task}, gradients, rounds=None, tolerance=tolerance, noise=1e-12)["fit"]
    point, answers = _polished(sites, scaler, whitening, state.iterate - state.iterate[0])
    loss = float(add([site.gradient(scaler, i, point) for i, site in enumerate(sites)])["loss"])
    tilts = _tilts(answers, counts, scaler, point)
    names = tuple(site.name for site in sites)
    return FederatedFit(names, counts, tuple(terms(basis, list(columns), width)), tilts, -loss, int(state.rounds))


def _polished(
    sites: Sequence[RemotePopulation], scaler: Scaler, whitening: Whitening, point: Tensor
) -> tuple[Tensor, list[Mapping[str, Floats]]]:
    """Newton's steps to the optimum, and the sites' answers there."""
    for _ in range(MOST_POLISH):
        answers = [site.curvature(scaler, i, point) for i, site in enumerate(sites)]
        if _spread(whitening, point) > LARGEST_SPREAD:
            break
        score = np.sum([answer["scores"] for answer in answers], axis=0)
        step = np.linalg.solve(np.sum([answer["information"] for answer in answers], axis=0), score)
        change = torch.from_numpy(step.reshape(len(sites) - 1, -1))
        if _spread(whitening, change) < 1e-10:
            return point, answers
        point = point.clone()
        point[1:] += change
    raise FeddrmError(
        "the fit over sites has no finite optimum: the basis may separate populations perfectly: choose a basis with "
        "fewer functions"
    )


def _spread(whitening: Whitening, point: Tensor) -> float:
    """How far log ratios reach from zero. Slopes of nearly dependent functions may be larger."""
    slopes = (point[:, :-1] @ whitening.vectors) * whitening.values.sqrt()
    return float(torch.hypot(slopes.norm(dim=1), point[:, -1]).max())


def _tilts(answers: Sequence[Mapping[str, Floats]], counts: Floats, scaler: Scaler, point: Tensor) -> Estimate:
    """Coefficients of the basis itself with sandwich errors, scores centred within populations."""
    inverse = np.linalg.inv(np.sum([answer["information"] for answer in answers], axis=0))
    middle = np.zeros_like(inverse)
    for answer, n in zip(answers, counts, strict=True):
        middle += n / (n - 1) * (answer["products"] - np.outer(answer["scores"], answer["scores"]) / n)
    scale, mean = scaler.scale.numpy(), scaler.mean.numpy()
    # From (slopes of standardised functions, intercept) to (intercept, slopes of the functions).
    back = np.vstack([np.append(-mean / scale, 1.0), np.column_stack([np.diag(1 / scale), np.zeros(len(scale))])])
    value = point.numpy() @ back.T
    value[:, 0] -= np.log(counts / counts[0])
    whole = np.kron(np.eye(len(counts) - 1), back)
    error = np.zeros_like(value)
    error[1:] = np.sqrt(np.diag(whole @ inverse @ middle @ inverse @ whole.T)).reshape(len(counts) - 1, -1)
    return Estimate(value, error)
