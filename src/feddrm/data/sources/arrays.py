"""Arrays, tensors, lists and data frames as samples: checked, and brought to one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddrm.data.sources.labelled_samples import Label, Samples, composed, listed, shown
from feddrm.errors import FeddrmError

Array = NDArray[Any] | Tensor | Sequence[Any]
Arrays = Mapping[str, tuple[Array, Array]] | Sequence[tuple[str, tuple[Array, Array]]]
Pair = tuple[str, tuple[Any, Any]]


def pairs(where: str, clients: Arrays) -> list[Pair]:
    """(client, (X, y)) for every client."""
    if not isinstance(clients, Iterable):
        raise FeddrmError(f"{where}: {shown(clients)} holds no clients: give {{name: (X, y), ...}}")
    items: list[Any] = list(clients.items()) if isinstance(clients, Mapping) else list(clients)
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 2 or not isinstance(item[0], str):
            raise FeddrmError(f"{where}: {shown(item)} is not (name, (X, y)) with a name in text: give such pairs")
        if not isinstance(item[1], tuple | list) or len(item[1]) != 2:
            raise FeddrmError(f"{where}: client '{item[0]}' is {shown(item[1])}: give a pair (X, y)")
    return [(client, (pair[0], pair[1])) for client, pair in items]


def frame_columns(name: str, given: Sequence[Pair]) -> tuple[str, ...] | None:
    """The columns of data frames, None if there are no frames; as arrays they would be mixed up unnoticed."""
    frames = [(client, tuple(map(str, x.columns))) for client, (x, _) in given if hasattr(x, "columns")]
    for client, mine in frames:
        if mine != frames[0][1]:
            raise FeddrmError(
                f"{name}: client '{client}' has the columns {listed(mine)}, client '{frames[0][0]}' "
                f"{listed(frames[0][1])}: give the same in the same order, X[columns]"
            )
    return frames[0][1] if frames else None


def column_names(name: str, train: Mapping[str, Samples], columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """One name per column; None for images."""
    shape = next(iter(train.values())).x.shape
    if len(shape) != 2:
        if columns is not None:
            raise FeddrmError(f"{name}: columns are for rows, but the samples are images: leave columns out")
        return None
    names = tuple(f"x{i}" for i in range(shape[1])) if columns is None else tuple(composed(str(c)) for c in columns)
    if isinstance(columns, str) or len(names) != shape[1] or len(set(names)) != len(names):
        raise FeddrmError(f"{name}: columns={shown(columns)}: give {shape[1]} distinct names, one per column")
    return names


def check_light(name: str, train: Mapping[str, Samples]) -> None:
    """Refuse masks of 0 and 1 given as integers: of 255 levels that is black throughout."""
    given = list(train.values())
    if given[0].x.dtype == np.uint8 and max(mine.x.max() for mine in given) == 1:
        raise FeddrmError(f"{name}: no pixel is brighter than 1 of 255: give integers 0..255, or floats 0..1")


def samples(where: str, pair: tuple[Any, Any]) -> Samples:
    """What one client gave, checked: rows as float32, images as uint8 with the channels first."""
    x = _plain_array(f"{where}: X", pair[0])
    if x.ndim not in {2, 3, 4}:
        raise FeddrmError(
            f"{where}: X has shape {x.shape}: give rows [n, d] or images [n, height, width(, channels)]; "
            f"a single column is X.reshape(-1, 1)"
        )
    if 0 in x.shape:
        raise FeddrmError(f"{where}: X has shape {x.shape}, there are no samples: give some or leave the client out")
    labels = _plain_labels(f"{where}: y", pair[1])
    if len(labels) != len(x):
        raise FeddrmError(f"{where}: X has {len(x)} samples, y {len(labels)} labels: give one label per sample")
    values = _rows(f"{where}: X", x) if x.ndim == 2 else _pixels(f"{where}: X", _channels_first(where, x, pair[0]))
    return Samples(values, labels, lambda i: f"{where}: y[{i}]")


def _plain_array(where: str, value: Any) -> NDArray[Any]:
    if isinstance(value, Tensor):
        value = value.detach().to_dense().cpu()
        return np.asarray(value.float() if value.dtype == torch.bfloat16 else value)
    if isinstance(value, list | tuple):
        value = [_plain_array(where, v) if isinstance(v, Tensor) else v for v in value]
    if np.ma.is_masked(value):
        raise FeddrmError(f"{where} has masked (missing) values: fill them in first")
    try:
        array = np.asarray(value)
        # A list with one text in it would become text throughout, and the wrong cell be blamed.
        return np.array(value, dtype=object) if array.dtype.kind in "US" else array
    except ValueError as error:  # NumPy's words for lists that do not form a rectangle
        odd = next((i for i in range(len(value)) if _shape(value[i]) != _shape(value[0])), 0)
        raise FeddrmError(
            f"{where}[{odd}] has shape {_shape(value[odd])}, {where}[0] {_shape(value[0])}: bring all to one shape"
        ) from error


def _shape(value: Any) -> str:
    try:
        return str(np.shape(value))
    except ValueError:
        return "of its own, ragged"


def _channels_first(where: str, x: NDArray[Any], given: Any) -> NDArray[Any]:
    if x.ndim == 3:
        return x[:, None]
    first, last = x.shape[1] in {1, 3}, x.shape[3] in {1, 3}
    if not first and not last:
        raise FeddrmError(
            f"{where}: X has shape {x.shape}, images of neither 1 nor 3 channels: drop or merge some (RGBA: X[..., :3])"
        )
    tensors = isinstance(given, Tensor) or (isinstance(given, list | tuple) and isinstance(given[0], Tensor))
    return x if first and (tensors or not last) else x.transpose(0, 3, 1, 2)


def _pixels(where: str, x: NDArray[Any]) -> NDArray[np.uint8]:
    if x.dtype.kind not in "uif":
        raise FeddrmError(f"{where} has type {x.dtype}: give pixels as integers 0..255 or floats 0..1")
    top = 1 if x.dtype.kind == "f" else 255
    if not (ok := (x >= 0) & (x <= top)).all():
        worst = x[~ok][0]
        raise FeddrmError(
            f"{where}[{int(np.argwhere(~ok)[0][0])}] has a pixel {worst:g}, {x.dtype} pixels lie in 0..{top}: "
            f"give integers 0..255 or floats 0..1"
        )
    return (np.rint(x * 255.0) if x.dtype.kind == "f" else x).astype(np.uint8)


def _rows(where: str, x: NDArray[Any]) -> NDArray[np.float32]:
    if x.dtype.kind not in "buif":
        for (i, j), value in np.ndenumerate(x):
            # NumPy counts durations among the integers, in a unit that nobody sees.
            if isinstance(value, np.timedelta64) or not isinstance(value, int | float | np.integer | np.floating):
                raise FeddrmError(
                    f"{where}[{i}, {j}] is {shown(value)}, not a number: encode it or leave the column out"
                )
    with np.errstate(over="ignore"):
        rows = x.astype(np.float32)
    if not (ok := np.isfinite(rows)).all():
        i, j = np.argwhere(~ok)[0]
        raise FeddrmError(
            f"{where}[{i}, {j}] is {x[i, j]}, not a finite 32-bit number: fill it in, or leave out the row or column"
        )
    return rows


def _plain_labels(where: str, value: Any) -> list[Label]:
    if not isinstance(value, list | tuple):
        value = _plain_array(where, value)
        if value.ndim != 1:
            raise FeddrmError(
                f"{where} has shape {value.shape}: give one label per sample "
                f"(one-hot rows: y.argmax(1), a column: y.ravel())"
            )
        value = value.tolist()
    labels: list[Label] = []
    for i, label in enumerate(value):
        plain = label.item() if isinstance(label, Tensor | np.generic) and label.ndim == 0 else label
        if isinstance(plain, str) and plain:
            labels.append(composed(plain))
        elif isinstance(plain, int | float) and plain == plain // 1:
            labels.append(int(plain))
        else:
            raise FeddrmError(f"{where}[{i}] is {shown(plain)}, not a class: give whole numbers or text")
    return labels
