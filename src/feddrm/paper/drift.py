"""Relative gradient drift of the two heads under FedAvg, on a random embedding (the paper's figure).

The paper does not define "relative" and its code is not released. Here it is the root of
G^2 = sum_i w_i |grad_i - grad|^2 over the norm of the pooled gradient, round by round, for linear class
and client heads on the same random features: 10 classes, 3 clients.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
CLASSES, CLIENTS, WIDTH, SAMPLES = 10, 3, 32, 600
ROUNDS, STEPS, RATE, ALPHA = 100, 10, 0.1, 0.3


class Drift(NamedTuple):
    """Per round: relative drift of the class head and of the client head."""

    classes: Array
    clients: Array


def gradient_drift(seed: int = 2025, rounds: int = ROUNDS) -> Drift:
    """Train both heads by FedAvg and measure at the start of every round."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, WIDTH))
    moves = rng.normal(size=(CLIENTS, WIDTH))
    features, labels = [], []
    for client in range(CLIENTS):
        y = rng.choice(CLASSES, SAMPLES, p=rng.dirichlet(np.full(CLASSES, ALPHA)))
        x = centres[y] + moves[client] + rng.normal(size=(SAMPLES, WIDTH))
        features.append(np.hstack([x, np.ones((SAMPLES, 1))]))
        labels.append(y)
    tasks = {
        "classes": ([np.eye(CLASSES)[y] for y in labels], np.zeros((WIDTH + 1, CLASSES))),
        "clients": ([np.eye(CLIENTS)[[i] * SAMPLES] for i in range(CLIENTS)], np.zeros((WIDTH + 1, CLIENTS))),
    }
    found = {}
    for name, (targets, weights) in tasks.items():
        found[name] = np.empty(rounds)
        for number in range(rounds):
            found[name][number] = relative_drift(features, targets, weights)
            weights = np.mean([_local(x, t, weights) for x, t in zip(features, targets, strict=True)], axis=0)
    return Drift(**found)


def _gradient(x: Array, target: Array, weights: Array) -> Array:
    logits = x @ weights
    likely = np.exp(logits - logits.max(1, keepdims=True))
    gradient: Array = x.T @ (likely / likely.sum(1, keepdims=True) - target) / len(x)
    return gradient


def relative_drift(features: list[Array], targets: list[Array], weights: Array) -> float:
    """Root of G^2 over the norm of the pooled gradient, for clients of equal size."""
    each = np.stack([_gradient(x, t, weights) for x, t in zip(features, targets, strict=True)])
    pooled = each.mean(0)
    squared = float(np.square(each - pooled).sum((1, 2)).mean())
    return float(np.sqrt(squared) / np.linalg.norm(pooled))


def _local(x: Array, target: Array, weights: Array) -> Array:
    for _ in range(STEPS):
        weights = weights - RATE * _gradient(x, target, weights)
    return weights
