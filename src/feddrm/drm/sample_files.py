"""Reads samples from comma-separated files of numbers, with or without a header."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feddrm.drm.basis import Floats
from feddrm.errors import FeddrmError
from feddrm.io.text import parse_float, read_csv


@dataclass(frozen=True)
class SampleFile:
    """The content of one file: the population's name (the file's stem), column names from a header, numbers."""

    name: str
    columns: tuple[str, ...] | None
    values: Floats


def read_samples(paths: Sequence[Path]) -> tuple[dict[str, Floats], tuple[str, ...] | None]:
    """One population per file, and the column names. All files must have the same columns in the same order."""
    samples = [read_sample(path) for path in paths]
    values: dict[str, Floats] = {}
    for path, sample in zip(paths, samples, strict=True):
        if sample.name in values:
            raise FeddrmError(f"{path}: there is another file called '{sample.name}': rename one")
        if (width := sample.values.shape[1]) != (first := samples[0].values.shape[1]):
            raise FeddrmError(f"{path} has {width} columns, {paths[0]} has {first}: give all the same columns")
        if None not in (sample.columns, samples[0].columns) and sample.columns != samples[0].columns:
            theirs, ours = ", ".join(sample.columns or ()), ", ".join(samples[0].columns or ())
            raise FeddrmError(f"{path} has columns {theirs}, {paths[0]} has {ours}: give all the same, in one order")
        values[sample.name] = sample.values
    return values, next((sample.columns for sample in samples if sample.columns), None)


def read_sample(path: Path) -> SampleFile:
    """Read 64-bit numbers. A first row without any number is the header."""
    rows = read_csv(path, "give the path of a readable .csv file")
    columns = None
    if rows and all(parse_float(cell) is None for cell in rows[0][1]):
        columns = tuple(rows.pop(0)[1])
    if len(rows) < 2:
        raise FeddrmError(f"{path} has {len(rows)} rows of numbers: give at least 2")
    width = len(columns or rows[0][1])
    values = np.empty((len(rows), width))
    for i, (line, cells) in enumerate(rows):
        if len(cells) != width:
            raise FeddrmError(f"{path}, line {line}: {len(cells)} cells where {width} are expected: complete the row")
        for j, cell in enumerate(cells):
            value = parse_float(cell)
            if value is None or not math.isfinite(value):
                shown = cell if len(cell) <= 40 else f"{cell[:39]}…"
                column = columns[j] if columns else j + 1
                raise FeddrmError(
                    f"{path}, line {line}, column {column}: {shown!r} is not a finite number: correct it, "
                    f"or remove the row"
                )
            values[i, j] = value
    return SampleFile(path.stem, columns, values)
