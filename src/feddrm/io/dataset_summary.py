"""The dataset summary: the counts and a few pictures of a federation, kept beside a run; read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from feddrm.io.atomic import write_together
from feddrm.io.run_files import FACTS, PICTURES
from feddrm.io.text import broken, json_bytes, read_bytes, read_json

GALLERY_SIZE = 8
REMEDY = "restore the file or train the run again"


@dataclass(frozen=True, eq=False)
class DatasetSummary:
    """The facts and pictures of a federation.

    ``facts`` holds the result of ``Federation.describe``, and ``digest``, ``columns``, ``schema``,
    ``same_samples`` and ``gallery_labels``, the class numbers of every client's pictures.
    ``gallery`` [client, sample, channel, height, width] shows the same samples as every client sees them
    if ``same_samples`` is true, otherwise samples of each client. Tables have ``column_means``
    [client, column] instead, in standard deviations of the pooled samples.
    """

    facts: Mapping[str, Any]
    gallery: NDArray[np.uint8] | None = None
    column_means: NDArray[np.float32] | None = None

    @property
    def name(self) -> str:
        return str(self.facts["name"])

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(str(client["name"]) for client in self.facts["clients"])

    @cached_property
    def classes(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self.facts["classes"])

    @cached_property
    def counts(self) -> NDArray[np.int64] | None:
        """Training and test samples per client and class; None where the sites do not report them."""
        counts = [client["class_counts"] for client in self.facts["clients"]]
        return None if None in counts else np.array(counts, np.int64)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Training samples per client."""
        return np.array([client["train"] for client in self.facts["clients"]], np.int64)

    @property
    def label_noun(self) -> str:
        """What samples are counted by: their class, or the interval in which the follow-up of survival ends."""
        return "interval" if "task" in self.facts else "class"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self.facts.get("columns") or ())

    @cached_property
    def picture_labels(self) -> dict[str, list[str]]:
        """The class names of every client's pictures as far as they are known; runs of former versions have none."""
        labels = self.facts.get("gallery_labels") or [[]] * len(self.names)
        return {
            name: [self.classes[number] for number in numbers] for name, numbers in zip(self.names, labels, strict=True)
        }

    @property
    def same_samples(self) -> bool:
        return bool(self.facts.get("same_samples", False))

    def write(self, folder: Path) -> None:
        """Write ``data.json`` and, if there are pictures, ``data.safetensors`` into a folder."""
        pictures = {"gallery": self.gallery, "column_means": self.column_means}
        arrays = {key: np.ascontiguousarray(value) for key, value in pictures.items() if value is not None}
        files = {folder / FACTS: json_bytes(dict(self.facts))}
        if arrays:
            files[folder / PICTURES] = save(arrays)
        write_together(files)

    @classmethod
    def read(cls, folder: Path) -> DatasetSummary:
        """Read the summary in a folder. The pictures may be missing, the facts may not."""
        path = folder / FACTS
        arrays = _read_arrays(folder / PICTURES) if (folder / PICTURES).exists() else {}
        summary = cls(read_json(path, REMEDY), arrays.get("gallery"), arrays.get("column_means"))
        try:
            names, classes, counts, _ = summary.names, summary.classes, summary.counts, summary.sizes
            _ = summary.name, summary.columns, summary.picture_labels
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise broken(path, f"it does not describe a federation, {type(error).__name__}: {error}", REMEDY) from error
        if not names or (counts is not None and counts.shape != (len(names), len(classes))):
            raise broken(path, "class_counts do not fit the clients and classes", REMEDY)
        _check_pictures(summary, folder / PICTURES)
        return summary


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    content = read_bytes(path, REMEDY)
    try:
        return load(content)
    except SafetensorError as error:
        raise broken(path, f"not safetensors, {error}", REMEDY) from error


def _check_pictures(summary: DatasetSummary, path: Path) -> None:
    m, gallery, means = len(summary.names), summary.gallery, summary.column_means
    if gallery is not None and (
        gallery.dtype != np.uint8 or gallery.ndim != 5 or len(gallery) != m or gallery.shape[2] not in (1, 3)
    ):
        raise broken(path, f"gallery should be uint8 [{m}, samples, 1 or 3, height, width]", REMEDY)
    if means is not None and (means.dtype.kind != "f" or means.ndim != 2 or len(means) != m):
        raise broken(path, f"column_means should be numbers [{m}, columns]", REMEDY)
    if means is not None and summary.columns and len(summary.columns) != means.shape[1]:
        raise broken(path, f"{means.shape[1]} column_means for {len(summary.columns)} columns", REMEDY)
