"""Features and recipes: statistics of a query that a router looks at.

A feature turns the stages of a network's pass into one row of numbers per sample. Features use all depths of the
network, because covariate shift shows in shallow layers and label shift in deep ones. A recipe is a list of features,
written with plus signs: ``multiscale+colour``.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from feddrm.errors import FeddrmError
from feddrm.models import Net, is_client_branch, is_project, is_trunk, of_this_thread
from feddrm.registry import Named
from feddrm.router.features.colour import colour_parts
from feddrm.router.features.tensor_cache import cached_tensor

Leaves = Mapping[str, Tensor]
Stages = Mapping[str, Tensor]
Parts = dict[str, Tensor]  # of rows: columns by name, in their order
CPU_BATCH, GPU_BATCH = 512, 2048
PIXELS = 256  # images of at most this many values may use them as features
INPUT = "input"  # the stage before the network; also the part of a row that is the sample itself


@dataclass(frozen=True)
class Feature(Named, ABC):
    """One kind of statistics. ``needs`` is the part that must be shared: "trunk", "project", "client" or "nothing"."""

    needs: ClassVar[str] = "trunk"

    def unfit(self, shape: tuple[int, ...], net: Net | None) -> str | None:  # noqa: ARG002
        """Why the feature cannot be computed for samples of this shape and this network; None if it can."""
        return None if self.needs == "nothing" or net is not None else "it needs a shared trunk, and there is none"

    def holds_sample(self, shape: tuple[int, ...]) -> bool:  # noqa: ARG002
        """Whether a row contains the sample itself. Such a row must not leave its client."""
        return False

    def __call__(self, net: Net | None, stages: Stages) -> Tensor:
        """Rows [n, d] from the stages of one batch; ``stages[INPUT]`` is always there."""
        return _row(self.parts(net, stages))

    @abstractmethod
    def parts(self, net: Net | None, stages: Stages) -> Parts:
        """The rows in parts that a person can tell apart, by name and in order; ``INPUT`` is the flat sample itself."""


@dataclass(frozen=True)
class Multiscale(Feature):
    """Mean and deviation per channel of the input, the stem and every stage; flat stages as they are

    The channels of a stage of three dimensions are the last, as in transformers: [sample, position, channel].
    """

    name: ClassVar[str] = "multiscale"

    def holds_sample(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == 1  # a row of a table is a flat stage

    def parts(self, net: Net | None, stages: Stages) -> Parts:
        assert net is not None
        parts = {}
        for name, stage in stages.items():
            if stage.ndim > 2:
                positions = stage.transpose(1, 2) if stage.ndim == 3 else stage.flatten(2)
                deviation, mean = torch.std_mean(positions.float(), dim=2, correction=0)
                parts[name] = torch.cat([mean, deviation], dim=1)
            elif name == INPUT or any(True for _ in net.trunk.get_submodule(name).parameters()):
                parts[name] = stage.float()
            # A stage without parameters only pools the stage before, whose means are in the row already.
        return parts


@dataclass(frozen=True)
class Embedding(Feature):
    """The trunk's last stage b(x), the input of the published client head"""

    name: ClassVar[str] = "embedding"

    def parts(self, net: Net | None, stages: Stages) -> Parts:  # noqa: ARG002
        embedding = stages["embedding"]
        name = INPUT if embedding is stages[INPUT] else self.name  # a model that is the identity returns its input
        return {name: embedding.flatten(1).float()}


@dataclass(frozen=True)
class Hidden(Feature):
    """The class projection u, the input of the class heads"""

    name: ClassVar[str] = "hidden"
    needs: ClassVar[str] = "project"

    def parts(self, net: Net | None, stages: Stages) -> Parts:
        assert net is not None
        return {self.name: net.hidden(stages["embedding"]).float()}


