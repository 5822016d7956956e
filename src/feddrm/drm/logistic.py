"""The dual problem: multinomial logistic regression of the population on the basis, solved to rounding error.

Newton's method works in whitened coordinates (pooled mean 0, pooled covariance 1), so the scales of the basis
functions do not matter; the solution is transformed back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from feddrm.drm.basis import Floats
from feddrm.drm.separation import separated_pairs
from feddrm.errors import FeddrmError

MOST_DENSE = 1500  # with more unknowns, conjugate gradients replace a factorised Hessian
MOST_CELLS = 4_000_000  # of an intermediate table
MOST_STEPS = 200
SUSPICIOUS = 25  # steps; Newton needs about ten if there is a finite optimum
SETTLED = 1e-6  # the largest change of a log ratio in the last step


@dataclass(frozen=True)
class FeatureWhitening:
    """The transformation ``z = (q - centre) @ directions``, which gives the pooled sample unit covariance."""

    centre: Floats
    directions: Floats

    @staticmethod
    def of(features: Floats, *, tolerate_dependence: bool) -> FeatureWhitening:
        """Directions in which the pooled features do not vary are dropped if tolerated, refused otherwise."""
        centre = features.mean(0)
        spread = features.std(0)
        constant = spread <= 1e-12 * np.maximum(1e-300, np.abs(features).max(0))
        scaled = (features - centre) / np.where(constant, 1.0, spread) * ~constant
        _, size, right = np.linalg.svd(scaled, full_matrices=False)
        # Far from 0, powers differ by less than their rounding.
        rounding = np.finfo(float).eps * np.abs(features).max(0) / np.where(constant, np.inf, spread)
        least = max(1e-10 * size.max(initial=0.0), 100 * rounding.max(initial=0.0) * np.sqrt(len(features)))
        varies = size > max(1e-10, least)
        if varies.sum() < features.shape[1] and not tolerate_dependence:
            raise FeddrmError(
                f"only {varies.sum()} of the {features.shape[1]} basis functions are independent on these samples: "
                f"take fewer (basis identity, or a function of yours), or a ridge above 0; of numbers far from 0, "
                f"subtract their mean first"
            )
        directions = right[varies].T / size[varies] * np.sqrt(len(features)) / np.where(constant, 1.0, spread)[:, None]
        return FeatureWhitening(centre, directions)

    def design(self, features: Floats) -> Floats:
        """A leading column of ones, then the whitened features."""
        z = (features - self.centre) @ self.directions
        return np.hstack([np.ones((len(z), 1)), z])

    @property
    def back(self) -> Floats:
        """The matrix that transforms (intercept, slopes) from whitened coordinates to those of the basis."""
        d, r = self.directions.shape
        matrix = np.zeros((1 + d, 1 + r))
        matrix[0, 0] = 1.0
        matrix[0, 1:] = -self.centre @ self.directions
        matrix[1:, 1:] = self.directions
        return matrix


@dataclass(frozen=True)
class Optimum:
    """The maximum: one row of (intercept, slopes) per population, the first row zero."""

    coefficients: Floats
    posterior: Floats  # of every pooled observation, one column per population
    log_likelihood: float


def maximise(design: Floats, owner: NDArray[np.intp], names: tuple[str, ...], penalty: Floats) -> Optimum:
    """Newton's method with a line search.

    ``penalty`` is the matrix M of the ridge term ``sum_l (b_l - mean b)' M (b_l - mean b) / 2``, which does not
    depend on the choice of the reference. Without a penalty there may be no finite maximum; that is an error.
    """
    problem = _Problem(design, owner, len(names), penalty)
    b = np.zeros((len(names) - 1, design.shape[1]))
    counts = np.bincount(owner, minlength=len(names))
    b[:, 0] = np.log(counts[1:] / counts[0])
    value, posterior = problem.value(b)
    tolerance = 1e-12 * len(owner)
    moved = np.inf
    for step in range(1, MOST_STEPS + 1):
        gradient = problem.gradient(b, posterior)
        if np.abs(gradient).max() <= tolerance and moved <= SETTLED:
            break
        direction = problem.newton_direction(gradient, posterior)
        if not penalty.any():
            _refuse_if_all_classified(posterior, owner, names)
            if step == SUSPICIOUS:
                _refuse_if_separated(design, owner, names, direction)
        slope = float((gradient * direction).sum())
        size = 1.0
        while True:
            trial, trial_posterior = problem.value(b + size * direction)
            # Near the optimum the gain is smaller than rounding errors: accept such a small step.
            if trial <= value + 1e-4 * size * slope + 1e-13 * abs(value) or size < 1e-10:
                break
            size /= 2
        moved = size * float(np.ptp(design @ direction.T, axis=0).max(initial=0.0))
        b, value, posterior = b + size * direction, trial, trial_posterior
    else:
        raise FeddrmError(
            f"the density ratio model did not converge in {MOST_STEPS} steps (score {np.abs(gradient).max():.1e}); the "
            f"basis may separate populations perfectly: give a ridge, or a larger one, or fewer basis functions"
        )
    coefficients = np.vstack([np.zeros(design.shape[1]), b])
    own = np.take_along_axis(problem.log_posterior(b), owner[:, None], 1)
    return Optimum(coefficients, posterior, float(own.sum()))


def information(design: Floats, posterior: Floats, penalty: Floats) -> Floats:
    """Minus the second derivative of the penalised log likelihood; the first population is the reference."""
    m, k = posterior.shape[1] - 1, design.shape[1]
    if m * k > 4 * MOST_DENSE:
        raise FeddrmError(
            f"standard errors of {m * k} parameters would need a matrix of that size: take fewer basis functions"
        )
    out = np.zeros((m * k, m * k))
    blocks = out.reshape(m, k, m, k)  # a view
    rows = max(1, MOST_CELLS // (m * k))
    for start in range(0, len(design), rows):
        z, p = design[start : start + rows], posterior[start : start + rows, 1:]
        weighted = p[:, :, None] * z[:, None, :]
        flat = weighted.reshape(len(z), m * k)
        out -= flat.T @ flat
        for a in range(m):
            blocks[a, :, a, :] += weighted[:, a].T @ z
    share = np.eye(m) - 1 / (m + 1)
    blocks += share[:, None, :, None] * penalty[None, :, None, :]
    return out


def log_softmax(logits: Floats) -> Floats:
    """Logarithm of the softmax of each row. SciPy's has ten times the overhead, which dominates a small fit."""
    shifted = logits - logits.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


