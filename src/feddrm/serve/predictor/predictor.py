"""A client's predictor: the shared trunk and this client's private part, nothing of anybody else's."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor
from torch.func import functional_call

from feddrm.errors import FeddrmError, SettingError
from feddrm.methods import Method
from feddrm.models import Model, Net, is_trunk, part
from feddrm.registry import nearest
from feddrm.router import Recipe, Router, load_heads, load_router, read_manifest
from feddrm.router.features.base import extract
from feddrm.router.solver.client_statistics import logits_at
from feddrm.router.solver.problem import Scaler
from feddrm.runs.run_router import SCALE

ANSWERS = ("trained", "refit")
SHARED, PRIVATE, HEAD = "shared.safetensors", "private.safetensors", "head.safetensors"


@dataclass(frozen=True, eq=False)
class Predictor:
    """Class probabilities of samples, or of features alone where its head looks at nothing else."""

    name: str
    version: str
    classes: tuple[str, ...]
    router: Router  # for the shape of samples, and with this client's own scale
    head: TrainedHead | RefitHead
    named: bool  # whether its classes have names, or numbers for want of them

    @property
    def takes_features(self) -> bool:
        return self.head.takes_features

    @classmethod
    def load(cls, folder: Path, run: Path | None = None, answer: str = "trained") -> Predictor:
        """From a client's folder, with the public parts of its run (``config.yaml``, ``router/``) two levels above.

        A site of a deployed federation has what it was sent in its own folder, not in ``router/``.

        ``trained`` answers with the model as the method left it, ``refit`` with the private head that
        'feddrm fit-router' fitted on the router's features.
        """
        if answer not in ANSWERS:
            raise SettingError(f"answer '{answer}'{nearest(answer, ANSWERS)}: choose {' or '.join(ANSWERS)}")
        folder = folder.resolve()
        run = folder.parent.parent if run is None else run
        if not (folder / PRIVATE).is_file():
            raise FeddrmError(f"{folder} is no client's folder (it has no {PRIVATE}): give RUN/clients/NAME")
        manifest, router = read_manifest(run / "router"), load_router(run / "router")
        if folder.name not in router.names:
            raise FeddrmError(f"the router knows no client '{folder.name}' (there are: {', '.join(router.names)})")
        router = with_own_scale(router, folder)
        kind = TrainedHead if answer == "trained" else RefitHead
        head = kind.load(folder, run, manifest, router)
        classes, named = class_names(run, number := int(manifest["classes"])), known_classes(run, number) is not None
        return cls(folder.name, answer, classes, router, head, named)

    def __call__(self, queries: Sequence[tuple[str, NDArray[Any]]]) -> list[NDArray[np.float64]]:
        """Probabilities [n, K] for every query, samples of one kind together."""
        answers: dict[int, NDArray[np.float64]] = {}
        for sort in {(kind, x.dtype) for kind, x in queries}:
            places = [i for i, (kind, x) in enumerate(queries) if (kind, x.dtype) == sort]
            rows = torch.from_numpy(np.concatenate([queries[i][1] for i in places]))
            inside = sort[0] == "features"
            logits = self.head.features(rows) if inside else self.head.samples(self.router.inputs(rows))
            found = logits.double().softmax(1).numpy()
            if not np.isfinite(found).all():
                raise FeddrmError("the numbers are too large for this model: check their scale")
            start = 0
            for i in places:
                stop = start + len(queries[i][1])
                answers[i] = found[start:stop]
                start = stop
        return [answers[i] for i in range(len(queries))]


@dataclass(frozen=True, eq=False)
class TrainedHead:
    """The model that the method serves this client."""

    net: Net
    leaves: Mapping[str, Tensor]
    takes_features: bool

    @classmethod
    def load(cls, folder: Path, run: Path, manifest: Mapping[str, Any], router: Router) -> TrainedHead:
        private = read_tensors(folder / PRIVATE)
        settings = _config(run / "config.yaml")
        method = Method.make(settings["method"].pop("name"), **settings["method"])
        model = Model.make(settings["model"].pop("name"), **settings["model"])
        slots: dict[str, dict[str, Tensor]] = {}
        for name, value in private.items():
            slot, _, leaf = name.partition("/")
            slots.setdefault(slot, {})[leaf] = value
        if (folder / SHARED).is_file():
            received = read_tensors(folder / SHARED)
        else:
            received = method.send(read_tensors(run / "router" / SHARED), router.names.index(folder.name))
        leaves = method.serve(received, slots)
        branch = leaves.get("client_head.bias")
        net = model.build(router.shape, int(manifest["classes"]), None if branch is None else len(branch))
        net.requires_grad_(False)
        missing = [leaf for leaf, _ in net.named_parameters() if leaf not in leaves]
        if missing:
            raise FeddrmError(f"{folder} and {run / 'router'} lack leaf '{missing[0]}': copy the run again")
        own_trunk = any(is_trunk(leaf) for leaf in slots.get("model", {}))
        wanted = {leaf: leaves[leaf] for leaf, _ in net.named_parameters()}
        return cls(net, wanted, router.recipe.name == "embedding" and not own_trunk)

    def samples(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = functional_call(self.net, dict(self.leaves), (x,)).logits
        return logits

    def features(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            net = self.net
            hidden = functional_call(net.project, part(self.leaves, "project"), (x,))
            logits: Tensor = functional_call(net.head, part(self.leaves, "head"), (hidden,))
        return logits


@dataclass(frozen=True, eq=False)
class RefitHead:
    """The probe that everybody may have, with this client's own correction."""

    recipe: Recipe
    net: Net | None
    leaves: Mapping[str, Tensor]
    scaler: Scaler
    point: Tensor
    takes_features: bool

    @classmethod
    def load(cls, folder: Path, run: Path, manifest: Mapping[str, Any], router: Router) -> RefitHead:
        heads, notes = load_heads(run / "router"), manifest["notes"].get("heads")
        if not heads or notes is None or not (folder / HEAD).is_file():
            raise FeddrmError(f"{run} has no refitted heads: run 'feddrm fit-router {run}' first, or --answer trained")
        recipe = Recipe.of(notes)
        shared = read_tensors(folder / SHARED if (folder / SHARED).is_file() else run / "router" / SHARED)
        net = None
        if recipe.needs:
            settings = dict(manifest["model"])
            branch = shared.get("client_head.bias")
            model = Model.make(settings.pop("name"), **settings)
            net = model.build(router.shape, int(manifest["classes"]), None if branch is None else len(branch))
            net.requires_grad_(False)
        leaves = {leaf: value for leaf, value in shared.items() if recipe.wants(leaf)}
        point = heads["probe"] + read_tensors(folder / HEAD)["correction"]
        same = recipe.name == router.recipe.name
        return cls(recipe, net, leaves, Scaler(heads["mean"], heads["scale"]), point, same)

    def samples(self, x: Tensor) -> Tensor:
        found = extract(self.recipe, self.net, self.leaves, x)
        return self.features(torch.cat([found[feature.name] for feature in self.recipe.features], dim=1))

    def features(self, x: Tensor) -> Tensor:
        return logits_at(self.scaler(x), self.point)