@dataclass(frozen=True)
class ClientBranch(Feature):
    """The client projection v, the last layer before the published client head"""

    name: ClassVar[str] = "client"
    needs: ClassVar[str] = "client"

    def unfit(self, shape: tuple[int, ...], net: Net | None) -> str | None:
        if net is not None and net.client_project is None:
            return "the network has no client branch"
        return super().unfit(shape, net)

    def parts(self, net: Net | None, stages: Stages) -> Parts:
        assert net is not None
        assert net.client_project is not None
        v: Tensor = net.client_project(stages[net.client_stage])
        return {self.name: v.float()}


@dataclass(frozen=True)
class Raw(Feature):
    """The sample itself: the columns of a table with their missing indicators, or a tiny image's pixels"""

    name: ClassVar[str] = "raw"
    needs: ClassVar[str] = "nothing"

    def unfit(self, shape: tuple[int, ...], net: Net | None) -> str | None:  # noqa: ARG002
        size = torch.Size(shape).numel()
        if len(shape) == 3 and size > PIXELS:
            return f"{size} raw pixels are too many (at most {PIXELS}): use multiscale"
        return None

    def holds_sample(self, shape: tuple[int, ...]) -> bool:  # noqa: ARG002
        return True

    def parts(self, net: Net | None, stages: Stages) -> Parts:  # noqa: ARG002
        return {INPUT: stages[INPUT].flatten(1).float()}


@dataclass(frozen=True)
class Colour(Feature):
    """Smooth colour histograms, quantiles, moments and a 4x4 thumbnail of an image; for colour shifts, no network

    ``mean`` and ``std`` are the constants that scaled the network's input.
    """

    name: ClassVar[str] = "colour"
    needs: ClassVar[str] = "nothing"

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __post_init__(self) -> None:
        for key in ("mean", "std"):  # JSON turns tuples into lists
            object.__setattr__(self, key, tuple(getattr(self, key)))

    def unfit(self, shape: tuple[int, ...], net: Net | None) -> str | None:  # noqa: ARG002
        return None if len(shape) == 3 else "samples are no images"

    def parts(self, net: Net | None, stages: Stages) -> Parts:  # noqa: ARG002
        x = stages[INPUT].float()
        mean, std = (_by_channel(v, x.device) for v in (self.mean, self.std))
        return colour_parts((x * std + mean).clamp(0, 1))


@cached_tensor
def _by_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device).view(-1, 1, 1)


@dataclass(frozen=True)
class Recipe:
    """A list of features, in the order of the router's columns."""

    features: tuple[Feature, ...]

    @property
    def name(self) -> str:
        return "+".join(feature.name for feature in self.features)

    @property
    def needs(self) -> set[str]:
        """Parts of the network that must be shared."""
        parts = {feature.needs for feature in self.features} - {"nothing"}
        return parts | ({"trunk"} if parts else set())

    def holding_samples(self, shape: tuple[int, ...]) -> list[str]:
        """Names of the features whose rows contain the samples themselves."""
        return [feature.name for feature in self.features if feature.holds_sample(shape)]

    def wants(self, leaf: str) -> bool:
        """Whether a leaf of the model is needed to compute the features."""
        parts = {"trunk": is_trunk, "project": is_project, "client": is_client_branch}
        return any(parts[part](leaf) for part in self.needs)

    def joined(self, columns: Mapping[str, Tensor]) -> Tensor:
        """Rows [n, d] of all features, a copy of the columns by name."""
        return torch.cat([columns[feature.name] for feature in self.features], dim=1)

    def as_list(self) -> list[dict[str, Any]]:
        """Plain values, as a manifest holds them."""
        return [{"name": f.name, **dataclasses.asdict(f)} for f in self.features]

    @classmethod
    def of(cls, settings: Sequence[Mapping[str, Any]]) -> Recipe:
        """The inverse of :meth:`as_list`."""
        return cls(tuple(Feature.make(s["name"], **{k: v for k, v in s.items() if k != "name"}) for s in settings))

    @classmethod
    def parse(cls, text: str, mean: Sequence[float] = (0.5,), std: Sequence[float] = (0.5,)) -> Recipe:
        """The recipe written as ``"multiscale+colour"``; ``mean`` and ``std`` scaled the network's input."""
        names = [name.strip() for name in text.split("+")]
        scaled = {"colour": {"mean": tuple(mean), "std": tuple(std)}}
        return cls(tuple(Feature.make(name, **scaled.get(name, {})) for name in dict.fromkeys(names)))

    def check(self, shape: tuple[int, ...], net: Net | None) -> None:
        """Refuse features that these samples and this network do not allow."""
        for feature in self.features:
            if reason := feature.unfit(shape, net):
                others = [f.name for f in Feature.family.values() if _possible(f, shape, net)]
                raise FeddrmError(f"feature '{feature.name}' cannot be used: {reason} (possible: {', '.join(others)})")


