"""What everybody may know of a run: written down by the server, and by every site beside its own private part.

With it the server's run folder is a run like any other, and a site's folder all that ``feddrm serve-client`` needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor

from feddrm.data import DEPLOYED
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.io.run_files import CONFIG, FACTS
from feddrm.router.artifact import HEADS, MANIFEST, ROUTER, TRUNK

INDEX = f"router/{MANIFEST}"  # written last: it lists the other files of the router
PUBLIC = (CONFIG, FACTS, *(f"router/{name}" for name in (ROUTER, TRUNK, HEADS)), INDEX)
PREFIX = "public/"  # of a file among the tensors of a letter


def describe_run(folder: Path, brief: RunSpec) -> None:
    """``config.yaml`` and ``data.json`` as far as a server knows the data: no sample, no count of labels."""
    plain = json.loads(json.dumps(brief.as_dict()))
    config = {"data": {"name": DEPLOYED}, "method": plain["method"], "model": plain["model"], **plain["plan"]}
    federation = brief.federation()
    facts = {
        "name": federation.name,
        "source": federation.source,
        "settings": {},
        "sample_shape": plain["shape"],
        "classes": plain["classes"],
        "columns": plain["columns"],
        "clients": [
            {"name": name, "train": size, "class_counts": None}
            for name, size in zip(brief.names, brief.sizes, strict=True)
        ],
        "train": sum(brief.sizes),
    }
    write_atomically(folder / CONFIG, yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode())
    write_atomically(folder / FACTS, (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode())


def public_files(folder: Path) -> dict[str, Tensor]:
    """The public files of a run folder, as a letter carries them."""
    found = {name: folder / name for name in PUBLIC if (folder / name).exists()}
    return {
        f"{PREFIX}{name}": torch.from_numpy(np.frombuffer(path.read_bytes(), np.uint8).copy())
        for name, path in found.items()
    }


def without_files(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The leaves of a letter that brought files, too."""
    return {name: value for name, value in tensors.items() if not name.startswith(PREFIX)}


def keep_files(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the files of a letter into a site's folder: the known names and no others; an older router goes."""
    found = {name.removeprefix(PREFIX): value for name, value in tensors.items() if name.startswith(PREFIX)}
    if strange := [name for name in found if name not in PUBLIC]:
        raise FeddrmError(f"the server sent a file '{strange[0]}': both ends need the same feddrm")
    (folder / "router").mkdir(exist_ok=True)
    (folder / INDEX).unlink(missing_ok=True)
    for name in PUBLIC:
        if name in found:
            write_atomically(folder / name, found[name].cpu().numpy().tobytes())
