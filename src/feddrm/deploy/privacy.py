"""Differential privacy on uploads: a site's change is clipped and blurred before it leaves.

What is protected is everything a site holds, at once, against whoever sees its uploads, the server
included: exchanging all its samples for any others changes a clipped upload by at most twice the clip.
That is a strong promise and a costly one. It is no promise about single samples of a site.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from feddrm.errors import FeddrmError, SettingError
from feddrm.io.atomic import write_atomically
from feddrm.methods import Method, Tensors


@dataclass(frozen=True)
class Privacy:
    """``clip``: the longest change (Euclidean, all leaves together); ``noise``: deviation in units of ``clip``."""

    clip: float
    noise: float
    delta: float = 1e-5

    def check(self, method: Method | None = None) -> None:
        """Refuse what would promise nothing."""
        if not (0 < self.clip < math.inf and 0 < self.noise < math.inf and 0 < self.delta < 1):
            raise SettingError(f"clip={self.clip}, noise={self.noise}, delta={self.delta}: give positive numbers")
        if method is not None and method.extras():
            raise SettingError(
                f"{method.name} sends {', '.join(method.extras())} beside its leaves, which noise on leaves does "
                f"not cover: choose another method, or leave privacy out"
            )

    def protect(self, upload: Tensors, received: Tensors) -> Tensors:
        """The upload with its change clipped and blurred by noise that nobody can repeat."""
        change = {leaf: upload[leaf].double() - received[leaf].double() for leaf in upload}
        norm = math.sqrt(sum(float(value.square().sum()) for value in change.values()))
        if not math.isfinite(norm):  # no factor clips it
            raise FeddrmError(f"the change of an upload has length {norm}: it is not sent, a lower lr may help")
        shrink = min(1.0, self.clip / norm) if norm > 0 else 1.0
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        out: Tensors = {}
        for leaf, value in change.items():
            blur = torch.randn(value.shape, generator=generator, dtype=torch.float64) * (self.noise * self.clip)
            out[leaf] = (received[leaf].double() + shrink * value + blur.to(value.device)).to(upload[leaf])
        return out

    def epsilon(self, uploads: float) -> float:
        """What ``uploads`` uploads have cost at ``delta``: Rényi accounting of the Gaussian mechanism.

        k releases of sensitivity 2 clip are (a, 2 k a / noise^2)-Rényi private for every order a; the
        order is chosen best, and the conversion is that of Balle et al. (2020, theorem 21).
        """
        if uploads == 0:
            return 0.0
        rho = 2 * uploads / self.noise**2
        orders = [1 + 10 ** (k / 50) for k in range(-200, 200)]
        return max(0.0, min(self._converted(order, rho * order) for order in orders))

    def _converted(self, order: float, renyi: float) -> float:
        return renyi + math.log1p(-1 / order) - (math.log(self.delta) + math.log(order)) / (order - 1)


@dataclass(frozen=True)
class Demand(Privacy):
    """A site's own least: ``clip`` at most, ``noise`` at least, and no more epsilon than ``budget`` in all its runs."""

    budget: float = math.inf

    def check(self, method: Method | None = None) -> None:
        super().check(method)
        if not self.budget > 0:
            raise SettingError(f"budget={self.budget}: give the largest epsilon of all runs together, above zero")

    def admit(self, offered: Mapping[str, float] | None, name: str) -> None:
        """Refuse a run that offers ``name`` less than it demands."""
        if offered is None or offered["clip"] > self.clip or offered["noise"] < self.noise:
            found = "nothing" if offered is None else f"clip {offered['clip']:g} and noise {offered['noise']:g}"
            raise FeddrmError(
                f"{name} demands privacy, clip at most {self.clip:g} and noise at least {self.noise:g} (site.yaml), "
                f"this run offers {found}: agree on 'privacy' in federation.yaml, and choose another run"
            )

    def afford(self, noise: float, uploads: float) -> None:
        """Refuse to bring all uploads, counted in those of ``noise``, to ``uploads`` where that costs too much."""
        cost = Privacy(self.clip, noise, self.delta).epsilon(uploads)
        if cost > self.budget:
            raise FeddrmError(
                f"another upload would bring epsilon to {cost:.4g}, above the budget {self.budget:g} of its site.yaml: "
                f"it takes no further part in training"
            )


@dataclass(frozen=True)
class Account:
    """A file that says how many uploads of which noise have left a site, in all runs: the data are the same."""

    path: Path

    def worth(self, noise: float) -> float:
        """All of them in uploads of this noise: one of noise s has cost as much as (noise / s)^2 of these."""
        return sum(count * (noise / float(s)) ** 2 for s, count in self._counts().items())

    def add(self, noise: float) -> None:
        counts, key = self._counts(), repr(float(noise))
        write_atomically(self.path, json.dumps({**counts, key: counts.get(key, 0) + 1}).encode())

    def _counts(self) -> dict[str, int]:
        return dict(json.loads(self.path.read_text())) if self.path.exists() else {}