def possible_features(shape: tuple[int, ...], net: Net | None, shared: Leaves) -> list[str]:
    """Names of the features that the shared leaves allow."""
    names = [name for name, member in Feature.family.items() if _possible(member, shape, net)]
    if net is None:
        return names
    leaves = [leaf for leaf, _ in net.named_parameters()]
    wants = {name: Recipe((Feature.make(name),)).wants for name in names}
    return [name for name in names if all(leaf in shared for leaf in leaves if wants[name](leaf))]


def _possible(member: type[Feature], shape: tuple[int, ...], net: Net | None) -> bool:
    return member().unfit(shape, net) is None


def extract(
    recipe: Recipe, net: Net | None, leaves: Leaves, x: Tensor, batch_size: int | None = None
) -> dict[str, Tensor]:
    """Every feature of network inputs [n, ...] by name, in float32, computed batch by batch without gradients."""
    recipe.check(tuple(x.shape[1:]), net)
    if recipe.name == Raw.name:
        return {Raw.name: x.flatten(1).float()}  # no pass, and no copy of rows
    batches: dict[str, list[Tensor]] = {feature.name: [] for feature in recipe.features}
    parts_of = _extractor(recipe, net, leaves)
    with torch.no_grad():
        for batch in torch.split(x, batch_size or (GPU_BATCH if x.is_cuda else CPU_BATCH)):
            for name, parts in parts_of(batch).items():
                batches[name].append(_row(parts))
    return {name: torch.cat(rows) for name, rows in batches.items()}


def part_widths(recipe: Recipe, net: Net | None, leaves: Leaves, blank: Tensor) -> dict[str, dict[str, int]]:
    """The number of columns of every part of every feature, in the order of a row; ``blank`` is any sample [1, ...]."""
    with torch.no_grad():
        found = _extractor(recipe, net, leaves)(blank)
    return {name: {part: rows.shape[1] for part, rows in parts.items()} for name, parts in found.items()}


def _row(parts: Parts) -> Tensor:
    columns = list(parts.values())
    return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)


def _extractor(recipe: Recipe, net: Net | None, leaves: Leaves) -> Callable[[Tensor], dict[str, Parts]]:
    """A function from network inputs to the parts of every feature by name."""
    extractor = _Extractor(recipe, None if net is None else of_this_thread(net))
    wanted = {f"net.{leaf}": value for leaf, value in leaves.items() if recipe.wants(leaf)}
    return partial(functional_call, extractor, wanted) if wanted else extractor


class _Extractor(torch.nn.Module):
    """The recipe's features as a module around the network; without a trunk the input is the only stage."""

    def __init__(self, recipe: Recipe, net: Net | None) -> None:
        super().__init__()
        self.recipe, self.net = recipe, net

    def forward(self, x: Tensor) -> dict[str, Parts]:
        stages = {INPUT: x}
        if self.recipe.needs and self.net is not None:
            _, stages = self.net.embed(x)
        return {feature.name: feature.parts(self.net, stages) for feature in self.recipe.features}
