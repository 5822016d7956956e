"""The base class of models: a frozen set of settings from which a network is built for the data at hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from feddrm.errors import FeddrmError
from feddrm.models.net import Net
from feddrm.registry import Named


@dataclass(frozen=True)
class Model(Named, ABC):
    """The constructor only stores settings; ``check`` refuses impossible ones, ``build`` makes the network.

    A ``frozen`` model has nothing to train but heads, which are fitted in closed form.

    Example:
        >>> net = feddrm.Model.make("mlp", hidden=[16]).build(shape=(64,), classes=10)
        >>> sum(parameter.numel() for parameter in net.parameters())
        2938
    """

    frozen: ClassVar[bool] = False

    def resolved(self, shape: tuple[int, ...]) -> Self:  # noqa: ARG002
        """The model with the settings that follow from the samples' shape or from files."""
        return self

    def build(self, shape: tuple[int, ...], classes: int, clients: int | None = None, seed: int = 2025) -> Net:
        """A network for samples of ``shape``, with a client branch if ``clients`` is given.

        The same seed gives the same weights. A network with a client branch and one without start with
        equal weights in the leaves that both have. The global random state does not change.
        """
        self.check(shape, classes, clients)
        if not 0 <= seed < 2**32:
            raise FeddrmError(f"seed {seed} is out of range: give one from 0 to {2**32 - 1}")
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            # torch.manual_seed would also reset the GPUs' generators, which are not forked.
            torch.default_generator.manual_seed(seed)
            return self.network(shape, classes, clients)

    @abstractmethod
    def network(self, shape: tuple[int, ...], classes: int, clients: int | None) -> Net:
        """Make the layers, the client branch last: its random draws must not change the other layers' weights."""

    def check(self, shape: tuple[int, ...], classes: int, clients: int | None = None) -> None:
        """Refuse data that the model cannot read, and impossible settings."""
        if not shape or min(shape) < 1:
            raise FeddrmError(
                f"{self.name} cannot read samples of shape {tuple(shape)}: give (channels, height, width) or (columns,)"
            )
        if classes < 2:
            raise FeddrmError(f"classes={classes}: a classifier needs at least two")
        if clients is not None and clients < 2:
            raise FeddrmError(
                f"clients={clients}: a client branch needs at least two clients; give None for a network without one"
            )


@dataclass(frozen=True)
class ImageModel(Model, ABC):
    """A model that reads images (channels, height, width) only."""

    def check(self, shape: tuple[int, ...], classes: int, clients: int | None = None) -> None:
        """Raise an error for samples that are no images."""
        super().check(shape, classes, clients)
        if len(shape) != 3:
            raise FeddrmError(
                f"{self.name} reads images (channels, height, width), not samples of shape {tuple(shape)}: "
                "use the model mlp, which reads anything"
            )


def check_width(name: str, width: object) -> None:
    """Refuse a width that is not a positive whole number."""
    if not isinstance(width, int) or width < 1:
        raise FeddrmError(f"{name}={width!r}: a layer needs a whole number of units, at least one")
