"""Samples from dataset objects of other libraries, handed over in Python: Hugging Face, Flower, FLamby."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from feddrm.data.sources.arrays import ArraySource
from feddrm.data.sources.labelled_samples import FederationParts
from feddrm.errors import FeddrmError, short_list
from feddrm.registry import nearest
from feddrm.typed_settings import typed_arguments

Pairs = dict[str, tuple[Any, ...]]


@typed_arguments
def load_dataset_object(
    data: Any,
    *,
    inputs: str | Sequence[str],
    label: str,
    client: str | None = None,
    subject: str | None = None,
    test: Any = None,
    **options: Any,
) -> FederationParts:
    """Clients from a ``datasets.Dataset`` with a column ``client``, from ``{name: Dataset}``, or from a partitioner.

    A partitioner is one of flwr-datasets that has its dataset: partition 3 becomes the client ``client3``. ``inputs``
    is the column of images or vectors, or several columns of numbers. ``subject`` is the column that says whom a sample
    is of; a client's samples of one subject are not divided. ``test`` has the same form.
    """

    def pairs(given: Any) -> Pairs:
        pairs = {name: _pair(name, part, inputs, label) for name, part in _parts(given, client).items()}
        if subject is None:
            return pairs
        parts = _parts(given, client)
        return {name: (*pair, list(_column(parts[name], subject, "the subject"))) for name, pair in pairs.items()}

    tested = None if test is None else pairs(test)
    names = None if isinstance(inputs, str) else list(inputs)
    classes = options.pop("classes", None) or _class_names(data, label, client)
    parts = ArraySource(pairs(data), test=tested, columns=names, classes=classes, **options).load()
    return FederationParts(**{**vars(parts), "source": f"a {type(data).__name__} given in Python"})


def load_flamby(dataset: Callable[..., Any], centers: int, **options: Any) -> FederationParts:
    """Clients from a FLamby dataset class, which is called with ``center``, ``train`` and ``pooled=False``.

    Its items are pairs (sample, label). Centre 2 becomes the client ``center2``.
    """

    def pairs(train: bool) -> Pairs:
        return {f"center{i}": _items(i, dataset(center=i, train=train, pooled=False)) for i in range(centers)}

    name = options.pop("name", getattr(dataset, "__name__", "own"))
    return ArraySource(pairs(True), test=pairs(False), name=name, **options).load()


def _parts(data: Any, client: str | None) -> dict[str, Any]:
    """The dataset of every client."""
    if isinstance(data, Mapping):
        for name, part in data.items():
            if not hasattr(part, "column_names"):
                kind = type(part).__name__
                raise FeddrmError(f"client '{name}' has a {kind}: give a Dataset, or use from_arrays or from_csv")
        return {str(name): part for name, part in data.items()}
    if hasattr(data, "load_partition"):
        return {f"client{i}": data.load_partition(i) for i in range(data.num_partitions)}
    if client is None:
        raise FeddrmError(
            "one dataset has one client: name the column of its clients with client=..., or give {name: dataset}"
        )
    owners = [str(owner) for owner in _column(data, client, "the client")]
    return {name: data.select([i for i, owner in enumerate(owners) if owner == name]) for name in dict.fromkeys(owners)}


def _pair(name: str, part: Any, inputs: str | Sequence[str], label: str) -> tuple[Any, list[Any]]:
    labels = list(_column(part, label, "the label"))
    if not isinstance(inputs, str):
        columns = [np.asarray(_column(part, column, "an input")) for column in inputs]
        for column, values in zip(inputs, columns, strict=True):
            # One column of text would make text of all, and an error would name another one.
            if values.dtype.kind in "US":
                raise FeddrmError(f"client '{name}': column '{column}' holds text: encode it, or leave it out")
        return np.stack(columns, axis=1), labels
    samples = [np.asarray(sample) for sample in _column(part, inputs, "the input")]
    if len({sample.shape for sample in samples}) > 1:
        raise FeddrmError(f"client '{name}': column '{inputs}' has samples of several shapes: bring them to one")
    return np.stack(samples), labels


def _column(part: Any, name: str, purpose: str) -> Any:
    if name not in part.column_names:
        raise FeddrmError(
            f"the dataset has no column '{name}' for {purpose}{nearest(name, part.column_names)}: give one of "
            f"{short_list(part.column_names)}"
        )
    return part[name]


def _class_names(data: Any, label: str, client: str | None) -> list[str] | None:
    """The names that a ``ClassLabel`` column has for its numbers."""
    first = next(iter(_parts(data, client).values()))
    return getattr(first.features.get(label), "names", None)


def _items(center: int, items: Any) -> tuple[Any, list[Any]]:
    pairs = [items[i] for i in range(len(items))]
    if not pairs:
        raise FeddrmError(f"centre {center} has no samples: give fewer centres")
    samples, labels = zip(*pairs, strict=True)
    return np.stack([np.asarray(x) for x in samples]), [int(np.asarray(y).item()) for y in labels]
