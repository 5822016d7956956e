"""Queries from files: images, tables with the columns of the training, or NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from torch import Tensor

from feddrm.data import Federation
from feddrm.data.sources.images import has_colours, read_images
from feddrm.errors import FeddrmError
from feddrm.io.tensors import BROKEN_NPZ
from feddrm.router import Router
from feddrm.tables.query_rows import read_rows

ARRAYS = (".npy", ".npz")


def read_queries(
    like: Router | Federation, paths: Sequence[Path], ignore: Sequence[str] = ()
) -> tuple[Tensor, list[str]]:
    """Raw samples in the form of a router's or a federation's, and a name for each: its file and its row in it.

    The schema encodes raw columns. ``ignore`` names columns of tables that are no inputs.
    """
    parts: list[Tensor] = []
    names: list[str] = []
    mean = like.input_mean if isinstance(like, Router) else like.clients[0].view.mean
    for path in paths:
        if path.is_dir():
            raise FeddrmError(f"{path} is a folder: name the files in it, as {path / '*'}")
        if path.suffix.lower() in ARRAYS:
            samples, places = _read_array(like.shape, path)
        elif len(like.shape) == 3:
            samples, places = _read_picture(like.shape, path), [str(path)]
        else:
            rows, places = read_rows(path, like.columns, like.shape[0], like.schema, ignore)
            samples = torch.from_numpy(rows)
        if parts and samples.dtype != parts[0].dtype:
            raise FeddrmError(
                f"{path} has values of type {samples.dtype}, {paths[0]} {parts[0].dtype}: ask about them apart"
            )
        check_pixels(samples, mean, str(path))
        parts.append(samples)
        names += places
    return torch.cat(parts), names


def check_pixels(samples: Tensor, mean: Sequence[float], where: str) -> None:
    """Refuse pictures whose floats all lie in 0..1: fractions of white, which would be taken as network inputs.

    Network inputs are negative wherever a pixel is darker than the ``mean``.
    """
    if samples.ndim != 4 or not samples.is_floating_point() or not samples.numel() or min(mean) <= 0:
        return
    if samples.min() >= 0 and samples.max() <= 1:
        raise FeddrmError(
            f"{where}: floats are network inputs, which are negative for dark pixels, but all of these lie in 0..1: "
            f"give pixels as whole numbers 0..255, (x * 255).round().astype('uint8')"
        )


def _read_picture(shape: Sequence[int], path: Path) -> Tensor:
    channels, height, width = shape
    pixels = read_images([path], (height, width), grey=channels == 1)
    if channels == 1 and pixels.shape[1] == 3:
        if has_colours(pixels.transpose(0, 2, 3, 1)):
            raise FeddrmError(f"{path} has colours, the router wants shades of grey: convert it")
        pixels = pixels[:, :1]
    if pixels.shape[1] != channels:
        raise FeddrmError(f"{path} has {pixels.shape[1]} channels, {channels} are wanted: convert it")
    return torch.from_numpy(pixels)


def _read_array(shape: Sequence[int], path: Path) -> tuple[Tensor, list[str]]:
    """The samples in an .npy file, or in the array ``x`` of an .npz file.

    Images are pixels 0..255, grey ones with or without an axis for the channel, or network inputs as floats.
    """
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            array = loaded["x"] if isinstance(loaded, NpzFile) else loaded
    except BROKEN_NPZ as error:
        raise FeddrmError(f"cannot read {path} ({error}): give an .npy file, or .npz with the array x") from error
    if len(shape) == array.ndim == 3 and shape[0] == 1:
        array = array[:, None]
    if array.dtype.kind not in "uif" or array.shape[1:] != tuple(shape):
        wanted = ", ".join(map(str, shape))
        raise FeddrmError(f"{path} has shape {array.shape} ({array.dtype}): give an array of numbers [n, {wanted}]")
    if len(shape) == 3 and array.dtype.kind in "ui":
        if array.size and not 0 <= array.min() <= array.max() <= 255:
            raise FeddrmError(f"{path} has pixels from {array.min()} to {array.max()}: give whole numbers 0..255")
        array = array.astype(np.uint8)
    else:
        array = array.astype(np.float32)
    return torch.from_numpy(array), [f"{path}[{i}]" for i in range(len(array))]
