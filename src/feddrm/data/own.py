"""Bring your own federation: arrays, folders of images, or tables.

What these have in common:

- Test data are given, or split off: each client's samples are shuffled in turn by the seeded
  generator and the first ``1 - test_fraction`` of them (rounded down) are for training.
- Labels are whole numbers or text, of one kind throughout. Classes are the labels of the training
  data in order (of all data where the test data are split off).
- Images end up as uint8 and are scaled to [-1, 1] when they meet a network. Columns of a table
  reach it as given: scale them beforehand, by constants that every client shares, since a query to
  be routed comes from a client that is not known yet.
- Input that cannot be used is refused with one line that says where and what to do; nothing is
  loaded then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddrm.data import images, tables
from feddrm.data.federation import Federation, check_clients
from feddrm.data.images import Picture, Size
from feddrm.data.samples import Label, Samples, assemble, check_division, check_same_clients, shown
from feddrm.data.tables import Paths
from feddrm.errors import FeddrmError

__all__ = ["Array", "Arrays", "Paths", "from_arrays", "from_csv", "from_folders"]

Array = NDArray[Any] | Tensor | Sequence[Any]
Arrays = Mapping[str, tuple[Array, Array]] | Sequence[tuple[str, tuple[Array, Array]]]

TRAIN_FOLDERS = frozenset({"train", "training"})  # compared in lower case
TEST_FOLDERS = frozenset({"test", "testing"})


def from_arrays(
    clients: Arrays,
    *,
    test: Arrays | None = None,
    test_fraction: float = 0.3,
    seed: int = 2025,
    name: str = "own",
    classes: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> Federation:
    """A federation from ``{"oslo": (X, y), "lima": (X, y)}`` or a sequence of such pairs.

    X holds NumPy arrays, tensors or lists: rows [n, d] of numbers, grey images [n, height, width], or
    images with 1 or 3 channels, which may stand last or right after n. Should both axes have 1 or 3
    entries, the channels stand last in arrays and lists, first in tensors. Pixels are integers
    0..255, or floats 0..1, which are rounded to 8 bits.

    ``classes`` sets names and order: all labels where they are text, the names of 0, 1, ... where
    they are whole numbers. ``columns`` names the columns of rows (x0, x1, ... otherwise).
    """
    check_division(name, test_fraction, seed)
    given = _pairs(name, clients)
    train = {client: _samples(f"{name}: client '{client}'", pair) for client, pair in given.items()}
    held = None
    if test is not None:
        held_given = _pairs(f"{name}, test", test)
        check_same_clients(name, given, held_given)
        held = {c: _samples(f"{name}: test data of client '{c}'", pair) for c, pair in held_given.items()}
    return assemble(
        name,
        train,
        held,
        test_fraction=test_fraction,
        seed=seed,
        source="arrays given in Python",
        settings=_settings(test is not None, test_fraction, seed),
        classes=classes,
        columns=_column_names(name, train, columns),
    )


def from_folders(
    root: str | Path,
    *,
    size: Size | None = None,
    test_fraction: float = 0.3,
    seed: int = 2025,
    name: str | None = None,
) -> Federation:
    """A federation from ``root/client/class/image.png``, or ``root/client/train|test/class/image.png``.

    ``Training`` and ``Testing`` will do as well, in any case; either all clients have such folders
    or none has. Images are resized to ``size`` (a number, or height and width), bilinearly. They
    become RGB unless all of them are grey.

    Hidden files are passed over, and so are other files beside the folders. Within a class folder
    everything must be an image.
    """
    root = Path(root)
    name = name or root.resolve().name or "own"
    check_division(name, test_fraction, seed)
    wanted = images.check_size(name, size)
    folders = images.sub_folders(root)
    if not folders:
        raise FeddrmError(f"{root} has no sub-folders: put one per client there, with a folder per class in each")
    check_clients(str(root), [folder.name for folder in folders])
    train, test = _listings(folders)
    for word, part in (("", train), ("test ", test)):
        if empty := next((client for client, listing in part.items() if not listing), None):
            raise FeddrmError(f"{root / empty} has no {word}images in class folders: add some or remove the folder")
    listings = [*train.values(), *test.values()]
    # All at once: whether an image may stay grey depends on every other.
    pixels = images.read_images([picture.path for listing in listings for picture in listing], wanted)
    parts = np.split(pixels, np.cumsum([len(listing) for listing in listings])[:-1])
    samples = [_from_pictures(x, listing) for x, listing in zip(parts, listings, strict=True)]
    return assemble(
        name,
        dict(zip(train, samples, strict=False)),
        dict(zip(test, samples[len(train) :], strict=True)) or None,
        test_fraction=test_fraction,
        seed=seed,
        source=f"images in {root}",
        settings={"size": list(wanted) if wanted else None} | _settings(bool(test), test_fraction, seed),
    )


def from_csv(
    paths: Paths,
    *,
    label: str,
    client: str | None = None,
    test: Paths | None = None,
    drop: Sequence[str] = (),
    test_fraction: float = 0.3,
    seed: int = 2025,
    name: str | None = None,
) -> Federation:
    """A federation from comma-separated files with a header: one per client, or with a ``client`` column.

    ``paths`` is a file, several, a folder of .csv files, or ``{client: file}``; elsewhere a client is
    called like its file. ``test`` has the same form and the same clients. All columns but ``label``,
    ``client`` and those in ``drop`` must hold numbers, none missing. Labels that are whole numbers
    throughout are taken as such (1 and 1.0 are one class).
    """
    files = tables.table_files(paths)
    folder = files[0][1].resolve()
    name = name or (folder.stem if len(files) == 1 else folder.parent.name) or "own"
    check_division(name, test_fraction, seed)
    if client is None and len(files) == 1:
        raise FeddrmError(f"{files[0][1]} is the only file: name its client column with client=..., or add files")
    if client is None:
        check_clients(name, [stem for stem, _ in files])
    dropped = (drop,) if isinstance(drop, str) else tuple(drop)
    columns, train = tables.read_samples(files, label=label, client=client, drop=dropped)
    held = None
    if test is not None:
        test_files = tables.table_files(test)
        if client is None:
            check_same_clients(name, train, [stem for stem, _ in test_files])
        # What is to be dropped need not be in the test files.
        _, held = tables.read_samples(test_files, label=label, client=client, drop=dropped, columns=columns)
    train, held_labelled = tables.number_labels(train, held)
    return assemble(
        name,
        train,
        held_labelled if held is not None else None,
        test_fraction=test_fraction,
        seed=seed,
        source=", ".join(str(path) for _, path in files),
        settings={"label": label, "client": client, "drop": list(dropped)}
        | _settings(test is not None, test_fraction, seed),
        columns=columns,
    )


def _settings(given: bool, test_fraction: float, seed: int) -> dict[str, Any]:
    return {"test": "given"} if given else {"test": "split", "test_fraction": test_fraction, "seed": seed}


def _pairs(where: str, clients: Arrays) -> dict[str, tuple[Any, Any]]:
    items: list[Any] = list(clients.items()) if isinstance(clients, Mapping) else list(clients)
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 2 or not isinstance(item[0], str):
            raise FeddrmError(f"{where}: {shown(item)} is not (name, (X, y)) with a name in text: give such pairs")
        if not isinstance(item[1], tuple | list) or len(item[1]) != 2:
            raise FeddrmError(f"{where}: client '{item[0]}' is {shown(item[1])}: give a pair (X, y)")
    check_clients(where, [item[0] for item in items])
    return {client: (pair[0], pair[1]) for client, pair in items}


def _column_names(name: str, train: Mapping[str, Samples], columns: Sequence[str] | None) -> tuple[str, ...] | None:
    shape = next(iter(train.values())).x.shape
    if len(shape) != 2:
        if columns is not None:
            raise FeddrmError(f"{name}: columns are for rows, but the samples are images: leave columns out")
        return None
    names = tuple(f"x{i}" for i in range(shape[1])) if columns is None else tuple(columns)
    if len(names) != shape[1] or len(set(names)) != len(names):
        raise FeddrmError(f"{name}: columns={shown(columns)}: give {shape[1]} distinct names, one per column")
    return names


def _samples(where: str, pair: tuple[Any, Any]) -> Samples:
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
            if not isinstance(value, int | float | np.integer | np.floating):
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
            labels.append(str(plain))
        elif isinstance(plain, int | float) and plain == plain // 1:
            labels.append(int(plain))
        else:
            raise FeddrmError(f"{where}[{i}] is {shown(plain)}, not a class: give whole numbers or text")
    return labels


def _listings(folders: Sequence[Path]) -> tuple[dict[str, list[Picture]], dict[str, list[Picture]]]:
    """The images of every client: for training (or all), and for testing where there are such folders."""
    train, test = {}, {}
    for folder in folders:
        inside = {sub.name.lower(): sub for sub in images.sub_folders(folder)}
        named = sorted(inside.keys() & (TRAIN_FOLDERS | TEST_FOLDERS))
        if not named:
            train[folder.name] = images.pictures(folder)
            continue
        mine = [inside[n] for n in named if n in TRAIN_FOLDERS]
        theirs = [inside[n] for n in named if n in TEST_FOLDERS]
        if len(mine) != 1 or len(theirs) != 1 or len(inside) != 2:
            found = ", ".join(sorted(sub.name for sub in inside.values()))
            raise FeddrmError(
                f"{folder} has the folders {found}: give it train and test and nothing else, or classes alone"
            )
        train[folder.name], test[folder.name] = images.pictures(mine[0]), images.pictures(theirs[0])
    for folder in folders:
        if test and folder.name not in test:
            raise FeddrmError(f"{folder} has no train and test folders, other clients have: give all of them or none")
    return train, test


def _from_pictures(x: NDArray[np.uint8], listing: Sequence[Picture]) -> Samples:
    return Samples(x, [picture.label for picture in listing], lambda i: str(listing[i].path))
