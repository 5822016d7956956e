"""A router as files: ``manifest.json`` and safetensors, without pickle and without private leaves.

Reading verifies checksums and values. A router that is there already stays whole until the new one is
(:mod:`feddrm.io.staging`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from feddrm.data.query_views import QueryViews
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.staging import Snapshot, checksum, read_whole, replace_together
from feddrm.io.tensors import tensor_bytes
from feddrm.io.text import read_bytes, read_json
from feddrm.models import Model, Net, is_head
from feddrm.moments.score_test import SampleMoments
from feddrm.plugins import require_plugins, used_plugins, without_folders
from feddrm.router.features.base import Recipe
from feddrm.router.features.decorrelated_inputs import DecorrelatedInputs
from feddrm.router.features.roughness import RoughnessRange
from feddrm.router.policy import Calibration
from feddrm.router.router import Router
from feddrm.router.solver.problem import Scaler
from feddrm.tables.table_schema import TableSchema
from feddrm.tasks import CLASSIFICATION, Task
from feddrm.typed_settings import typed_arguments

FORMAT = "feddrm-router-1"
MANIFEST, ROUTER, TRUNK, HEADS = "manifest.json", "router.safetensors", "trunk.safetensors", "heads.safetensors"
TASK = "task"  # a note in the manifest; without it the task is classification
AGAIN = (
    "fit it again with 'feddrm fit-router'; of a deployed run, put the folder back from the server or a site, which "
    "have the same"
)
DIVERGED = "train with a lower --lr, or scale the data"
REFERENCE = ("drift_count", "drift_mean", "drift_covariance")  # tensors, absent from older routers
DECORRELATED = ("decorrelated_places", "decorrelated_matrix")  # of a table; absent from older routers
# Notes in the manifest. Both stay as they are when clients leave or join.
TRAINED_CLIENTS, FIT = "trained_clients", "fit"


@dataclass(frozen=True, eq=False)
class Artifact:
    """The manifest and the other files of a router, before they are written."""

    manifest: bytes
    files: Mapping[str, bytes]

    @property
    def fit(self) -> str | None:
        """The name of the fit, which the clients' private heads carry; older versions gave none."""
        fit: str | None = json.loads(self.manifest)["notes"].get(FIT)
        return fit

    def write(
        self, folder: Path, public: Mapping[Path, bytes] | None = None, private: Mapping[Path, bytes] | None = None
    ) -> None:
        """Replace the router in a folder, and with it, as a whole, files elsewhere that belong to it."""
        files = {folder / name: content for name, content in {**self.files, MANIFEST: self.manifest}.items()}
        replace_together(folder, {**files, **(public or {})}, private or {})
        for path in (folder / ROUTER, folder / TRUNK, folder / HEADS):
            if path not in files:
                path.unlink(missing_ok=True)  # heads, or a trunk, of an earlier fit
            path.with_name(f".{path.name}.new").unlink(missing_ok=True)  # left by an older version


def save_router(folder: Path, router: Router, **parts: Any) -> None:
    """Write a router's artifact; ``parts`` as for :func:`make_artifact`."""
    make_artifact(router, **parts).write(folder)