@dataclass(frozen=True)
class _Problem:
    """Minus the penalised log likelihood as a function of the rows after the first."""

    design: Floats
    owner: NDArray[np.intp]
    populations: int
    penalty: Floats

    def log_posterior(self, b: Floats) -> Floats:
        logits = np.hstack([np.zeros((len(self.design), 1)), self.design @ b.T])
        return log_softmax(logits)

    def value(self, b: Floats) -> tuple[float, Floats]:
        logs = self.log_posterior(b)
        fit = -float(np.take_along_axis(logs, self.owner[:, None], 1).sum())
        return fit + 0.5 * float((b * self._ridge_gradient(b)).sum()), np.exp(logs)

    def _ridge_gradient(self, b: Floats) -> Floats:
        """The derivative of the ridge term, which draws slopes to their mean over all populations."""
        return np.asarray((b - b.sum(0) / self.populations) @ self.penalty)

    def gradient(self, b: Floats, posterior: Floats) -> Floats:
        residual = posterior.copy()
        residual[np.arange(len(self.owner)), self.owner] -= 1
        return np.asarray(residual[:, 1:].T @ self.design + self._ridge_gradient(b))

    def newton_direction(self, gradient: Floats, posterior: Floats) -> Floats:
        if gradient.size <= MOST_DENSE:
            matrix = information(self.design, posterior, self.penalty)
            # For separated data the matrix tends to zero; this small diagonal keeps it invertible.
            matrix[np.diag_indices_from(matrix)] += 1e-14 * np.trace(matrix) / len(matrix) + 1e-300
            try:
                return np.asarray(-cho_solve(cho_factor(matrix), gradient.ravel()).reshape(gradient.shape))
            except np.linalg.LinAlgError:
                return -gradient / max(1.0, float(np.abs(gradient).max()))

        def times(v: Floats) -> Floats:
            along = self.design @ v.T
            p = posterior[:, 1:]
            return np.asarray(
                (p * (along - (p * along).sum(1, keepdims=True))).T @ self.design + self._ridge_gradient(v)
            )

        size = float(np.linalg.norm(gradient))
        return _conjugate_gradients(times, -gradient, size * min(0.1, (size / len(self.owner)) ** 0.5))


def _conjugate_gradients(times: Callable[[Floats], Floats], goal: Floats, tolerance: float) -> Floats:
    """Solve ``times(x) = goal`` until the residual is below the tolerance or the curvature is not positive."""
    x = np.zeros_like(goal)
    residual = goal.copy()
    direction = residual.copy()
    square = float((residual * residual).sum())
    for _ in range(goal.size):
        image = times(direction)
        curvature = float((direction * image).sum())
        if square**0.5 <= tolerance or curvature <= 0:
            break
        size = square / curvature
        x += size * direction
        residual -= size * image
        previous, square = square, float((residual * residual).sum())
        direction = residual + square / previous * direction
    return x if x.any() else goal


def _refuse_if_all_classified(posterior: Floats, owner: NDArray[np.intp], names: tuple[str, ...]) -> None:
    """If every observation is classified correctly, larger coefficients always increase the likelihood."""
    own = np.take_along_axis(posterior, owner[:, None], 1)
    if ((posterior >= own).sum(1) == 1).all():
        _refuse("all populations" if len(names) > 2 else f"'{names[0]}' and '{names[1]}'")


def _refuse_if_separated(design: Floats, owner: NDArray[np.intp], names: tuple[str, ...], direction: Floats) -> None:
    if pairs := separated_pairs(design, owner, np.vstack([np.zeros(design.shape[1]), direction])):
        first, second = (names[i] for i in pairs[0])
        _refuse(f"'{first}' and '{second}'" + (f" (and {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""))


def _refuse(which: str) -> NoReturn:
    raise FeddrmError(
        f"the basis separates {which} perfectly, so the fit has no finite optimum: "
        f"give a ridge (ridge=1.0, or --ridge 1.0), or fewer basis functions"
    )
