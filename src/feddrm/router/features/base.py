"""Features and recipes: statistics of a query that a router looks at.

A feature turns the stages of a network's pass into one row of numbers per sample. Features use all depths of the
network, because covariate shift shows in shallow layers and label shift in deep ones. A recipe is a list of features,
written with plus signs: ``multiscale+colour``.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from feddrm.errors import FeddrmError
from feddrm.models import Net, is_client_branch, is_project, is_trunk, of_this_thread
from feddrm.registry import Named
from feddrm.router.features.colour import colour_statistics
from feddrm.router.features.tensor_cache import cached_tensor

Leaves = Mapping[str, Tensor]
Stages = Mapping[str, Tensor]
CPU_BATCH, GPU_BATCH = 512, 2048
PIXELS = 256  # images of at most this many values may use them as features


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

    @abstractmethod
    def __call__(self, net: Net | None, stages: Stages) -> Tensor:
        """Rows [n, d] from the stages of one batch; ``stages["input"]`` is always there."""


@dataclass(frozen=True)
class Multiscale(Feature):
    """Mean and deviation per channel of the input, the stem and every stage; flat stages as they are

    The channels of a stage of three dimensions are the last, as in transformers: [sample, position, channel].
    """

    name: ClassVar[str] = "multiscale"

    def holds_sample(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == 1  # a row of a table is a flat stage

    def __call__(self, net: Net | None, stages: Stages) -> Tensor:
        assert net is not None
        columns = []
        for name, stage in stages.items():
            if stage.ndim > 2:
                positions = stage.transpose(1, 2) if stage.ndim == 3 else stage.flatten(2)
                deviation, mean = torch.std_mean(positions.float(), dim=2, correction=0)
                columns += [mean, deviation]
            elif name == "input" or any(True for _ in net.trunk.get_submodule(name).parameters()):
                columns.append(stage.float())
            # A stage without parameters only pools the stage before, whose means are in the row already.
        return torch.cat(columns, dim=1)


@dataclass(frozen=True)
class Embedding(Feature):
    """The trunk's last stage b(x), the input of the published client head"""

    name: ClassVar[str] = "embedding"

    def __call__(self, net: Net | None, stages: Stages) -> Tensor:  # noqa: ARG002
        return stages["embedding"].flatten(1).float()


@dataclass(frozen=True)
class Hidden(Feature):
    """The class projection u, the input of the class heads"""

    name: ClassVar[str] = "hidden"
    needs: ClassVar[str] = "project"

    def __call__(self, net: Net | None, stages: Stages) -> Tensor:
        assert net is not None
        return net.hidden(stages["embedding"]).float()


@dataclass(frozen=True)
class ClientBranch(Feature):
    """The client projection v, the last layer before the published client head"""

    name: ClassVar[str] = "client"
    needs: ClassVar[str] = "client"

    def unfit(self, shape: tuple[int, ...], net: Net | None) -> str | None:
        if net is not None and net.client_project is None:
            return "the network has no client branch"
        return super().unfit(shape, net)

    def __call__(self, net: Net | None, stages: Stages) -> Tensor:
        assert net is not None
        assert net.client_project is not None
        v: Tensor = net.client_project(stages[net.client_stage])
        return v.float()


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

    def __call__(self, net: Net | None, stages: Stages) -> Tensor:  # noqa: ARG002
        return stages["input"].flatten(1).float()


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

    def __call__(self, net: Net | None, stages: Stages) -> Tensor:  # noqa: ARG002
        x = stages["input"].float()
        mean, std = (_by_channel(v, x.device) for v in (self.mean, self.std))
        return colour_statistics((x * std + mean).clamp(0, 1))


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
    extractor = _Extractor(recipe, None if net is None else of_this_thread(net))
    wanted = {f"net.{leaf}": value for leaf, value in leaves.items() if recipe.wants(leaf)}
    with torch.no_grad():
        for part in torch.split(x, batch_size or (GPU_BATCH if x.is_cuda else CPU_BATCH)):
            columns = functional_call(extractor, wanted, (part,)) if wanted else extractor(part)
            for name, rows in columns.items():
                batches[name].append(rows)
    return {name: torch.cat(rows) for name, rows in batches.items()}


class _Extractor(torch.nn.Module):
    """The recipe's features as a module around the network; without a trunk the input is the only stage."""

    def __init__(self, recipe: Recipe, net: Net | None) -> None:
        super().__init__()
        self.recipe, self.net = recipe, net

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        stages = {"input": x}
        if self.recipe.needs and self.net is not None:
            _, stages = self.net.embed(x)
        return {feature.name: feature(self.net, stages) for feature in self.recipe.features}
