"""A client's predictor: class probabilities from the shared leaves and this client's private ones, no other's."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call

from feddrm.data.query_views import QueryViews
from feddrm.engine import CPU_QUERIES, largest_product
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.run_files import ClientFiles, RunFiles
from feddrm.io.shards import find_client
from feddrm.io.staging import Snapshot, read_whole
from feddrm.io.tensors import read_tensors, split_slots
from feddrm.io.text import broken, read_json, read_yaml
from feddrm.methods import Method, Slots
from feddrm.models import Model, Net, is_trunk, of_this_thread, part
from feddrm.plugins import require_plugins
from feddrm.predictor.query_groups import compute_in_groups
from feddrm.registry import listing, nearest
from feddrm.router import Recipe, Router, load_heads, load_router, read_manifest
from feddrm.router.answer_calibration import NO_SCORES, AnswerCalibration
from feddrm.router.artifact import FIT, manifest_model, manifest_task, trained_clients
from feddrm.router.features.base import extract
from feddrm.router.label_sets import check_label_miss, within_set
from feddrm.router.private_head import ClientParts
from feddrm.router.solver.client_statistics import logits_at
from feddrm.router.solver.problem import Scaler
from feddrm.tasks import CLASSIFICATION, Task, require_classes
from feddrm.threads import without_onednn_if_small

ANSWERS = ("trained", "refit")
COPY_AGAIN = "copy the run again"


@dataclass(frozen=True, eq=False)
class Predictor:
    """Gives class probabilities of samples, and of features where the head needs nothing else."""

    name: str
    version: str
    classes: tuple[str, ...]
    router: Router  # for the shape of samples and this client's scale
    head: TrainedHead | RefitHead
    named: bool  # whether the classes have names; otherwise they have numbers
    views: QueryViews = field(default_factory=QueryViews)  # of every sample; features are answered as they are
    fit: str | None = None  # the name of the router's fit that the head belongs to; a trained one belongs to none
    task: Task = CLASSIFICATION  # its answers: class probabilities, or the survival curve

    @property
    def takes_features(self) -> bool:
        return self.head.takes_features

    @classmethod
    def load(cls, folder: Path, run: Path | None = None, answer: str = "trained", views: int = 1) -> Predictor:
        """Load from a client's folder. ``run`` has ``config.yaml`` and ``router/``; default: two levels above.

        ``answer`` is ``trained`` for the model that the method trained, or ``refit`` for the private head that
        'feddrm fit-router' fitted on the router's features. A site of a deployed federation has the shared leaves in
        its own folder instead of ``router/``. Answers are averaged over so many ``views`` of a sample.
        """
        if answer not in ANSWERS:
            raise SettingError(f"answer '{answer}'{nearest(answer, ANSWERS)}: choose {' or '.join(ANSWERS)}")
        folder = folder.resolve()
        run = folder.parent.parent if run is None else run
        client, files = ClientFiles(folder), RunFiles(run)
        return read_whole(files.router, lambda now: cls._load(client, files, answer, views, now))

    @classmethod
    def _load(cls, client: ClientFiles, files: RunFiles, answer: str, views: int, now: Snapshot) -> Predictor:
        name, run = client.path.name, files.path
        if private_slots(client, files, now) is None:
            missing = client.private_file.name
            raise FeddrmError(f"{client.path} is no client's folder (it has no {missing}): give RUN/clients/NAME")
        manifest, router = read_manifest(files.router), load_router(files.router)
        if name not in router.names:
            raise FeddrmError(f"the router knows no client '{name}' {listing(router.names)}")
        parts, task = ClientParts(client, files, manifest, now, COPY_AGAIN), manifest_task(manifest)
        router = with_own_scale(router, parts)
        if answer == "refit":
            require_classes(task, "the refitted head", "give --answer trained")
        kind = TrainedHead if answer == "trained" else RefitHead
        head = kind.load(parts, files, manifest, router)
        number = int(manifest["classes"])
        named = known_classes(run, number) is not None
        fit = manifest["notes"].get(FIT) if answer == "refit" else None
        return cls(name, answer, class_names(run, number), router, head, named, router.views(views), fit, task)

    def __call__(self, queries: Sequence[tuple[str, NDArray[Any]]]) -> list[NDArray[np.float64]]:
        """Probabilities [n, K] for every query; queries with the same kind of samples in one pass.

        The kernels are those of training, so that a service and a call in Python answer with the same bits.
        """
        for kind, x in queries:
            if kind == "features":
                self.check_features(x)
        largest = 0 if self.head.net is None else largest_product(self.head.net, CPU_QUERIES)
        with without_onednn_if_small(largest):
            return compute_in_groups(queries, self._probabilities)

    def check_features(self, x: NDArray[Any]) -> None:
        """An error if the head needs other features than the router's, or these are not the router's."""
        if not self.takes_features:
            raise FeddrmError(
                f"the {self.version} head of client '{self.name}' needs more than the router's features "
                f"({self.router.recipe.name}): give the samples themselves"
            )
        self.router.check_features(x)

    def _probabilities(self, kind: str, x: NDArray[Any]) -> NDArray[np.float64]:
        rows = torch.from_numpy(x)
        if kind == "features":
            logits = self.head.features(rows)
        else:
            logits = self.views.mean(self.router.inputs(rows), lambda x: {"logits": self.head.samples(x)})["logits"]
        probabilities: NDArray[np.float64] = self.task.answers(
            logits.double() / self.head.calibration.temperature
        ).numpy()
        if not np.isfinite(probabilities).all():
            if not (finite := rows.flatten(1).isfinite().all(1)).all():
                row = int(finite.logical_not().nonzero()[0])
                raise FeddrmError(f"sample {row} has a missing or infinite value: complete it, or leave it out")
            raise FeddrmError("the numbers are too large for this model: check their scale")
        return probabilities

    def p_values(self, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """The conformal p-values of the classes whose probabilities this client gave."""
        require_classes(self.task, "a p-value", "leave out label sets")
        if self.head.calibration.scores is None:
            raise FeddrmError(f"client '{self.name}' has {NO_SCORES}")
        values: NDArray[np.float64] = self.head.calibration.p_values(torch.from_numpy(probabilities)).numpy()
        return values

    def label_sets(self, probabilities: NDArray[np.float64], miss: float) -> list[list[str]]:
        """The classes of every query that this client cannot exclude.

        For queries that belong to this client, a set misses the label with a probability of at most ``miss``.
        """
        check_label_miss(miss)
        return named_sets(within_set(torch.from_numpy(self.p_values(probabilities)), miss), self.classes)


@dataclass(frozen=True, eq=False)
class TrainedHead:
    """The model that the method trained for this client."""

    net: Net
    leaves: Mapping[str, Tensor]
    takes_features: bool
    calibration: AnswerCalibration

    @classmethod
    def load(cls, parts: ClientParts, run: RunFiles, manifest: Mapping[str, Any], router: Router) -> TrainedHead:
        client, now = parts.client, parts.now
        private = private_slots(client, run, now) or {}
        method, model = now.read(run.config_file, _method_and_model)
        if now.has(client.shared_file):
            received = now.read(client.shared_file, _tensors)
        else:
            number = trained_clients(manifest).index(client.path.name)
            received = method.send(_tensors(run.shared_file), number)
        leaves = method.serve(received, private)
        net = _build(model, router, manifest, leaves)
        missing = [leaf for leaf, _ in net.named_parameters() if leaf not in leaves]
        if missing:
            raise FeddrmError(f"{client.path} and {run.router} lack leaf '{missing[0]}': {COPY_AGAIN}")
        own_trunk = any(is_trunk(leaf) for leaf in private.get("model", {}))
        used = {leaf: leaves[leaf] for leaf, _ in net.named_parameters()}
        takes_features = router.recipe.name == "embedding" and not own_trunk
        return cls(net, used, takes_features, parts.trained())

    def samples(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = functional_call(of_this_thread(self.net), dict(self.leaves), (x,)).logits
        return logits

    def features(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            net = of_this_thread(self.net)
            hidden = functional_call(net.project, part(self.leaves, "project"), (x,))
            logits: Tensor = functional_call(net.head, part(self.leaves, "head"), (hidden,))
        return logits


@dataclass(frozen=True, eq=False)
class RefitHead:
    """The public probe plus this client's private correction, on the features of the probe's recipe."""

    recipe: Recipe
    net: Net | None
    leaves: Mapping[str, Tensor]
    scaler: Scaler
    weights: Tensor
    takes_features: bool
    calibration: AnswerCalibration

    @classmethod
    def load(cls, parts: ClientParts, run: RunFiles, manifest: Mapping[str, Any], router: Router) -> RefitHead:
        heads, notes = load_heads(run.router), manifest["notes"].get("heads")
        remedy = f"run 'feddrm fit-router {run.path}', or give --answer trained"
        fitted = bool(heads) and notes is not None
        own = parts.head(manifest["notes"].get(FIT), f"{COPY_AGAIN}, {remedy}") if fitted else None
        if own is None:
            raise FeddrmError(f"{run.path} has no refitted heads: {remedy}")
        recipe, received = Recipe.of(notes), parts.client.shared_file
        shared = parts.now.read(received if parts.now.has(received) else run.shared_file, _tensors)
        net = None
        if recipe.needs:
            net = _build(manifest_model(manifest, run.router), router, manifest, shared)
        leaves = {leaf: value for leaf, value in shared.items() if recipe.wants(leaf)}
        weights, scaler = heads["probe"] + own.correction, Scaler(heads["mean"], heads["scale"])
        return cls(recipe, net, leaves, scaler, weights, recipe.name == router.recipe.name, own.calibration)

    def samples(self, x: Tensor) -> Tensor:
        return self.features(self.recipe.joined(extract(self.recipe, self.net, self.leaves, x)))

    def features(self, x: Tensor) -> Tensor:
        return logits_at(self.scaler(x), self.weights)


def named_sets(within: Tensor, classes: Sequence[str]) -> list[list[str]]:
    """Sets of classes [n, K] by name."""
    return [[name for name, inside in zip(classes, row, strict=True) if inside] for row in within.tolist()]


def private_slots(client: ClientFiles, run: RunFiles, now: Snapshot) -> Slots | None:
    """One client's private slots, from its own folder or from a shard of its run; None if neither has them."""
    if now.has(client.private_file):
        return split_slots(now.read(client.private_file, _tensors))
    return find_client(run.shard_files(), client.path.name, COPY_AGAIN)