def with_own_scale(router: Router, folder: Path) -> Router:
    """The router with a client's own scale of raw samples; where its folder has none, all clients have the router's."""
    try:
        found = json.loads((folder / SCALE).read_text())
        mean, std = (tuple(float(value) for value in found[key]) for key in ("mean", "std"))
    except FileNotFoundError:
        if router.own_scales:
            raise FeddrmError(f"{folder} has no {SCALE}, and every client has its own: copy the run again") from None
        return router
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FeddrmError(f"cannot read {folder / SCALE} ({error}): copy the run again") from error
    return replace(router, input_mean=mean, input_std=std, own_scales=False)


def class_names(run: Path, number: int) -> tuple[str, ...]:
    """Names where the run has them, numbers elsewhere."""
    return known_classes(run, number) or tuple(str(i) for i in range(number))


def known_classes(run: Path, number: int) -> tuple[str, ...] | None:
    """As the router's manifest has them, or the run's portrait; None where neither is there, or has as many."""
    for read in (_of_manifest, _of_portrait):
        with contextlib.suppress(FeddrmError, OSError, ValueError, KeyError, TypeError):
            names = tuple(str(name) for name in read(run))
            if len(names) == number:
                return names
    return None


def _of_manifest(run: Path) -> list[str]:
    return list(read_manifest(run / "router")["notes"]["classes"])


def _of_portrait(run: Path) -> list[str]:
    return list(json.loads((run / "data.json").read_text())["classes"])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """A file of tensors."""
    try:
        return load(path.read_bytes())
    except OSError as error:
        raise FeddrmError(f"cannot read {path} ({error.strerror}): copy the run again") from error
    except SafetensorError as error:
        raise FeddrmError(f"{path} is no safetensors file ({error}): copy the run again") from error


def _config(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text())
        return {"method": dict(found["method"]), "model": dict(found["model"])}
    except OSError as error:
        raise FeddrmError(f"cannot read {path} ({error.strerror}): give the run's folder with --run") from error
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise FeddrmError(f"{path} is no run's configuration: give the run's folder with --run") from error
