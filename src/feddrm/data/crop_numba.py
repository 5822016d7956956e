"""Cropping on CPU in one pass over memory, compiled by numba on first use (the extra ``fast``).

The same arithmetic as the tensor operations of ``crop.py``, ``shift.py`` and ``view.py``, to the last
bit. Those read and write a batch some ten times; here one image at a time stays in the cache. The
compiled code is kept on disk for later processes, and threads run it side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Boxes = NDArray[np.int64]
Taps = tuple[NDArray[np.int64], NDArray[np.uint16]]  # left tap and 1/256ths of the right one, by crop size

Kernel = TypeVar("Kernel", bound=Callable[..., None])


def compiled(kernel: Kernel) -> Kernel:
    """Machine code on the first call, kept on disk; the interpreter's lock is free while it runs."""
    return cast(Kernel, njit(nogil=True, cache=True)(kernel))


@compiled
def crop(columns: Bytes, boxes: Boxes, across: Taps, down: Taps, out: Bytes) -> None:
    """Fill ``out`` [image, row, channel x column] from ``columns`` [image, column, channel x row]."""
    wide, rows = np.empty(columns.shape[1:], np.uint8), np.empty(out.shape[1:], np.uint8)
    for i in range(len(columns)):
        _resize(columns[i], boxes[i], across, down, wide, rows, out[i])


@compiled
def see(
    columns: Bytes,
    boxes: Boxes,
    across: Taps,
    down: Taps,
    table: NDArray[np.int32] | None,
    scale: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Crop, change colours by ``table`` and scale: ``out`` [image, row, column, channel] from ``columns``.

    ``scale`` [channel, value] is what the network gets for every value of a pixel.
    """
    _, height, width, channels = out.shape
    wide, rows = np.empty(columns.shape[1:], np.uint8), np.empty((height, channels * width), np.uint8)
    cropped = np.empty((height, channels * width), np.uint8)
    for i in range(len(columns)):
        _resize(columns[i], boxes[i], across, down, wide, rows, cropped)
        for y in range(height):
            line, seen = cropped[y], out[i, y]
            for x in range(width):
                if table is None:
                    for c in range(channels):
                        seen[x, c] = scale[c, line[c * width + x]]
                else:
                    colour = table[line[x] | line[width + x] << 8 | line[2 * width + x] << 16]
                    for c in range(3):
                        seen[x, c] = scale[c, colour >> 8 * c & 255]


@compiled
def _resize(
    columns: Bytes, box: NDArray[np.int64], across: Taps, down: Taps, wide: Bytes, rows: Bytes, out: Bytes
) -> None:
    """One image: along the width, turned, along the height."""
    width, height = len(columns), len(rows)
    top, left, h, w = box
    if top < 0 or left < 0 or h < 1 or w < 1 or top + h > height or left + w > width:
        raise IndexError("a crop box reaches beyond its image")
    _stretch(columns, left, across[0][w], across[1][w], wide)
    for c in range(columns.shape[1] // height):
        for y in range(height):
            for x in range(width):
                rows[y, c * width + x] = wide[x, c * height + y]
    _stretch(rows, top, down[0][h], down[1][h], out)


@compiled
def _stretch(lines: Bytes, start: int, position: NDArray[np.int64], share: NDArray[np.uint16], out: Bytes) -> None:
    last = len(lines) - 1
    for j in range(len(out)):
        first = start + position[j]
        # The last line has no right neighbour; its share is zero, so any valid line will do.
        a, b, line = lines[first], lines[min(first + 1, last)], out[j]
        right = share[j]
        left = np.uint16(256 - right)
        for k in range(len(line)):
            # All in 16 bits: eight values at a time.
            total = np.uint16(np.uint16(a[k]) * left + np.uint16(b[k]) * right + np.uint16(128))
            line[k] = np.uint8(total >> np.uint16(8))
