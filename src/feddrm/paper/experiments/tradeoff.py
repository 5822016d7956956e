"""The lambda trade-off: how the weighting of the two losses changes the errors, on fixed embeddings.

The data come from a true pair of multinomial logistic models. FedAvg takes E full-gradient steps on
``(1 - lambda) client loss + lambda class loss + rho / 2 ||zeta||^2``, at the largest rate that the theorem allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddrm.drm.basis import Floats
from feddrm.drm.logistic import information, log_softmax, maximise
from feddrm.errors import SettingError
from feddrm.paper.experiments.descent import Head

CLIENTS, CLASSES, DIMENSION = 3, 10, 4
LAMBDAS = tuple(round(0.1 * i, 1) for i in range(1, 10))


@dataclass(frozen=True)
class World:
    """One simulated data set and its true coefficients, centred: only differences between rows matter."""

    x: Floats  # a constant first
    client: NDArray[np.intp]
    label: NDArray[np.intp]
    true_client: Floats
    true_class: Floats

    @staticmethod
    def draw(size: int, truth_seed: int, seed: int) -> World:
        truth, rng = np.random.default_rng(truth_seed), np.random.default_rng((truth_seed, seed))
        heads = [0.5 * truth.normal(size=(rows, 1 + DIMENSION)) for rows in (CLIENTS, CLASSES)]
        x = np.hstack([np.ones((size, 1)), rng.normal(size=(size, DIMENSION))])
        drawn = [(x @ head.T + rng.gumbel(size=(size, len(head)))).argmax(1) for head in heads]
        return World(x, drawn[0], drawn[1], *(head - head.mean(0) for head in heads))

    def minimisers(self, lam: float, ridge: float) -> tuple[Floats, Floats]:
        """Both heads of the penalised pooled loss. The heads do not interact: lambda only rescales the ridge."""
        out = []
        for outcome, share in ((self.client, 1 - lam), (self.label, lam)):
            penalty = len(self.x) * ridge / share * np.eye(self.x.shape[1])
            names = tuple(str(i) for i in range(int(outcome.max()) + 1))
            coefficients = maximise(self.x, outcome, names, penalty).coefficients
            out.append(coefficients - coefficients.mean(0))
        return out[0], out[1]

    def lemma_variance(self) -> tuple[float, float]:
        """The trace of the inverse Fisher information of the centred coefficients, for each head."""
        traces = []
        for truth in (self.true_client, self.true_class):
            p = np.exp(log_softmax(self.x @ truth.T))
            rows, k = truth.shape
            inverse = np.linalg.inv(information(self.x, p, np.zeros((k, k)))).reshape(rows - 1, k, rows - 1, k)
            centre = (np.eye(rows) - 1 / rows)[:, 1:]
            traces.append(float(np.einsum("ra,akbk,rb->", centre, inverse, centre)))
        return traces[0], traces[1]


@dataclass(frozen=True)
class Tradeoff:
    """One entry per lambda."""

    lambdas: Floats
    floor: Floats  # ||zeta^T - minimiser||^2 after the last round
    bound: Floats  # of the theorem
    drift_client: Floats  # largest G^2 over the rounds
    drift_class: Floats
    error: dict[float, dict[str, Floats]]  # ridge -> head -> mean ||minimiser - truth||^2 over data sets
    lemma: dict[str, Floats]  # the unpenalised error according to the lemma
    settings: dict[str, float]

    def facts(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "settings": self.settings,
            "lambda": self.lambdas.tolist(),
            "floor": self.floor.tolist(),
            "bound": self.bound.tolist(),
            "drift_client": self.drift_client.tolist(),
            "drift_class": self.drift_class.tolist(),
            "statistical_error": [
                {"ridge": ridge, **{head: curve.tolist() for head, curve in heads.items()}}
                for ridge, heads in self.error.items()
            ],
            "lemma": {head: curve.tolist() for head, curve in self.lemma.items()},
        }


def tradeoff_experiment(
    *, rounds: int = 150, local_steps: int = 10, ridge: float = 0.05, size: int = 500, worlds: int = 10, seed: int = 0
) -> Tradeoff:
    """Compare FedAvg's floor with the theorem's bound, and the statistical error with the lemma's."""
    if not (rounds > 0 and local_steps > 0 and ridge > 0 and size >= 200 and worlds > 0):
        raise SettingError("rounds, local steps, ridge and worlds must be positive, and size at least 200")
    lambdas = np.array(LAMBDAS)
    world = World.draw(size, seed, 0)
    heads = {
        "client": (Head.of(world.x, world.client, world.client, CLIENTS), 1 - lambdas),
        "class": (Head.of(world.x, world.label, world.client, CLASSES), lambdas),
    }
    smooth = max(head.smoothness() for head, _ in heads.values()) * np.maximum(lambdas, 1 - lambdas) + ridge
    rate = 1 / (4 * smooth * local_steps)
    optima = [np.stack(both) for both in zip(*(world.minimisers(lam, ridge) for lam in LAMBDAS), strict=True)]
    floor = np.zeros_like(lambdas)
    drift = {}
    for (name, (head, share)), optimum in zip(heads.items(), optima, strict=True):
        # FedAvg starts at the minimiser, so all distance comes from drift and the theorem's first term is zero.
        path = [optimum]
        path += head.rounds(optimum, rounds, local_steps, rate[:, None, None, None], share[:, None, None, None], ridge)
        floor += ((path[-1] - optimum) ** 2).sum((-1, -2))
        drift[name] = np.max([head.drift(weights) for weights in path[:-1]], axis=0)
    total = (1 - lambdas) ** 2 * drift["client"] + lambdas**2 * drift["class"]
    bound = (rate * local_steps) ** 2 * total / (1 - (1 - rate * ridge) ** local_steps)
    lemma = world.lemma_variance()
    return Tradeoff(
        lambdas,
        floor,
        bound,
        drift["client"],
        drift["class"],
        {rho: _errors(rho, size, worlds, seed) for rho in (0.0, ridge)},
        {"client": lemma[0] / (1 - lambdas), "class": lemma[1] / lambdas},
        {"rounds": rounds, "local_steps": local_steps, "ridge": ridge, "size": size, "worlds": worlds, "seed": seed},
    )


def _errors(ridge: float, size: int, worlds: int, seed: int) -> dict[str, Floats]:
    """Mean squared distance of the minimisers from the truth, over independent data sets."""
    squares = np.zeros((2, len(LAMBDAS)))
    for number in range(1, worlds + 1):
        world = World.draw(size, seed, number)
        truth = (world.true_client, world.true_class)
        for i, lam in enumerate(LAMBDAS):
            if ridge == 0 and i > 0:  # without a ridge, the fit does not depend on lambda
                squares[:, i] = squares[:, 0]
                continue
            for head, minimiser in enumerate(world.minimisers(lam, ridge)):
                squares[head, i] += ((minimiser - truth[head]) ** 2).sum()
    return {"client": squares[0] / worlds, "class": squares[1] / worlds}
