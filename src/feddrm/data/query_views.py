"""Query views: crops and mirror images of a query, over which its features and its answers are averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor

from feddrm.errors import SettingError

STEP = 1 / 32  # of the side by which a crop is moved: less than the crops of training move an image
# Where crops are moved, down and right. Opposite ones follow each other: any few of them balance.
MOVES = ((-1, -1), (1, 1), (-1, 1), (1, -1), (-1, 0), (1, 0), (0, -1), (0, 1))


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
        return (1 + self.crops * len(MOVES)) * (1 + self.mirrors)

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
        moves = MOVES if self.crops else ()
        views = [((0, 0), False), ((0, 0), True)][: 1 + self.mirrors]
        views += [(move, self.mirrors and i % 2 == 1) for i, move in enumerate(moves)]
        views += [(move, i % 2 == 0) for i, move in enumerate(moves) if self.mirrors]  # now the other way round
        for move, mirrored in views[: self.count]:
            view = _crop(x, *move)
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


def _crop(x: Tensor, down: int, right: int) -> Tensor:
    """The image moved by a step, with its border reflected.

    It is not resized, as in training: that would mix colours that a client's camera has made, and these tell clients
    apart (docs/router_measured.md has figures).
    """
    if not (down or right):
        return x
    height, width = x.shape[2:]
    tall, wide = (max(1, round(STEP * side)) for side in (height, width))
    padded = F.pad(x, (wide, wide, tall, tall), mode="reflect")
    top, left = tall * (1 + down), wide * (1 + right)
    return padded[:, :, top : top + height, left : left + width]
