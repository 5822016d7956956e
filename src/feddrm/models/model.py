"""The base class of models: a frozen set of settings from which a network is built for the data at hand."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from feddrm.errors import FeddrmError
from feddrm.models.net import Net
from feddrm.registry import Named
from feddrm.threads import without_onednn_if_small

_BUILDING = threading.RLock()  # networks are built from torch's one global random state


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
        # On ARM, oneDNN starts threads whatever torch is told, and a process that is forked afterwards hangs.
        with without_onednn_if_small(0), _BUILDING, torch.random.fork_rng(devices=[]), torch.device("cpu"):
            # torch.manual_seed would also reset the GPUs' generators, which are not forked.
            torch.default_generator.manual_seed(seed)
            net = self.network(shape, classes, clients)
            problem = _form_problem(net, classes, clients) or _leaf_problem(net, self.frozen)
            if problem or (not self.frozen and (problem := _trial_problem(net, shape))):
                raise FeddrmError(f"model '{self.name}': {problem}")
            return net

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


def _form_problem(net: nn.Module, classes: int, clients: int | None) -> str | None:
    """What keeps the network from being a trunk with a class branch and, if asked for, a client branch."""
    if not isinstance(net, Net):
        return f"network() returns {type(net).__name__}: return feddrm.models.Net(trunk, class branch, client branch)"
    stages = [name for name, _ in net.trunk.named_children()]
    if stages[-1:] != ["embedding"]:
        return f"the trunk's last layer must be named 'embedding' (there are: {', '.join(stages)}): give an OrderedDict"
    if (net.client_head is None) != (clients is None):
        wrong = "there is no client branch" if clients else "there is a client branch without clients"
        return f"{wrong}: give Net one exactly where network() gets a number of clients"
    modules = dict(net.named_children())
    for name, noun, outputs in (("head", "classes", classes), ("client_head", "clients", clients)):
        head = modules.get(name)
        if head is not None and (not isinstance(head, nn.Linear) or "bias" not in dict(head.named_parameters())):
            return f"the head over {noun} is no Linear layer with a bias: put other layers into the projection before"
        if head is not None and head.out_features != outputs:
            return f"the head over {noun} has {head.out_features} outputs: there are {outputs} {noun}"
    return None


def _leaf_problem(net: nn.Module, frozen: bool) -> str | None:
    """Why a client's model would not be its leaves alone, or other leaves would train."""
    if any(isinstance(module, _BatchNorm) for module in net.modules()):
        return "BatchNorm mixes the samples of a batch and keeps their means: use GroupNorm or LayerNorm"
    if lazy := [name for name, module in net.named_modules() if isinstance(module, LazyModuleMixin)]:
        return f"'{lazy[0]}' has no size before the first sample: use a layer that is given its sizes, as Linear(8, 4)"
    if buffers := [name for name, _ in net.named_buffers()]:
        return f"the buffer '{buffers[0]}' is neither trained nor sent: make it a Parameter, or compute it in forward"
    once = {name for name, _ in net.named_parameters()}
    if again := [name for name, _ in net.named_parameters(remove_duplicate=False) if name not in once]:
        return f"'{again[0]}' is a leaf that has another name, too: use every layer once"
    if not frozen and (fixed := [name for name, leaf in net.named_parameters() if not leaf.requires_grad]):
        return f"'{fixed[0]}' has requires_grad=False, which has no effect: the method's Phase(train=...) fixes leaves"
    return None


def _trial_problem(net: nn.Module, shape: tuple[int, ...]) -> str | None:
    """Why its answers would not be a function of the leaves and of each sample alone."""
    before = torch.get_rng_state()
    try:
        x = torch.linspace(-1, 1, 2 * math.prod(shape)).view(2, *shape)
        with torch.no_grad():
            try:
                out = net(x)
            except IndexError:  # it looks its inputs up in a table, as tokens: zeros and ones stand in most
                x = (x > 0).float()
                out = net(x)
            alone = net(x[:1])
    except Exception as error:
        return f"it cannot read samples of shape {tuple(shape)} ({' '.join(str(error).split())}): correct its layers"
    if not torch.equal(torch.get_rng_state(), before):
        return "it draws random numbers in forward, so no run could be repeated or resumed: leave Dropout out"
    for noun, logits in (("class", out.logits), ("client", out.client_logits)):
        if logits is not None and logits.ndim != 2:
            return (
                f"its {noun} logits of 2 samples have the shape {tuple(logits.shape)}: let its trunk or projection "
                "give one row per sample, such as the mean over positions"
            )
    if not torch.allclose(out.logits[:1], alone.logits, rtol=1e-3, atol=1e-4):
        return "its answer about a sample depends on the others of the batch: normalise every sample by itself"
    return None


def check_width(name: str, width: object) -> None:
    """Refuse a width that is not a positive whole number."""
    if not isinstance(width, int) or width < 1:
        raise FeddrmError(f"{name}={width!r}: a layer needs a whole number of units, at least one")