def make_artifact(
    router: Router,
    *,
    model: Mapping[str, Any] | None = None,
    classes: int = 0,
    heads: Mapping[str, Tensor] | None = None,
    notes: Mapping[str, Any] | None = None,
    new_fit: bool = False,
) -> Artifact:
    """The files of the router, the shared leaves it needs, and the server's class heads.

    ``model`` is the network's name and settings, as in ``config.yaml``. A class head's leaf among the
    shared ones is refused, because it may be private. A ``new_fit`` is named in the notes, by the manifest's checksum.
    """
    files = {
        name: tensor_bytes(dict(sorted(tensors.items())))
        for name, tensors in _contents(router, heads or {}).items()
        if tensors
    }
    calibration = asdict(router.calibration)
    del calibration["reference"]  # among the tensors
    roughness = calibration.pop("roughness")  # where versions that do not know it do not look
    if calibration["unlike_above"] == float("inf"):
        calibration["unlike_above"] = None  # JSON has no infinity
    client_head = None if router.net is None else router.net.client_head
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "clients": list(router.names),
        "features": router.recipe.as_list(),
        "model": _with_plugins(model) if model is not None else None,
        "classes": classes,
        # Outputs of the network's client head. The router may have lost or gained clients since it was trained.
        "client_branch": None if client_head is None else client_head.out_features,
        "input": {
            "shape": list(router.shape),
            "mean": list(router.input_mean),
            "std": list(router.input_std),
            "own_scales": router.own_scales,
            "schema": None if router.schema is None else router.schema.as_dict(),
            "views": None
            if router.query_views is None
            else {"crops": router.query_views.crops, "mirrors": router.query_views.mirrors},
        },
        "calibration": calibration,
        **({} if roughness is None else {"roughness": roughness}),
        "notes": dict(notes or {}),
        "files": {name: {"sha256": _digest(content), "bytes": len(content)} for name, content in files.items()},
    }
    if new_fit:
        manifest["notes"][FIT] = checksum(_manifest_bytes(manifest))
    return Artifact(_manifest_bytes(manifest), files)


