"""CPU kernels that crop, shift and scale in one pass over memory, compiled by numba (the extra ``fast``).

The results equal those of the tensor operations in ``crop.py``, ``shift.py`` and ``view.py`` to the last
bit. The tensor operations read and write a whole batch about ten times; the kernels work on one image
at a time, which stays in the cache. numba compiles them at the first call and keeps the machine code
on disk for later processes. Several threads can run them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Boxes = NDArray[np.int64]
Taps = tuple[NDArray[np.int64], NDArray[np.uint16]]  # left tap, and weight of the right tap in 1/256, by crop size

Kernel = TypeVar("Kernel", bound=Callable[..., None])


def compiled(kernel: Kernel) -> Kernel:
    """Compile at the first call, keep the machine code on disk, and release the interpreter's lock while it runs."""
    return cast(Kernel, njit(nogil=True, cache=True)(kernel))


@compiled
def crop(columns: Bytes, boxes: Boxes, across: Taps, down: Taps, out: Bytes) -> None:
    """Fill ``out`` [image, row, channel x column] from ``columns`` [image, column, channel x row]."""
    wide, rows = np.empty(columns.shape[1:], np.uint8), np.empty(out.shape[1:], np.uint8)
    for i in range(len(columns)):
        _resize(columns[i], boxes[i], across, down, wide, rows, out[i])


@compiled
def crop_shift_scale(
    columns: Bytes,
    boxes: Boxes,
    across: Taps,
    down: Taps,
    table: NDArray[np.int32] | None,
    scale: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Crop, shift colours by ``table`` and scale: ``out`` [image, row, column, channel] from ``columns``.

    ``scale`` [channel, value] has the network input for every value of a pixel.
    """
    _, height, width, channels = out.shape
    wide, rows = np.empty(columns.shape[1:], np.uint8), np.empty((height, channels * width), np.uint8)
    cropped = np.empty((height, channels * width), np.uint8)
    for i in range(len(columns)):
        _resize(columns[i], boxes[i], across, down, wide, rows, cropped)
        for y in range(height):
            line, result = cropped[y], out[i, y]
            for x in range(width):
                if table is None:
                    for c in range(channels):
                        result[x, c] = scale[c, line[c * width + x]]
                else:
                    colour = table[line[x] | line[width + x] << 8 | line[2 * width + x] << 16]
                    for c in range(3):
                        result[x, c] = scale[c, colour >> 8 * c & 255]


@compiled
def _resize(
    columns: Bytes, box: NDArray[np.int64], across: Taps, down: Taps, wide: Bytes, rows: Bytes, out: Bytes
) -> None:
    """Resize one image along the width, transpose it, and resize it along the height."""
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
        # The last line has no right neighbour. Its share is zero, so any valid line can stand there.
        a, b, line = lines[first], lines[min(first + 1, last)], out[j]
        right = share[j]
        left = np.uint16(256 - right)
        for k in range(len(line)):
            # 16-bit arithmetic, so that the CPU computes eight values at a time.
            total = np.uint16(np.uint16(a[k]) * left + np.uint16(b[k]) * right + np.uint16(128))
            line[k] = np.uint8(total >> np.uint16(8))
