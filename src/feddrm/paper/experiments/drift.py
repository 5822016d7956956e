"""The gradient-drift experiment: FedAvg on ten classes, three clients and a random embedding.

Every client has samples of all classes but only one client label, so the client head's local gradients differ
more. The paper shows one figure and does not give its settings; this experiment covers six settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddrm.drm.basis import Floats
from feddrm.errors import SettingError
from feddrm.paper.experiments.descent import Head

CLASSES, CLIENTS, DIMENSION = 10, 3, 32
LOCAL_STEPS, RATE = 10, 0.5
LABELS = {"iid": "labels iid", "skewed": "labels Dirichlet(0.3)"}
EMBEDDINGS = {
    "independent": "pure noise",
    "clustered": "a cluster per class",
    "shifted": "clusters, moved at every client",
}


@dataclass(frozen=True)
class Drift:
    """Drift over rounds in one setting, of both heads."""

    labels: str
    embedding: str
    squared: dict[str, Floats]  # G^2
    relative: dict[str, Floats]  # G / ||gradient of the pooled loss||

    def facts(self) -> dict[str, Any]:
        """Plain numbers: the mean over all rounds and the last round."""
        return {
            "labels": self.labels,
            "embedding": self.embedding,
            **{
                f"{name}_{head}": {"mean": float(curve.mean()), "last": float(curve[-1])}
                for name, curves in (("squared", self.squared), ("relative", self.relative))
                for head, curve in curves.items()
            },
        }


def random_federation(
    labels: str, embedding: str, seed: int, samples: int = 100
) -> tuple[Floats, NDArray[np.intp], NDArray[np.intp]]:
    """Embeddings (a constant first), classes and clients of a simulated federation."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(CLIENTS), samples)
    mix = rng.dirichlet(np.full(CLASSES, 0.3), CLIENTS) if labels == "skewed" else np.full((CLIENTS, CLASSES), 0.1)
    label = np.concatenate([rng.choice(CLASSES, samples, p=row) for row in mix])
    x = rng.normal(size=(len(client), DIMENSION))
    if embedding != "independent":
        x += rng.normal(size=(CLASSES, DIMENSION))[label]
    if embedding == "shifted":
        x += 0.5 * rng.normal(size=(CLIENTS, DIMENSION))[client]
    x = (x - x.mean(0)) / x.std(0)
    return np.hstack([np.ones((len(x), 1)), x / np.sqrt(DIMENSION)]), label, client


def measure_drift(labels: str, embedding: str, *, rounds: int = 100, seed: int = 0) -> Drift:
    """Run FedAvg on both heads and measure the gradients before every round."""
    if labels not in LABELS or embedding not in EMBEDDINGS:
        raise SettingError(f"labels {labels}, embedding {embedding}: give {'/'.join(LABELS)}, {'/'.join(EMBEDDINGS)}")
    x, label, client = random_federation(labels, embedding, seed)
    squared, relative = {}, {}
    for name, outcome, outcomes in (("client", client, CLIENTS), ("class", label, CLASSES)):
        head = Head.of(x, outcome, client, outcomes)
        path = np.stack([head.start(), *head.rounds(head.start(), rounds - 1, LOCAL_STEPS, RATE, 1.0, 0.0)])
        squared[name] = head.drift(path)
        relative[name] = np.sqrt(squared[name] / (head.gradient(path) ** 2).sum((-1, -2)))
    return Drift(labels, embedding, squared, relative)


def drift_experiment(rounds: int = 100, seed: int = 0) -> list[Drift]:
    """Measure all six settings."""
    return [measure_drift(a, b, rounds=rounds, seed=seed) for a in LABELS for b in EMBEDDINGS]
