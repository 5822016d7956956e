"""Local gradient steps and averaging on fixed embeddings, exactly as the paper's theorem has them.

Full gradients, no randomness: what is left of the method when everything that could hide its theory is taken away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddrm.drm.basis import Floats


@dataclass(frozen=True)
class Head:
    """A linear softmax head over fixed embeddings, whose samples lie at several clients.

    Arrays are padded to the largest client; ``share`` is one over a client's size, and zero on the padding.
    Weights have axes (..., outcome, feature), or (..., client, outcome, feature) once clients have parted.
    """

    features: Floats  # client, sample, feature; the first feature is one
    targets: Floats  # client, sample, outcome; one-hot
    share: Floats  # client, sample
    client_weights: Floats  # n_i / N

    @staticmethod
    def of(features: Floats, outcome: NDArray[np.intp], client: NDArray[np.intp], outcomes: int) -> Head:
        """From pooled samples: embedding (with its constant), what is to be told, and where each sample lies."""
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
        np.exp(p, out=p)  # in place: these arrays are all the time there is
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
        apart = each - self.average(each)[..., None, :, :]
        return np.asarray((self.client_weights * (apart**2).sum((-1, -2))).sum(-1))

    def average(self, parted: Floats) -> Floats:
        """The server's step: the mean over clients, weighted by their samples."""
        return np.asarray((self.client_weights[:, None, None] * parted).sum(-3))

    def smoothness(self) -> float:
        """A bound on the curvature of every client's loss: half the largest second moment (Boehning)."""
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