def _manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    try:
        return (json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except ValueError as error:
        raise FeddrmError(f"the router's manifest would hold a number that is not finite: {DIVERGED}") from error


def _contents(router: Router, heads: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors of each file; those that are private or not finite are refused."""
    leaves = {leaf: value for leaf, value in router.leaves.items() if router.recipe.wants(leaf)}
    private = [leaf for leaf in leaves if is_head(leaf)]
    if private:
        raise FeddrmError(f"leaf '{private[0]}' may be private: a router holds shared leaves only")
    tensors = {
        "mean": router.scaler.mean,
        "scale": router.scaler.scale,
        "weight": router.weight,
        "bias": router.bias,
        "log_prior": router.log_prior,
    }
    if router.competence is not None:
        tensors["competence"] = router.competence
    if router.means is not None:
        tensors["client_means"] = router.means
    if router.decorrelated is not None:
        tensors |= dict(zip(DECORRELATED, (router.decorrelated.places, router.decorrelated.matrix), strict=True))
    if (reference := router.calibration.reference) is not None:
        values = (np.array([reference.count]), reference.mean, reference.covariance)
        tensors |= {name: torch.from_numpy(value) for name, value in zip(REFERENCE, values, strict=True)}
    if router.usual is not None:
        tensors |= {"input_mean": router.usual.mean, "input_scale": router.usual.scale}
    contents = {ROUTER: tensors, TRUNK: leaves, HEADS: dict(heads)}
    for key, value in ((key, value) for part in contents.values() for key, value in part.items()):
        if not bool(value.isfinite().all()):
            raise FeddrmError(f"the router's '{key}' holds a number that is not finite: {DIVERGED}")
    return contents


def trained_clients(manifest: Mapping[str, Any]) -> list[str]:
    """All clients of the training in their order, also if some have left the router since."""
    return list(manifest["notes"].get(TRAINED_CLIENTS, manifest["clients"]))


@typed_arguments
def load_router(folder: str | Path, device: torch.device | str = "cpu") -> Router:
    """Read a router; another format, a missing or altered file or a number that is not finite is refused."""
    return read_whole(Path(folder), lambda _: _load(Path(folder))).to(device)


def _load(folder: Path) -> Router:
    manifest = read_manifest(folder)
    tensors = _read(folder, ROUTER, manifest)
    leaves = _read(folder, TRUNK, manifest) if TRUNK in manifest["files"] else {}
    try:
        recipe = Recipe.of(manifest["features"])
        columns, schema = manifest["notes"].get("columns"), manifest["input"].get("schema")
        views = manifest["input"].get("views")
        calibration = dict(manifest["calibration"])
        if calibration["unlike_above"] is None:
            calibration["unlike_above"] = float("inf")
        calibration["confidence"] = {rule: tuple(values) for rule, values in calibration["confidence"].items()}
        router = Router(
            names=tuple(manifest["clients"]),
            recipe=recipe,
            scaler=Scaler(tensors["mean"], tensors["scale"]),
            weight=tensors["weight"],
            bias=tensors["bias"],
            log_prior=tensors["log_prior"],
            calibration=Calibration(
                **calibration, reference=_reference(tensors), roughness=_roughness(manifest.get("roughness"))
            ),
            net=_network(manifest, folder) if recipe.needs else None,
            leaves=leaves,
            shape=tuple(manifest["input"]["shape"]),
            input_mean=tuple(manifest["input"]["mean"]),
            input_std=tuple(manifest["input"]["std"]),
            own_scales=bool(manifest["input"].get("own_scales", False)),  # absent from older manifests, as all below
            columns=None if columns is None else tuple(columns),
            schema=None if schema is None else TableSchema.of(schema),
            competence=tensors.get("competence"),
            means=tensors.get("client_means"),
            query_views=None if views is None else QueryViews(bool(views["crops"]), bool(views["mirrors"])),
            usual=Scaler(tensors["input_mean"], tensors["input_scale"]) if "input_mean" in tensors else None,
            decorrelated=_decorrelated(tensors, folder),
        )
    except (KeyError, TypeError, ValueError, AttributeError, SettingError) as error:
        raise FeddrmError(f"{folder / MANIFEST} is incomplete ({error}): {AGAIN}") from error
    _check_fit_together(folder, router)
    return router


def _check_fit_together(folder: Path, router: Router) -> None:
    if router.weight.shape[0] != router.clients or router.bias.shape != (router.clients,):
        raise FeddrmError(f"{folder} names {router.clients} clients but has {router.weight.shape[0]} columns: {AGAIN}")
    for name, tensor, width in (
        ("competence", router.competence, router.weight.shape[1] + 1),
        ("client_means", router.means, router.weight.shape[1]),
    ):
        if tensor is not None and tensor.shape != (router.clients, width):
            raise FeddrmError(f"{folder / ROUTER}: tensor '{name}' has shape {tuple(tensor.shape)}: {AGAIN}")
    if router.schema is not None and (len(router.schema.encoded),) != router.shape:
        raise FeddrmError(f"{folder} has a schema of {len(router.schema.encoded)} inputs, not {router.shape}: {AGAIN}")
    if router.net is not None:
        wanted = [leaf for leaf, _ in router.net.named_parameters() if router.recipe.wants(leaf)]
        if missing := [leaf for leaf in wanted if leaf not in router.leaves]:
            raise FeddrmError(f"{folder / TRUNK} has no leaf '{missing[0]}': {AGAIN}")


def _reference(tensors: Mapping[str, Tensor]) -> SampleMoments | None:
    if not tensors.keys() >= set(REFERENCE):
        return None
    count, mean, covariance = (tensors[name].numpy() for name in REFERENCE)
    return SampleMoments(int(count[0]), mean, covariance)


def _roughness(known: Mapping[str, Any] | None) -> RoughnessRange | None:
    return None if known is None else RoughnessRange(float(known["least"]), float(known["most"]))


def _decorrelated(tensors: Mapping[str, Tensor], folder: Path) -> DecorrelatedInputs | None:
    if DECORRELATED[0] not in tensors:
        return None
    places, matrix = (tensors[name] for name in DECORRELATED)
    inside = (places >= 0) & (places < len(tensors["mean"]))
    if matrix.shape != (len(places), len(places)) or not bool(inside.all()):
        raise FeddrmError(f"{folder / ROUTER}: tensor '{DECORRELATED[1]}' does not fit the features: {AGAIN}")
    return DecorrelatedInputs(places, matrix)


def _with_plugins(model: Mapping[str, Any]) -> dict[str, Any]:
    """The model's settings with the plugins that define it, unless they are among the settings already."""
    plugins = without_folders(used_plugins(Model.family.get(model.get("name", ""))))
    return {**({"plugins": plugins} if plugins else {}), **model}


def _network(manifest: Mapping[str, Any], folder: Path) -> Net | None:
    """The network that computes features; None where the manifest describes none."""
    if manifest["model"] is None:
        return None
    shape = tuple(manifest["input"]["shape"])
    net = manifest_model(manifest, folder).build(shape, manifest["classes"], manifest["client_branch"])
    return net.requires_grad_(False)


def manifest_model(manifest: Mapping[str, Any], folder: Path) -> Model:
    """The model that a router in ``folder`` was fitted with. A plugin that it needs must have been loaded."""
    settings = dict(manifest["model"])
    require_plugins(settings.pop("plugins", None), folder / MANIFEST)
    return Model.make(settings.pop("name"), **settings)


def manifest_task(manifest: Mapping[str, Any]) -> Task:
    """The task of the clients' models; a router from before tasks was fitted for classification."""
    given = manifest["notes"].get(TASK)
    return CLASSIFICATION if given is None else Task.of(given)


def load_heads(folder: str | Path) -> dict[str, Tensor]:
    """The server's class heads, empty where none were fitted."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    return _read(folder, HEADS, manifest) if HEADS in manifest["files"] else {}


def artifact_version(folder: Path) -> str:
    """The checksum of the manifest, which lists the checksums of all other files; '' where there is no router."""
    path, now = folder / MANIFEST, Snapshot.of(folder)
    return checksum(now.read(path, lambda place: read_bytes(place, AGAIN))) if now.has(path) else ""


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest; one of another format is refused."""
    path, now = folder / MANIFEST, Snapshot.of(folder)
    if not now.has(path):
        raise FeddrmError(
            f"{folder} holds no router (no {MANIFEST}): fit it with 'feddrm fit-router'; a deployed federation fits "
            "its own, unless federation.yaml says 'router: false' or asks for privacy"
        )
    manifest = now.read(path, lambda place: read_json(place, AGAIN))
    if manifest.get("format") != FORMAT:
        version = manifest.get("format")
        raise FeddrmError(f"{folder} holds a router of format {version!r}, this version reads '{FORMAT}': {AGAIN}")
    if not isinstance(manifest.get("files"), dict) or ROUTER not in manifest["files"]:
        raise FeddrmError(f"{path} lists no {ROUTER}: {AGAIN}")
    return manifest


def _read(folder: Path, name: str, manifest: Mapping[str, Any]) -> dict[str, Tensor]:
    path = folder / name
    content = _listed(path, manifest)
    if content is None:
        try:
            path.read_bytes()
        except OSError as error:
            raise FeddrmError(f"cannot read {path} ({error.strerror}): copy it again, or {AGAIN}") from error
        raise FeddrmError(f"{path} is not the file the manifest lists (checksum differs): copy it again, or {AGAIN}")
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise FeddrmError(f"{path} is no safetensors file ({error}): copy it again, or {AGAIN}") from error
    for key, value in tensors.items():
        if not bool(value.isfinite().all()):
            raise FeddrmError(f"{path}: tensor '{key}' holds a number that is not finite: {AGAIN}")
    return tensors


def _listed(path: Path, manifest: Mapping[str, Any]) -> bytes | None:
    """The content with the manifest's checksum; after an interrupted fit it may still have its waiting name."""
    # Its place is looked at again: the file may have been renamed in between.
    for place in (path, *path.parent.glob(f".{path.name}.*new"), path):
        with contextlib.suppress(OSError):
            if _digest(content := place.read_bytes()) == manifest["files"][path.name].get("sha256"):
                return content
    return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
