"""The public files of a run: its configuration, the facts about its data, and the router.

The server writes them into its run folder and sends them to every site with the last message. With them the
server's run folder opens like any other run, and ``feddrm serve-client`` needs nothing but a site's own folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from feddrm.data import DEPLOYED
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.io.run_files import CONFIG, FACTS, ROUTER_FOLDER, RunFiles
from feddrm.io.staging import settle_run
from feddrm.io.text import json_bytes, yaml_bytes
from feddrm.router.artifact import HEADS, MANIFEST, ROUTER, TRUNK, Artifact

SOURCE = "sites that keep their own samples"
INDEX = f"{ROUTER_FOLDER}/{MANIFEST}"
PUBLIC = (CONFIG, FACTS, *(f"{ROUTER_FOLDER}/{name}" for name in (ROUTER, TRUNK, HEADS)), INDEX)
PREFIX = "public/"  # of the name of a file among the tensors of a message


def describe_run(folder: Path, spec: RunSpec) -> None:
    """Write ``config.yaml`` and ``data.json``. The server knows no sample and no count of labels."""
    plain = spec.as_dict()
    config = {"data": {"name": DEPLOYED}, "method": plain["method"], "model": plain["model"], **plain["plan"]}
    config |= {"plugins": plain["plugins"]} if spec.plugins else {}
    facts = {
        "name": DEPLOYED,
        "source": SOURCE,
        "settings": {},
        "sample_shape": plain["shape"],
        "classes": plain["classes"],
        "columns": plain["columns"],
        **({} if spec.schema is None else {"schema": plain["schema"]}),
        "clients": [
            {"name": name, "train": size, "class_counts": None}
            for name, size in zip(spec.names, spec.sizes, strict=True)
        ],
        "train": sum(spec.sizes),
    }
    write_atomically(folder / CONFIG, yaml_bytes(config))
    write_atomically(folder / FACTS, json_bytes(facts))


def public_tensors(folder: Path) -> dict[str, Tensor]:
    """The public files of a run folder as tensors of bytes, for a message."""
    paths = {name: folder / name for name in PUBLIC if (folder / name).exists()}
    return {
        f"{PREFIX}{name}": torch.from_numpy(np.frombuffer(path.read_bytes(), np.uint8).copy())
        for name, path in paths.items()
    }


def without_public(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The other tensors of a message that carries public files."""
    return {name: value for name, value in tensors.items() if not name.startswith(PREFIX)}


def write_public(
    folder: Path, tensors: Mapping[str, Tensor], shared: Mapping[Path, bytes], private: Mapping[Path, bytes]
) -> None:
    """Write the public files of a message into a site's folder, and the site's own with them: old or new as a whole.

    Without a router in the message an older one is removed first: nothing answers with a part of the new files.
    """
    public = {folder / name: content for name, content in _received(tensors).items() if name in (CONFIG, FACTS)}
    artifact = received_artifact(tensors)
    settle_run(RunFiles(folder))
    if artifact is not None:
        artifact.write(folder / ROUTER_FOLDER, {**public, **shared}, private)
        return
    (folder / INDEX).unlink(missing_ok=True)
    for path, content in {**public, **shared, **private}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content, private=path in private)


def received_artifact(tensors: Mapping[str, Tensor]) -> Artifact | None:
    """The router among the public files of a message; None if there is none."""
    files = {name.removeprefix(f"{ROUTER_FOLDER}/"): content for name, content in _received(tensors).items()}
    parts = {name: files[name] for name in (ROUTER, TRUNK, HEADS) if name in files}
    return Artifact(files[MANIFEST], parts) if MANIFEST in files else None


def _received(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    """The public files of a message, under known names only."""
    files = {name.removeprefix(PREFIX): value for name, value in tensors.items() if name.startswith(PREFIX)}
    if unknown := [name for name in files if name not in PUBLIC]:
        raise FeddrmError(f"the server sent a file '{unknown[0]}': both ends need the same feddrm")
    return {name: value.cpu().numpy().tobytes() for name, value in files.items()}
