"""Queries from files: images, or tables with the router's columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from feddrm.data.sources.csv_tables import read_rows
from feddrm.data.sources.images import read_images
from feddrm.errors import FeddrmError
from feddrm.router import Router


def read_queries(
    router: Router, columns: Sequence[str] | None, paths: Sequence[Path], ignore: Sequence[str] = ()
) -> tuple[Tensor, list[str]]:
    """The samples that the router takes, and a name for each: an image's path, or a table's path and row.

    The router's schema encodes raw columns. ``ignore`` names columns of tables that are no inputs.
    """
    if len(router.shape) == 3:
        return _read_pictures(router.shape, paths), [str(path) for path in paths]
    tables, names = [], []
    for path in paths:
        rows, places = read_rows(path, tuple(columns) if columns else None, router.shape[0], router.schema, ignore)
        tables.append(torch.from_numpy(rows))
        names += places
    return torch.cat(tables), names


def _read_pictures(shape: Sequence[int], paths: Sequence[Path]) -> Tensor:
    channels, height, width = shape
    pictures = []
    for path in paths:
        pixels = read_images([path], (height, width), grey=channels == 1)
        if pixels.shape[1] != channels:
            raise FeddrmError(f"{path} has {pixels.shape[1]} channels, the router wants {channels}: convert it")
        pictures.append(pixels)
    return torch.from_numpy(np.concatenate(pictures))
