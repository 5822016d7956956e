"""Reading image files as arrays of 8-bit pixels."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from feddrm.errors import FeddrmError
from feddrm.progress import progress_bar

SUFFIXES = (  # compared in lower case
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".webp"),
    *(".gif", ".tif", ".tiff", ".pbm", ".pgm", ".ppm", ".pnm"),
)
# Pillow tries only these decoders, whatever a file's suffix says. Some of its others start external programs.
FORMATS = ("PNG", "JPEG", "BMP", "DIB", "WEBP", "GIF", "TIFF", "PPM")
MANY = 100  # images that are worth a progress bar

Pixels = NDArray[np.uint8]


def decode_image(
    source: Path | BinaryIO, name: str, size: tuple[int, int] | None = None, *, limit: int | None = None
) -> Pixels:
    """[height, width] for a grey image, [height, width, 3] for any other, upright, resized to ``size``.

    Transparency is dropped. A file of several images (an animation, a stack of slices) is refused, but for the small
    copies that cameras put into JPEG files. Resizing is Pillow's bilinear. An image with more than ``limit`` pixels is
    refused before it is decoded. ``name`` stands in errors.
    """
    with _huge_images_refused():
        return _decode(source, name, size, limit)


@contextmanager
def _huge_images_refused() -> Iterator[None]:
    """Pillow only warns when an image is so large that decoding could use up the memory.

    Filters of warnings belong to the process: threads that decode share one block.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _decode(source: Path | BinaryIO, name: str, size: tuple[int, int] | None, limit: int | None = None) -> Pixels:
    try:
        with Image.open(source, formats=FORMATS) as file:
            if limit is not None and file.width * file.height > limit:
                raise FeddrmError(f"{name} has {file.width} x {file.height} pixels: shrink it below {limit}")
            if file.format != "MPO" and getattr(file, "is_animated", False):
                raise FeddrmError(f"{name} holds several images: save each as its own file, or keep the one you mean")
            # Conversion would clip more than 8 bits to white.
            if file.mode.startswith(("I", "F")):
                raise FeddrmError(f"{name} has more than 8 bits per pixel: convert it to 8 bits")
            ImageOps.exif_transpose(file, in_place=True)  # one copy of the pixels less, while many are decoded
            image = _grey_or_rgb(file)
    except FeddrmError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        most = f"{(Image.MAX_IMAGE_PIXELS or 0) // 10**6} million pixels"
        raise FeddrmError(f"{name} is too large to be decoded safely: shrink it below {most}") from error
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise FeddrmError(f"{name} cannot be read ({error.strerror}): check the path") from error
    except UnidentifiedImageError as error:
        raise FeddrmError(f"{name} cannot be read as an image: replace or remove it") from error
    except Exception as error:  # decoders raise many kinds of errors on broken files
        reason = " ".join(str(error).split())
        raise FeddrmError(f"{name} cannot be read as an image ({reason}): replace or remove it") from error
    if size is not None and image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(image)


def _grey_or_rgb(image: Image.Image) -> Image.Image:
    if image.mode in {"1", "L", "LA", "La"}:
        return image.convert("L")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # a direct conversion to RGB makes Pillow warn about the transparency
    return image.convert("RGB")


def has_colours(pixels: Pixels) -> bool:
    """Whether the channels, the last axis, differ. Most programs save shades of grey as RGB, too."""
    return bool((pixels[..., 1:] != pixels[..., :1]).any())


def read_images(paths: Sequence[Path], size: tuple[int, int] | None = None, *, grey: bool = True) -> Pixels:
    """All images as one array [n, channels, height, width].

    One channel if ``grey`` is True and every image is grey, otherwise RGB.
    """
    images: list[Pixels] = []
    many = len(paths) >= MANY
    bar: AbstractContextManager[Callable[..., None]]
    bar = progress_bar("read images") if many else nullcontext(lambda *_: None)
    # Pillow decodes and resizes outside of Python's lock.
    pool = ThreadPoolExecutor(os.cpu_count() if many else 1)
    try:
        with _huge_images_refused(), bar as advance:
            decoded = pool.map(lambda path: _decode(path, str(path), size), paths)
            for path, image in zip(paths, decoded, strict=True):
                images.append(image)
                if image.shape[:2] != images[0].shape[:2]:
                    (h, w), (h0, w0) = image.shape[:2], images[0].shape[:2]
                    raise FeddrmError(
                        f"{path} is {w} x {h} pixels, {paths[0]} {w0} x {h0}: bring all to one size with "
                        f"size={min(h0, w0)}"
                    )
                advance(len(images), len(paths), "", False)
    finally:
        pool.shutdown(cancel_futures=True)
    channels = 1 if grey and all(image.ndim == 2 for image in images) else 3
    out = np.empty((len(images), channels, *images[0].shape[:2]), dtype=np.uint8)
    for i, image in enumerate(images):
        out[i] = image if image.ndim == 2 else image.transpose(2, 0, 1)
    return out
