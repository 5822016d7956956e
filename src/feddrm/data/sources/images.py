"""Reading pictures from files and from class folders."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from feddrm.data.sources.labelled_samples import composed
from feddrm.errors import FeddrmError

SUFFIXES = (  # compared in lower case
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".webp"),
    *(".gif", ".tif", ".tiff", ".pbm", ".pgm", ".ppm", ".pnm"),
)
# Naming the decoders keeps a file that lies about its suffix away from those meant for other programs.
FORMATS = ("PNG", "JPEG", "BMP", "DIB", "WEBP", "GIF", "TIFF", "PPM")
LITTER = frozenset({"thumbs.db", "desktop.ini", "__macosx"})  # left behind by file managers and archivers

Pixels = NDArray[np.uint8]
Size = int | tuple[int, int]


class Picture(NamedTuple):
    """An image file and the class folder it lies in."""

    path: Path
    label: str


def check_size(where: str, size: Size | None) -> tuple[int, int] | None:
    """(height, width) from one number or two."""
    if size is None:
        return None
    pair: tuple[Any, ...] = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
        raise FeddrmError(f"{where}: size={size!r}: give one whole number, or (height, width)")
    return pair[0], pair[1]


def sub_folders(folder: Path) -> list[Path]:
    """The visible sub-folders, by name. Other files may lie beside them, but an image would have no class."""
    if not folder.is_dir():
        raise FeddrmError(f"{folder} is not a folder: give one that exists")
    inside = _visible(folder)
    for path in inside:
        if not path.is_dir() and path.suffix.lower() in SUFFIXES:
            raise FeddrmError(f"{path} lies outside any class folder: move it into one or remove it")
    return [p for p in inside if p.is_dir()]


def pictures(folder: Path) -> list[Picture]:
    """The images in every class folder under ``folder``, by class, then by name.

    Hidden files are passed over. Anything else that is not an image is refused: to skip it quietly
    could lose samples (a format that is not read here) unnoticed.
    """
    found = []
    for place in sub_folders(folder):
        for path in _visible(place):
            if path.is_dir():
                raise FeddrmError(f"{path} is a folder inside a class folder: move its images up one level")
            if path.suffix.lower() not in SUFFIXES:
                raise FeddrmError(f"{path} is not an image: move it away, or convert it to png or jpg")
            found.append(Picture(path, composed(place.name)))
    return found


def _visible(folder: Path) -> list[Path]:
    try:
        inside = sorted(folder.iterdir(), key=lambda p: p.name)
    except OSError as error:
        raise FeddrmError(f"cannot list {folder} ({error.strerror}): make it readable") from error
    return [p for p in inside if not p.name.startswith(".") and p.name.lower() not in LITTER]


def read_image(path: Path, size: tuple[int, int] | None = None) -> Pixels:
    """[height, width] for a grey image, [height, width, 3] for any other, upright, resized to ``size``.

    Transparency is dropped, and of several frames the first counts. Resizing is Pillow's bilinear.
    """
    return decode_image(path, str(path), size)


def decode_image(
    source: Path | BinaryIO, name: str, size: tuple[int, int] | None = None, *, limit: int | None = None
) -> Pixels:
    """:func:`read_image` of a file or of bytes; more than ``limit`` pixels are refused before they are decoded."""
    try:
        # Pillow only warns of an image so large that decoding it could exhaust the memory.
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(source, formats=FORMATS) as file:
                if limit is not None and file.width * file.height > limit:
                    raise FeddrmError(f"{name} has {file.width} x {file.height} pixels: shrink it below {limit}")
                # More than 8 bits would be clipped to white on conversion.
                if file.mode.startswith(("I", "F")):
                    raise FeddrmError(f"{name} has more than 8 bits per pixel: convert it to 8 bits")
                image = _plain(ImageOps.exif_transpose(file))
    except FeddrmError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise FeddrmError(f"{name} is too large to be decoded safely: shrink it below {_limit()}") from error
    except UnidentifiedImageError as error:
        raise FeddrmError(f"{name} cannot be read as an image: replace or remove it") from error
    except Exception as error:  # decoders fail on broken files in too many ways to list
        reason = " ".join(str(error).split())
        raise FeddrmError(f"{name} cannot be read as an image ({reason}): replace or remove it") from error
    if size is not None and image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image)


def _plain(image: Image.Image) -> Image.Image:
    if image.mode in {"1", "L", "LA", "La"}:
        return image.convert("L")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns when it drops a palette's transparency at once
    return image.convert("RGB")


def _limit() -> str:
    return f"{(Image.MAX_IMAGE_PIXELS or 0) // 10**6} million pixels"


def read_images(paths: Sequence[Path], size: tuple[int, int] | None = None, *, grey: bool = True) -> Pixels:
    """All as one array [n, channels, height, width]: grey where every image is (and ``grey``), else RGB."""
    images = [read_image(path, size) for path in paths]
    for path, image in zip(paths, images, strict=True):
        if image.shape[:2] != images[0].shape[:2]:
            (h, w), (h0, w0) = image.shape[:2], images[0].shape[:2]
            raise FeddrmError(
                f"{path} is {w} x {h} pixels, {paths[0]} {w0} x {h0}: bring all to one size with size={min(h0, w0)}"
            )
    channels = 1 if grey and all(image.ndim == 2 for image in images) else 3
    out = np.empty((len(images), channels, *images[0].shape[:2]), dtype=np.uint8)
    for i, image in enumerate(images):
        out[i] = image if image.ndim == 2 else image.transpose(2, 0, 1)
    return out
