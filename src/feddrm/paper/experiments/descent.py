"""Federated averaging of a linear head on fixed embeddings, exactly as in the paper's theorem.

Local steps use full gradients, so nothing is random and the theorem applies as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddrm.drm.basis import Floats


@dataclass(frozen=True)
class Head:
    """A linear softmax head over fixed embeddings whose samples are divided among clients.

    Arrays are padded to the largest client; ``share`` is one over a client's size, and zero on the padding.
    Weights have the axes (..., outcome, feature), or (..., client, outcome, feature) if clients' weights differ.
    """

    features: Floats  # client, sample, feature; the first feature is one
    targets: Floats  # client, sample, outcome; one-hot
    share: Floats  # client, sample
    client_weights: Floats  # n_i / N

    @staticmethod
    def of(features: Floats, outcome: NDArray[np.intp], client: NDArray[np.intp], outcomes: int) -> Head:
        """From pooled samples: embeddings with a constant, the outcome to predict, and the client of each sample."""
        sizes = np.bincount(client)
        shape = (len(sizes), int(sizes.max()))
        x, t, share = np.zeros((*shape, features.shape[1])), np.zeros((*shape, outcomes)), np.zeros(shape)
        for i, n in enumerate(sizes):
            x[i, :n] = features[client == i]
            t[i, :n] = np.eye(outcomes)[outcome[client == i]]
            share[i, :n] = 1 / n
        return Head(x, t, share, sizes / sizes.sum())

    def start(self) -> Floats:
        """All weights zero."""
        return np.zeros((self.targets.shape[2], self.features.shape[2]))

    def gradients(self, weights: Floats) -> Floats:
        """Each client's gradient of its mean cross-entropy, at its own weights."""
        p = self.features @ np.swapaxes(weights, -1, -2)
        p -= p.max(-1, keepdims=True)
        np.exp(p, out=p)  # in place, because these arrays take nearly all the time
        p /= p.sum(-1, keepdims=True)
        p -= self.targets
        p *= self.share[..., None]
        return np.asarray(np.swapaxes(p, -1, -2) @ self.features)

    def gradient(self, weights: Floats) -> Floats:
        """The gradient of the pooled loss at common weights."""
        return self.average(self.gradients(weights[..., None, :, :]))

    def drift(self, weights: Floats) -> Floats:
        """``G^2 = sum_i w_i ||grad_i - grad||^2`` at common weights."""
        each = self.gradients(weights[..., None, :, :])
        deviation = each - self.average(each)[..., None, :, :]
        return np.asarray((self.client_weights * (deviation**2).sum((-1, -2))).sum(-1))

    def average(self, by_client: Floats) -> Floats:
        """The server's step: the mean over clients, weighted by their samples."""
        return np.asarray((self.client_weights[:, None, None] * by_client).sum(-3))

    def smoothness(self) -> float:
        """A bound on the curvature of every client's loss: half the largest second moment (Böhning, 1992)."""
        moments = np.swapaxes(self.features * self.share[..., None], 1, 2) @ self.features
        return 0.5 * float(np.linalg.eigvalsh(moments).max())

    def rounds(
        self, start: Floats, count: int, local_steps: int, rate: Floats | float, scale: Floats | float, ridge: float
    ) -> Iterator[Floats]:
        """Common weights after every round of ``local_steps`` on ``scale * loss + ridge / 2 * ||weights||^2``."""
        common = start
        for _ in range(count):
            own = np.repeat(common[..., None, :, :], len(self.client_weights), axis=-3)
            for _ in range(local_steps):
                own = own - rate * (scale * self.gradients(own) + ridge * own)
            common = self.average(own)
            yield common
