"""What a router looks at: statistics of every depth, because covariate shift is shallow and label shift deep.

A feature turns the stages of a network's pass into one row of numbers per sample. Recipes are names
joined by plus: ``multiscale+colour``. Those of ``needs`` "nothing" can be had without any network.
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
from feddrm.models import Net, is_client_branch, is_project, is_trunk
from feddrm.registry import Named
from feddrm.router.features.colour import colour_statistics
from feddrm.router.features.tensor_cache import kept

Leaves = Mapping[str, Tensor]
CPU_BATCH, GPU_BATCH = 512, 2048
PIXELS = 256  # raw values are features of their own up to this many


@dataclass(frozen=True)
class Feature(Named, ABC):
    """One kind of statistics. ``needs`` is "nothing", "trunk", "project" or "client": parts that must be shared."""

    needs: ClassVar[str] = "trunk"

    def unfit(self, shape: tuple[int, ...], net: Net | None) -> str | None:  # noqa: ARG002
        """Why it cannot be had for samples of this shape and this network; None where it can."""
        return None if self.needs == "nothing" or net is not None else "it needs a shared trunk, and there is none"

    @abstractmethod
    def __call__(self, net: Net | None, stages: Mapping[str, Tensor]) -> Tensor:
        """Rows [n, d] from the stages of one batch; ``stages["input"]`` is always there."""


@dataclass(frozen=True)
class Multiscale(Feature):
    """Mean and deviation per channel of the input, the stem and every stage; flat stages as they are"""

    name: ClassVar[str] = "multiscale"

    def __call__(self, net: Net | None, stages: Mapping[str, Tensor]) -> Tensor:
        assert net is not None
        found = []
        for name, stage in stages.items():
            if stage.ndim == 4:
                deviation, mean = torch.std_mean(stage.flatten(2).float(), dim=2, correction=0)
                found += [mean, deviation]
            elif name == "input" or any(True for _ in net.trunk.get_submodule(name).parameters()):
                found.append(stage.float())
            # A stage without parameters only pools the one before, whose means are there already.
        return torch.cat(found, dim=1)


@dataclass(frozen=True)
class Embedding(Feature):
    """The trunk's last stage b(x), what the published client head sees"""

    name: ClassVar[str] = "embedding"

    def __call__(self, net: Net | None, stages: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        return stages["embedding"].flatten(1).float()


@dataclass(frozen=True)
class Hidden(Feature):
    """The class projection u, what the class heads see"""

    name: ClassVar[str] = "hidden"
    needs: ClassVar[str] = "project"

    def __call__(self, net: Net | None, stages: Mapping[str, Tensor]) -> Tensor:
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

    def __call__(self, net: Net | None, stages: Mapping[str, Tensor]) -> Tensor:
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

    def __call__(self, net: Net | None, stages: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        return stages["input"].flatten(1).float()


@dataclass(frozen=True)
class Colour(Feature):
    """Smooth colour histograms, quantiles, moments and a 4x4 thumbnail of an image; for colour shifts, no network

    ``mean`` and ``std`` are what the network's input was scaled by.
    """

    name: ClassVar[str] = "colour"
    needs: ClassVar[str] = "nothing"

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __post_init__(self) -> None:
        for key in ("mean", "std"):  # JSON knows no tuples
            object.__setattr__(self, key, tuple(getattr(self, key)))

    def unfit(self, shape: tuple[int, ...], net: Net | None) -> str | None:  # noqa: ARG002
        return None if len(shape) == 3 else "samples are no images"

    def __call__(self, net: Net | None, stages: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        x = stages["input"].float()
        mean, std = (_by_channel(v, x.device) for v in (self.mean, self.std))
        return colour_statistics((x * std + mean).clamp(0, 1))


@kept
def _by_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device).view(-1, 1, 1)


@dataclass(frozen=True)
class Recipe:
    """Which features, in which order."""

    features: tuple[Feature, ...]

    @property
    def name(self) -> str:
        return "+".join(feature.name for feature in self.features)

    @property
    def needs(self) -> set[str]:
        """Parts of the network that must be shared."""
        found = {feature.needs for feature in self.features} - {"nothing"}
        return found | ({"trunk"} if found else set())

    def wants(self, leaf: str) -> bool:
        """Whether a leaf of the model is needed to compute it."""
        parts = {"trunk": is_trunk, "project": is_project, "client": is_client_branch}
        return any(parts[part](leaf) for part in self.needs)

    def as_list(self) -> list[dict[str, Any]]:
        """Plain values, as they stand in a manifest."""
        return [{"name": f.name, **dataclasses.asdict(f)} for f in self.features]

    @classmethod
    def of(cls, settings: Sequence[Mapping[str, Any]]) -> Recipe:
        """From :meth:`as_list`."""
        return cls(tuple(Feature.make(s["name"], **{k: v for k, v in s.items() if k != "name"}) for s in settings))

    @classmethod
    def parse(cls, text: str, mean: Sequence[float] = (0.5,), std: Sequence[float] = (0.5,)) -> Recipe:
        """``"multiscale+colour"``; the scale of the network's input goes to the features that undo it."""
        names = [name.strip() for name in text.split("+")]
        scaled = {"colour": {"mean": tuple(mean), "std": tuple(std)}}
        return cls(tuple(Feature.make(name, **scaled.get(name, {})) for name in dict.fromkeys(names)))

    def check(self, shape: tuple[int, ...], net: Net | None) -> None:
        """Refuse what these samples and this network cannot give."""
        for feature in self.features:
            if reason := feature.unfit(shape, net):
                others = [f.name for f in Feature.family.values() if _possible(f, shape, net)]
                raise FeddrmError(f"feature '{feature.name}' cannot be used: {reason} (possible: {', '.join(others)})")


def possible_features(shape: tuple[int, ...], net: Net | None, shared: Leaves) -> list[str]:
    """Names of the features that can be had from what is shared."""
    names = [name for name, member in Feature.family.items() if _possible(member, shape, net)]
    if net is None:
        return names
    leaves = [leaf for leaf, _ in net.named_parameters()]
    return [
        name for name in names if all(leaf in shared for leaf in leaves if Recipe((Feature.make(name),)).wants(leaf))
    ]


def _possible(member: type[Feature], shape: tuple[int, ...], net: Net | None) -> bool:
    return member().unfit(shape, net) is None


def extract(
    recipe: Recipe, net: Net | None, leaves: Leaves, x: Tensor, batch_size: int | None = None
) -> dict[str, Tensor]:
    """Every feature of network inputs [n, ...], by name, in float32; no gradient, batch by batch."""
    recipe.check(tuple(x.shape[1:]), net)
    wanted = {leaf: value for leaf, value in leaves.items() if recipe.wants(leaf)}
    found: dict[str, list[Tensor]] = {feature.name: [] for feature in recipe.features}
    reader = _Reader(recipe, net)
    own = {f"net.{leaf}": value for leaf, value in wanted.items()}
    with torch.no_grad():
        for part in torch.split(x, batch_size or (GPU_BATCH if x.is_cuda else CPU_BATCH)):
            rows = functional_call(reader, own, (part,)) if own else reader(part)
            for name, row in rows.items():
                found[name].append(row)
    return {name: torch.cat(rows) for name, rows in found.items()}


class _Reader(torch.nn.Module):
    """A network's pass with the features read off it; without a trunk the input is the only stage."""

    def __init__(self, recipe: Recipe, net: Net | None) -> None:
        super().__init__()
        self.recipe, self.net = recipe, net

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        stages = {"input": x}
        if self.recipe.needs and self.net is not None:
            _, stages = self.net.embed(x)
        return {feature.name: feature(self.net, stages) for feature in self.recipe.features}