def _tensors(path: Path) -> dict[str, Tensor]:
    return read_tensors(path, COPY_AGAIN)


def with_own_scale(router: Router, parts: ClientParts) -> Router:
    """The router with the client's own scale of raw samples; a client without one has the router's."""
    scale = parts.scale()
    if scale is None:
        if router.own_scales:
            client = parts.client
            raise FeddrmError(
                f"{client.path} has no {client.scale_file.name}, and every client has its own: {COPY_AGAIN}"
            )
        return router
    return replace(router, input_mean=scale[0], input_std=scale[1], own_scales=False)


def class_names(run: Path, number: int) -> tuple[str, ...]:
    """The names of a run's classes; their numbers where the run has no names."""
    return known_classes(run, number) or tuple(str(i) for i in range(number))


def known_classes(run: Path, number: int) -> tuple[str, ...] | None:
    """Class names from the router's manifest or the run's dataset summary; None if neither has that many."""
    files = RunFiles(run)
    for read in (lambda: read_manifest(files.router)["notes"], lambda: read_json(files.facts_file, COPY_AGAIN)):
        with contextlib.suppress(FeddrmError, KeyError, TypeError):
            names = tuple(str(name) for name in read()["classes"])
            if len(names) == number:
                return names
    return None


def _method_and_model(path: Path) -> tuple[Method, Model]:
    """The method and the model of a run's configuration."""
    remedy = "give the run's folder with --run"
    config = read_yaml(path, remedy)
    require_plugins(config.get("plugins"), path)
    try:
        method, model = dict(config["method"]), dict(config["model"])
    except (KeyError, TypeError, ValueError) as error:
        raise broken(path, "no run's configuration", remedy) from error
    return Method.make(method.pop("name"), **method), Model.make(model.pop("name"), **model)


def _build(model: Model, router: Router, manifest: Mapping[str, Any], leaves: Mapping[str, Tensor]) -> Net:
    """The net for these leaves, for inference only."""
    branch = leaves.get("client_head.bias")
    net = model.build(router.shape, int(manifest["classes"]), None if branch is None else len(branch))
    return net.requires_grad_(False)
