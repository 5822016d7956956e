"""Query views: crops and mirror images of a query, over which its features and its answers are averaged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor

from feddrm.errors import SettingError

AREA = 0.9  # of an image that a crop keeps: the least that training shows (see RandomResizedCrop)
# Where crops lie, from 0 (top, left) to 1 (bottom, right). Opposite ones follow each other: any few of them balance.
PLACES = ((0, 0), (1, 1), (0, 1), (1, 0), (0, 0.5), (1, 0.5), (0.5, 0), (0.5, 1), (0.5, 0.5))


@dataclass(frozen=True)
class QueryViews:
    """Which views of a sample the data allow, and how many of them are averaged (``count``).

    The list of views is fixed: the sample itself, its mirror image, then crops, every other one mirrored. So an answer
    depends on nothing but its query. One view is the sample itself, and nothing is averaged.
    """

    crops: bool = False
    mirrors: bool = False
    count: int = 1

    @property
    def most(self) -> int:
        """How many views there are."""
        return (1 + self.crops * len(PLACES)) * (1 + self.mirrors)

    def take(self, count: int) -> QueryViews:
        """The first ``count`` views; more than the data allow are refused."""
        if count < 1:
            raise SettingError(f"views={count}: give at least 1")
        if count > self.most == 1:
            raise SettingError(
                f"views={count}: these data allow no crops and no mirror images of a sample: leave views out"
            )
        if count > self.most:
            raise SettingError(f"views={count}: these data allow {self.most} views: give 1 to {self.most}")
        return replace(self, count=count)

    def __call__(self, x: Tensor) -> Iterator[Tensor]:
        """The views of network inputs [n, channels, height, width], one after another."""
        plain: list[tuple[float, float] | None] = [None, *(PLACES if self.crops else ())]
        first = [(place, False) for place in plain]
        if self.mirrors:
            # Every place once, mirrored in turn, then every place the other way round.
            first = [(None, False), (None, True), *((p, i % 2 == 1) for i, p in enumerate(plain[1:]))]
            first += [(p, i % 2 == 0) for i, p in enumerate(plain[1:])]
        for place, mirrored in first[: self.count]:
            view = x if place is None else _crop(x, *place)
            yield view.flip(3) if mirrored else view

    def mean(self, x: Tensor, compute: Callable[[Tensor], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The mean over all views of the tensors that ``compute`` makes of network inputs.

        Features and logits are averaged, never probabilities. Routers and refitted heads are linear, so the mean of
        their features gives the mean of their logits: one rule for all. And a temperature divides a mean as it
        divides its parts, so whoever calibrates the answers later changes no label.
        """
        views = self(x)
        total = dict(compute(next(views)))
        for view in views:
            for name, value in compute(view).items():
                total[name] = total[name] + value
        return total if self.count == 1 else {name: value / self.count for name, value in total.items()}


def _crop(x: Tensor, top: float, left: float) -> Tensor:
    """A crop, resized to full size. It is linear, so inputs may be scaled before it."""
    full = x.shape[2:]
    height, width = (math.floor(AREA**0.5 * side) for side in full)
    y, z = round(top * (full[0] - height)), round(left * (full[1] - width))
    return F.interpolate(x[:, :, y : y + height, z : z + width], size=tuple(full), mode="bilinear", align_corners=False)
