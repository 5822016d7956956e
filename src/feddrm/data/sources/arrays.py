"""Samples from arrays, tensors, lists and data frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddrm.data.client import Client
from feddrm.data.sources.labelled_samples import (
    Division,
    FederationParts,
    Label,
    LabelledSamples,
    assemble,
    assemble_client,
    check_same_clients,
)
from feddrm.errors import FeddrmError, quoted, short_list
from feddrm.io.run_files import check_client_names
from feddrm.io.text import nfc
from feddrm.tables.column_kinds import MAX_FLOAT32, MISSING

NOT_FINITE = "not a finite 32-bit number: fill it in, or leave out the row or column"

Array = NDArray[Any] | Tensor | Sequence[Any]
OfClient = tuple[Array, Array] | tuple[Array, Array, Array]
Arrays = Mapping[str, OfClient] | Sequence[tuple[str, OfClient]]
ClientArrays = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Arrays of every client: ``{"oslo": (X, y), "lima": (X, y)}`` or a sequence of such pairs.

    ``(X, y, subjects)`` says besides whom each sample is of, as numbers or text.

    X is an array, a tensor or a list: rows [n, d] of numbers, grey images [n, height, width], or
    images with 1 or 3 channels, which may be the last axis or the second. If both axes have 1 or 3
    entries, the channels are the last axis of arrays and lists and the second axis of tensors. Pixels
    are integers 0..255, or floats 0..1, which are rounded to 8 bits. X may be a data frame: its columns
    then name the columns, and all frames must have the same columns in the same order.

    ``classes`` sets the names and the order of the classes: all labels where labels are text, the
    names of 0, 1, ... where they are whole numbers. ``columns`` names the columns of rows (default:
    x0, x1, ...).
    """

    clients: Arrays
    _: KW_ONLY
    test: Arrays | None = None
    test_fraction: float = 0.3
    seed: int = 2025
    name: str = "own"
    classes: Sequence[str] | None = None
    columns: Sequence[str] | None = None

    def load(self) -> FederationParts:
        division = Division.checked(self.name, self.test_fraction, self.seed)
        train_arrays = _client_arrays(self.name, self.clients)
        names = [client for client, _ in train_arrays]
        check_client_names(self.name, names)
        test_arrays = None if self.test is None else _client_arrays(f"{self.name}, test", self.test)
        if test_arrays is not None:
            check_same_clients(self.name, names, [client for client, _ in test_arrays])
            if len(test_arrays) > len(train_arrays):
                raise FeddrmError(f"{self.name}: a client has test data twice: put them together")
        frame_columns = _frame_columns(self.name, [*train_arrays, *(test_arrays or [])])
        train = {c: _samples(f"{self.name}: client '{c}'", pair) for c, pair in train_arrays}
        test = {c: _samples(f"{self.name}: test data of client '{c}'", pair) for c, pair in test_arrays or []}
        _check_brightness(self.name, train)
        columns = _column_names(self.name, train, frame_columns if self.columns is None else self.columns)
        clients, classes = assemble(self.name, train, test or None, division, self.classes)
        settings = division.settings(test_given=self.test is not None)
        settings |= {"subject": "given"} if any(client.train.subject is not None for client in clients) else {}
        return FederationParts(self.name, clients, classes, "arrays given in Python", settings, columns)


def client_from_arrays(name: str, arrays: tuple[Any, ...], classes: Sequence[str], division: Division) -> Client:
    """One client from its arrays, read as :class:`ArraySource` reads them; ``classes`` are all sites'."""
    samples = _samples(f"client '{name}'", arrays)
    _check_brightness(name, {name: samples})
    return assemble_client(name, samples, division, classes)


def _client_arrays(where: str, clients: Arrays) -> list[ClientArrays]:
    if not isinstance(clients, Iterable):
        raise FeddrmError(f"{where}: {quoted(clients)} holds no clients: give {{name: (X, y), ...}}")
    items: list[Any] = list(clients.items()) if isinstance(clients, Mapping) else list(clients)
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 2 or not isinstance(item[0], str):
            raise FeddrmError(f"{where}: {quoted(item)} is not (name, (X, y)) with a name in text: give such pairs")
        if not isinstance(item[1], tuple | list) or len(item[1]) not in (2, 3):
            raise FeddrmError(f"{where}: client '{item[0]}' is {quoted(item[1])}: give a pair (X, y)")
    return [(client, tuple(arrays)) for client, arrays in items]


def _frame_columns(name: str, clients: Sequence[ClientArrays]) -> tuple[str, ...] | None:
    """The columns that all data frames share; None if there are no frames.

    Arrays made of frames with different columns would mix the columns up without an error.
    """
    frames = [(client, tuple(nfc(str(c)) for c in x.columns)) for client, (x, *_) in clients if hasattr(x, "columns")]
    if not frames:
        return None
    first_client, expected = frames[0]
    for client, columns in frames:
        if columns != expected:
            raise FeddrmError(
                f"{name}: client '{client}' has the columns {short_list(columns)}, client '{first_client}' "
                f"{short_list(expected)}: give the same in the same order, X[columns]"
            )
    return expected


