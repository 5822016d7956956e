"""Differential privacy of uploads: a site clips its change and adds noise before the upload leaves.

The promise covers everything that a site holds, against everybody who sees its uploads, including the server:
replacing all its samples by any others changes a clipped upload by at most twice the clip. This is a strong
promise, and it costs much accuracy. It says nothing about single samples of a site.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from feddrm.errors import FeddrmError, SettingError
from feddrm.io.atomic import write_atomically
from feddrm.io.text import json_line, read_json
from feddrm.methods import Method, Tensors


@dataclass(frozen=True)
class Privacy:
    """``clip``: the largest Euclidean norm of a change, over all leaves; ``noise``: its deviation in units of clip."""

    clip: float
    noise: float
    delta: float = 1e-5

    def check(self, method: Method | None = None) -> None:
        """Refuse settings that would promise nothing."""
        if not (0 < self.clip < math.inf and 0 < self.noise < math.inf and 0 < self.delta < 1):
            raise SettingError(
                f"clip={self.clip}, noise={self.noise}, delta={self.delta}: give positive numbers, delta below 1"
            )
        if method is not None and method.extras():
            raise SettingError(
                f"{method.name} sends {', '.join(method.extras())} beside its leaves, and noise on leaves does "
                f"not cover them: choose another method, or leave privacy out"
            )

    def protect(self, upload: Tensors, received: Tensors) -> Tensors:
        """The upload with its change clipped and noise added."""
        change = {leaf: upload[leaf].double() - received[leaf].double() for leaf in upload}
        norm = math.sqrt(sum(float(value.square().sum()) for value in change.values()))
        if not math.isfinite(norm):  # clipping cannot help
            raise FeddrmError(f"the change of an upload has norm {norm}: it is not sent, a lower lr may help")
        factor = min(1.0, self.clip / norm) if norm > 0 else 1.0
        protected: Tensors = {}
        for leaf, value in change.items():
            noise = _normal(value.shape) * (self.noise * self.clip)
            protected[leaf] = (received[leaf].double() + factor * value + noise.to(value.device)).to(upload[leaf])
        return protected

    def epsilon(self, uploads: float) -> float:
        """The epsilon of ``uploads`` uploads at ``delta``: Rényi accounting of the Gaussian mechanism.

        k releases with sensitivity 2 clip are (a, 2 k a / noise^2)-Rényi private for every order a. The best
        order is used. The conversion is that of Balle et al. (2020, theorem 21).
        """
        if uploads == 0:
            return 0.0
        rho = 2 * uploads / self.noise**2
        orders = [1 + 10 ** (k / 50) for k in range(-200, 200)]
        return max(0.0, min(self._converted(order, rho * order) for order in orders))

    def _converted(self, order: float, renyi: float) -> float:
        return renyi + math.log1p(-1 / order) - (math.log(self.delta) + math.log(order)) / (order - 1)


def _normal(shape: Sequence[int]) -> Tensor:
    """Normal numbers from the operating system's random bytes, by the Box-Muller transform.

    torch seeds its generator with 32 bits: whoever has an upload could try all seeds, and take the noise off.
    """
    size = math.prod(shape)
    words = torch.frombuffer(bytearray(secrets.token_bytes(16 * (size // 2 + 1))), dtype=torch.int64)
    uniform = ((words & (2**53 - 1)).double() + 1) / 2**53  # above zero: its logarithm is finite
    radius, angle = (-2 * uniform[::2].log()).sqrt(), 2 * math.pi * uniform[1::2]
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:size].reshape(tuple(shape))


@dataclass(frozen=True)
class PrivacyDemand(Privacy):
    """What a site demands: at most this ``clip``, at least this ``noise``, at most ``budget`` epsilon over all runs."""

    budget: float = math.inf

    def check(self, method: Method | None = None) -> None:
        super().check(method)
        if not self.budget > 0:
            raise SettingError(f"budget={self.budget}: give the largest epsilon of all runs together, above zero")

    def check_offer(self, offered: Mapping[str, float] | None, name: str) -> None:
        """Refuse a run that offers the site ``name`` less than it demands."""
        if offered is None or offered["clip"] > self.clip or offered["noise"] < self.noise:
            offer = "nothing" if offered is None else f"clip {offered['clip']:g} and noise {offered['noise']:g}"
            raise FeddrmError(
                f"{name} demands privacy, clip at most {self.clip:g} and noise at least {self.noise:g} (site.yaml), "
                f"this run offers {offer}: agree on 'privacy' in federation.yaml, and choose another run"
            )

    def check_budget(self, noise: float, uploads: float) -> None:
        """Refuse an upload after which ``uploads`` uploads of this ``noise`` would cost more than the budget."""
        cost = Privacy(self.clip, noise, self.delta).epsilon(uploads)
        if cost > self.budget:
            raise FeddrmError(
                f"another upload would bring epsilon to {cost:.4g}, above the budget {self.budget:g} of its site.yaml: "
                f"it takes no further part in training"
            )


@dataclass(frozen=True)
class UploadCount:
    """A file that counts the uploads of a site by their noise, over all runs, because the data are the same."""

    path: Path

    def equivalent(self, noise: float) -> float:
        """All uploads so far, as a number of uploads of this ``noise`` that cost as much.

        One upload of noise s costs as much as (noise / s)^2 uploads of ``noise``.
        """
        return sum(count * (noise / float(s)) ** 2 for s, count in self._counts().items())

    def add(self, noise: float) -> None:
        counts, key = self._counts(), repr(float(noise))
        write_atomically(self.path, json_line({**counts, key: counts.get(key, 0) + 1}))

    def _counts(self) -> dict[str, int]:
        return read_json(self.path, "put it back from a copy") if self.path.exists() else {}
