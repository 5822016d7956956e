"""Colour photographs that allow crops and mirror images, and routers that allow them, for tests."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from feddrm.data import Federation, RandomResizedCrop

SIDE, CLASSES, CLIENTS = 32, ("bar", "left", "right"), ("dark", "light")


def pictures(count: int = 40) -> dict[str, tuple[np.ndarray, list[int]]]:
    """Noise with a bright half or bar by class, and another brightness by client."""
    rng = np.random.default_rng(0)
    made = {}
    for number, name in enumerate(CLIENTS):
        labels = [i % len(CLASSES) for i in range(count)]
        x = rng.integers(0, 120, (count, SIDE, SIDE, 3))
        for image, label in zip(x, labels, strict=True):
            image[
                (slice(14, 18), slice(None)) if label == 0 else (slice(None), slice(16 * label - 16, 16 * label))
            ] += 70
        made[name] = ((x + 60 * number).astype(np.uint8), labels)
    return made


def photographs(count: int = 40) -> Federation:
    made = Federation.from_arrays(pictures(count), classes=CLASSES, name="photographs")
    return replace(made, crop=RandomResizedCrop(), mirrors=True)


def write_folders(root: Path, count: int = 40) -> Path:
    """The same pictures as files: a folder per client, in it a folder per class."""
    for name, (x, labels) in pictures(count).items():
        for i, (image, label) in enumerate(zip(x, labels, strict=True)):
            path = root / name / CLASSES[label] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    return root


def allow_views(run: Path, copy: Path) -> Path:
    """A copy of a run whose router says that its data allow all views."""
    shutil.copytree(run, copy)
    path = copy / "router" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["input"]["views"] = {"crops": True, "mirrors": True}
    path.write_text(json.dumps(manifest))
    return copy
