"""A multilayer perceptron, for tables and small images."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from feddrm.errors import FeddrmError
from feddrm.models.model import Model, check_width
from feddrm.models.net import Branch, Dense, Net


@dataclass(frozen=True)
class Mlp(Model):
    """Multilayer perceptron with LayerNorm for tables and small images (flattened); trains in seconds on a CPU.

    ``hidden`` holds the widths of the trunk's layers; the last is that of the embedding. ``branch`` is the
    width of the class and the client branch.
    """

    name: ClassVar[str] = "mlp"

    hidden: Sequence[int] = (128, 64)
    branch: int = 64

    def __post_init__(self) -> None:
        if isinstance(self.hidden, list):  # from YAML; a list cannot be hashed
            object.__setattr__(self, "hidden", tuple(self.hidden))

    def check(self, shape: tuple[int, ...], classes: int, clients: int | None = None) -> None:
        super().check(shape, classes, clients)
        if not isinstance(self.hidden, tuple) or not self.hidden:
            raise FeddrmError(f"hidden={self.hidden!r}: give a list of at least one width, such as [128, 64]")
        for width in self.hidden:
            check_width("hidden", width)
        check_width("branch", self.branch)

    def network(self, shape: tuple[int, ...], classes: int, clients: int | None) -> Net:
        widths = (math.prod(shape), *self.hidden)
        names = [f"stage{number}" for number in range(1, len(self.hidden))] + ["embedding"]
        trunk = nn.Sequential(
            OrderedDict(zip(names, itertools.starmap(Dense, itertools.pairwise(widths)), strict=True))
        )

        def branch(outputs: int) -> Branch:
            return Dense(widths[-1], self.branch), nn.Linear(self.branch, outputs)

        return Net(trunk, branch(classes), branch(clients) if clients else None)
