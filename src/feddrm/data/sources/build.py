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

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddrm.data.federation import Federation, check_clients
from feddrm.data.sources import arrays, images, tables
from feddrm.data.sources.arrays import Array, Arrays
from feddrm.data.sources.images import Picture, Size
from feddrm.data.sources.labelled_samples import Samples, assemble, check_division, check_same_clients
from feddrm.data.sources.tables import Paths
from feddrm.errors import FeddrmError

__all__ = ["Array", "Arrays", "Paths", "from_arrays", "from_csv", "from_folders"]

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
    they are whole numbers. ``columns`` names the columns of rows (x0, x1, ... otherwise). Data frames
    will do for X: they bring the names themselves, and must have the same in the same order.
    """
    test_fraction, seed = check_division(name, test_fraction, seed)
    given = arrays.pairs(name, clients)
    check_clients(name, [client for client, _ in given])
    held_given = None if test is None else arrays.pairs(f"{name}, test", test)
    if held_given is not None:
        check_same_clients(name, [client for client, _ in given], [client for client, _ in held_given])
        if len(held_given) > len(given):
            raise FeddrmError(f"{name}: a client has test data twice: put them together")
    found = arrays.frame_columns(name, [*given, *(held_given or [])])
    train = {c: arrays.samples(f"{name}: client '{c}'", pair) for c, pair in given}
    held = {c: arrays.samples(f"{name}: test data of client '{c}'", pair) for c, pair in held_given or []}
    arrays.check_light(name, train)
    return assemble(
        name,
        train,
        held or None,
        test_fraction=test_fraction,
        seed=seed,
        source="arrays given in Python",
        settings=_settings(test is not None, test_fraction, seed),
        classes=classes,
        columns=arrays.column_names(name, train, found if columns is None else columns),
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
    test_fraction, seed = check_division(name, test_fraction, seed)
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
    test_fraction, seed = check_division(name, test_fraction, seed)
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