def _column_names(
    name: str, train: Mapping[str, LabelledSamples], columns: Sequence[str] | None
) -> tuple[str, ...] | None:
    """One name per column; None for images."""
    shape = next(iter(train.values())).x.shape
    if len(shape) != 2:
        if columns is not None:
            raise FeddrmError(f"{name}: columns are for rows, but the samples are images: leave columns out")
        return None
    names = tuple(f"x{i}" for i in range(shape[1])) if columns is None else tuple(nfc(str(c)) for c in columns)
    if isinstance(columns, str) or len(names) != shape[1] or len(set(names)) != len(names):
        raise FeddrmError(f"{name}: columns={quoted(columns)}: give {shape[1]} distinct names, one per column")
    return names


def _check_brightness(name: str, train: Mapping[str, LabelledSamples]) -> None:
    """Refuse masks of 0 and 1 given as integers: 1 of 255 is black."""
    images = [samples.x for samples in train.values()]
    if images[0].dtype == np.uint8 and max(x.max() for x in images) == 1:
        raise FeddrmError(f"{name}: no pixel is brighter than 1 of 255: give integers 0..255, or floats 0..1")


def _samples(where: str, arrays: tuple[Any, ...]) -> LabelledSamples:
    """One client's arrays, checked: rows as float32, images as uint8 with the channels first."""
    x = _plain_array(f"{where}: X", arrays[0])
    if x.ndim not in {2, 3, 4}:
        raise FeddrmError(
            f"{where}: X has shape {x.shape}: give rows [n, d] or images [n, height, width(, channels)]; "
            f"a single column is X.reshape(-1, 1)"
        )
    if 0 in x.shape:
        raise FeddrmError(f"{where}: X has shape {x.shape}, there are no samples: give some or leave the client out")
    labels = plain_labels(f"{where}: y", arrays[1])
    if len(labels) != len(x):
        raise FeddrmError(f"{where}: X has {len(x)} samples, y {len(labels)} labels: give one label per sample")
    values = _rows(f"{where}: X", x) if x.ndim == 2 else _pixels(f"{where}: X", _channels_first(where, x, arrays[0]))
    subjects = plain_names(f"{where}: subjects", arrays[2], len(x)) if len(arrays) > 2 else None
    return LabelledSamples(values, labels, lambda i: f"{where}: y[{i}]", subjects)


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
        # NumPy turns a list with one text into text throughout; an error would then name the wrong cell.
        return np.array(value, dtype=object) if array.dtype.kind in "US" else array
    except ValueError as error:  # the lists do not form a rectangle
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
    largest = 1 if x.dtype.kind == "f" else 255
    if not (valid := (x >= 0) & (x <= largest)).all():
        raise FeddrmError(
            f"{where}[{int(np.argwhere(~valid)[0][0])}] has a pixel {x[~valid][0]:g}, {x.dtype} pixels lie in "
            f"0..{largest}: give integers 0..255 or floats 0..1; of signals, rows (X.reshape(len(X), -1))"
        )
    return (np.rint(x * 255.0) if x.dtype.kind == "f" else x).astype(np.uint8)


def _rows(where: str, x: NDArray[Any]) -> NDArray[np.float32]:
    if x.dtype.kind not in "buif":
        for (i, j), value in np.ndenumerate(x):
            # NumPy counts durations as integers, in a unit that the caller does not see.
            if isinstance(value, np.timedelta64) or not isinstance(value, int | float | np.integer | np.floating):
                raise FeddrmError(
                    f"{where}[{i}, {j}] is {quoted(value)}, not a number: encode it or leave the column out"
                )
            if isinstance(value, int) and abs(value) > MAX_FLOAT32:  # NumPy cannot convert it
                raise FeddrmError(f"{where}[{i}, {j}] is {quoted(value)}, {NOT_FINITE}")
    with np.errstate(over="ignore"):
        rows = x.astype(np.float32, copy=False)  # samples are copied when they are divided
    if not (finite := np.isfinite(rows)).all():
        i, j = np.argwhere(~finite)[0]
        raise FeddrmError(f"{where}[{i}, {j}] is {x[i, j]}, {NOT_FINITE}")
    return rows


def plain_names(where: str, value: Any, samples: int) -> list[str]:
    """A name for every sample, of its client or of its subject, as text. Missing ones are refused, as in a table."""
    names = list(value) if isinstance(value, list | tuple) else _plain_array(where, value)
    if (shape := _shape(names)) != str((samples,)):
        column = f"(a column: {where.rpartition(' ')[2]}.ravel())"
        raise FeddrmError(f"{where} has shape {shape} for {samples} samples: give one name per sample {column}")
    return [_name(f"{where}[{i}]", name) for i, name in enumerate(np.asarray(names, dtype=object).tolist())]


def _name(where: str, value: Any) -> str:
    try:
        name = nfc(value.decode() if isinstance(value, bytes) else str(value))
    except UnicodeDecodeError as error:
        raise FeddrmError(f"{where} is {value!r}, not UTF-8: write the names as text") from error
    if name.lower() in MISSING:
        raise FeddrmError(f"{where} is {quoted(name)}, no name: fill it in, remove the row, or rename it if it is one")
    return name


def plain_labels(where: str, value: Any) -> list[Label]:
    """Labels as whole numbers or text; an error names the first one that is neither."""
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
            labels.append(nfc(plain))
        elif isinstance(plain, int | float) and plain == plain // 1:
            labels.append(int(plain))
        else:
            raise FeddrmError(f"{where}[{i}] is {quoted(plain)}, not a class: give whole numbers or text")
    return labels
