"""A federation: its clients with their samples, the class names, and where the data came from."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddrm.data.client import Client, Split
from feddrm.data.crop import RandomResizedCrop
from feddrm.data.query_views import QueryViews
from feddrm.data.sample_warnings import row_columns, sample_warnings
from feddrm.data.sources.array_files import ArrayFileSource
from feddrm.data.sources.arrays import Arrays, ArraySource
from feddrm.data.sources.csv_tables import CsvSource, Paths
from feddrm.data.sources.dataset_objects import load_dataset_object, load_flamby
from feddrm.data.sources.image_folders import ImageFolderSource
from feddrm.data.sources.leaf_files import LeafSource
from feddrm.errors import FeddrmError, short_list
from feddrm.io.run_files import check_client_names
from feddrm.registry import LISTED
from feddrm.tables.column_kinds import FAR, Usual
from feddrm.tables.column_values import column_facts
from feddrm.tables.table_schema import TableSchema
from feddrm.tasks import CLASSIFICATION, Task
from feddrm.typed_settings import typed_arguments

SCALE_RATIO = 100.0  # of the largest mean or standard deviation of a column to the smallest deviation: else a warning
BLOCK = 8192  # rows of a table that are looked at at once
DEPLOYED = "deployed"  # the name of a federation whose samples stay at the sites


@dataclass(frozen=True, eq=False)
class Federation:
    """All clients with their class names, the form of a sample, and a description of the data.

    ``source`` says where the samples came from, ``settings`` how they were divided and shifted, ``dataset`` by which
    dataset and settings they can be loaded again. ``schema`` says how raw rows became the samples, whose ``columns``
    are then the schema's encoded ones. ``gallery`` [client, sample, channel, height, width] shows the same samples as
    each client would see them, and ``gallery_labels`` has their class numbers. It is None where clients differ by
    nature and not by a known transform. ``mirrors`` says that the mirror image of a sample has the same class and could
    be the same client's. ``task`` says what the labels mean; the ``classes`` of survival are its intervals.

    Example:
        >>> rows, labels = np.arange(80.0).reshape(20, 4), np.arange(20) % 2
        >>> federation = feddrm.Federation.from_arrays({"oslo": (rows, labels), "lima": (rows + 1, labels)})
        >>> federation
        Federation('own', 2 classes, samples of 4, train+test: oslo 14+6, lima 14+6)
    """

    name: str
    clients: tuple[Client, ...]
    classes: tuple[str, ...]
    source: str
    crop: RandomResizedCrop | None = None
    mirrors: bool = False
    columns: tuple[str, ...] | None = None
    schema: TableSchema | None = None
    gallery: Tensor | None = None
    gallery_labels: tuple[int, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    dataset: Mapping[str, Any] | None = None  # None where the name and the settings are those of a dataset
    task: Task = CLASSIFICATION

    def __post_init__(self) -> None:
        check_client_names(self.name, [c.name for c in self.clients])
        shape, dtype = self.clients[0].train.x.shape[1:], self.clients[0].train.x.dtype
        for client in self.clients:
            for part, split in (("training", client.train), ("test", client.test)):
                where = f"{self.name}: {part} data of client '{client.name}'"
                _check_split(where, split, shape, dtype)
                self.task.check(where, split.y, self.classes)
        if self.schema is not None and self.columns != self.schema.encoded:
            raise FeddrmError(f"{self.name}: its columns are not those of its schema: encode its rows by the schema")

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        sizes = short_list([f"{c.name} {len(c.train)}+{len(c.test)}" for c in self.clients], LISTED)
        shape = "x".join(map(str, self.shape))
        return f"Federation('{self.name}', {len(self.classes)} classes, samples of {shape}, train+test: {sizes})"

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names, in order."""
        return tuple(c.name for c in self.clients)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample: (channels, height, width) or (columns,)."""
        return tuple(self.clients[0].train.x.shape[1:])

    @property
    def query_views(self) -> QueryViews:
        """The views of a sample that these data allow: crops where training crops, and mirror images."""
        return QueryViews(self.crop is not None, self.mirrors)

    @property
    def sizes(self) -> Tensor:
        """Training samples per client (int64)."""
        return torch.tensor([len(c.train) for c in self.clients])

    @property
    def weights(self) -> Tensor:
        """Each client's share of all training samples (float64): the weights of aggregation and averages."""
        return self.sizes.double() / self.sizes.sum()

    def counts(self, part: str = "all") -> Tensor:
        """Samples per client and class [client, class], of ``train``, ``test`` or ``all``."""
        rows = []
        for client in self.clients:
            classes = [self.task.class_of(split.y.cpu()) for split in (client.train, client.test)]
            train, test = (torch.bincount(numbers, minlength=len(self.classes)) for numbers in classes)
            rows.append({"train": train, "test": test, "all": train + test}[part])
        return torch.stack(rows)

    def to(self, device: torch.device | str) -> Federation:
        """The same federation with every sample on ``device``."""
        return replace(self, clients=tuple(c.to(device) for c in self.clients))

    def digest(self) -> str:
        """A checksum of what training uses: client, class and column names, every sample and its subject, in order."""
        checksum = hashlib.sha256(json.dumps([self.names, self.classes, self.columns]).encode())
        for client in self.clients:
            own = (client.train.x, client.train.y, client.test.x, client.test.y, client.train.subject)
            for tensor in (tensor for tensor in own if tensor is not None):
                checksum.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                checksum.update(tensor.cpu().contiguous().numpy().data)
        return checksum.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Sizes, classes, shifts and settings, as plain values."""
        return {
            "name": self.name,
            "source": self.source,
            "settings": dict(self.settings),
            "sample_shape": list(self.shape),
            "classes": list(self.classes),
            "clients": [
                {
                    "name": client.name,
                    "train": len(client.train),
                    "test": len(client.test),
                    **_subject_counts(client),
                    "shift": client.shift,
                    "class_counts": counts,
                }
                for client, counts in zip(self.clients, self.counts().tolist(), strict=True)
            ],
            "train": int(self.sizes.sum()),
            "test": sum(len(c.test) for c in self.clients),
            **({} if self.task.classifies else {"task": self.task.as_dict()}),
        }

    def describe_columns(self) -> list[dict[str, Any]]:
        """How each column of a table is read and what it holds, over all rows; nothing of pictures.

        Ranges tell of single rows, so they are kept apart from what :meth:`describe` gives to a run.
        """
        if len(self.shape) != 1:
            return []
        rows = torch.cat([split.x for client in self.clients for split in (client.train, client.test)])
        return column_facts(self._raw_columns, rows.double().cpu().numpy())

    def warnings(self) -> list[str]:
        """What to know of the samples before training on them."""
        schema, classes = self._raw_columns if len(self.shape) == 1 else None, self.classes
        of_samples = sample_warnings(self.name, self.clients, classes if self.task.classifies else (), schema)
        return [warning for warning in (self.scale_warning(), self.far_warning(), *of_samples) if warning is not None]

    @property
    def _raw_columns(self) -> TableSchema:
        return row_columns(self.schema, self.columns, self.shape[0])

    def far_warning(self) -> str | None:
        """A warning for training rows that the router would abstain from, were they queries; else None."""
        if len(self.shape) != 1:
            return None
        means, deviations = self._column_moments
        usual = list(map(Usual, means.tolist(), np.where(deviations > 0, deviations, 1.0).tolist()))
        far = [problem for rows in self._row_blocks() for problem in self._raw_columns.problems(rows, usual)]
        if not far:
            return None
        counts = Counter(problem.column for problem in far)
        example = {problem.column: problem.value for problem in reversed(far)}
        named = [f"'{column}' ({count}, such as {example[column]})" for column, count in counts.most_common()]
        return (
            f"{self.name}: columns with training values more than {FAR:g} standard deviations from the mean: "
            f"{short_list(named, 3)}. The router will give no answer to such queries: correct the values, or declare "
            f"minimum and maximum in a schema ('feddrm data schema FILE.csv' writes a first one)"
        )

    @cached_property
    def _column_moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and standard deviation of every column of the training rows."""
        count = int(self.sizes.sum())
        mean = np.sum([rows.sum(0) for rows in self._row_blocks()], axis=0) / count
        squares = np.sum([np.square(rows - mean).sum(0) for rows in self._row_blocks()], axis=0)
        return mean, np.sqrt(squares / count)

    def _row_blocks(self) -> Iterator[NDArray[np.float64]]:
        """The training rows in float64, many at a time: all of them would take more memory than the federation."""
        waiting, count = list[Tensor](), 0
        for client in self.clients:
            for rows in torch.split(client.train.x, BLOCK):
                waiting.append(rows)
                count += len(rows)
                if count >= BLOCK:
                    yield torch.cat(waiting).double().cpu().numpy()
                    waiting, count = [], 0
        if waiting:
            yield torch.cat(waiting).double().cpu().numpy()

    def scale_warning(self) -> str | None:
        """A warning for rows without a schema whose columns differ in scale by orders of magnitude; else None."""
        if len(self.shape) != 1 or self.schema is not None:
            return None
        means, deviations = (np.abs(values).tolist() for values in self._column_moments)
        sizes = [(max(pair), i) for i, pair in enumerate(zip(means, deviations, strict=True))]
        spread = [(value, i) for i, value in enumerate(deviations) if value > 0]
        if not spread or max(sizes)[0] <= SCALE_RATIO * min(spread)[0]:
            return None
        (low, small), (high, large) = min(spread), max(sizes)
        columns = self._raw_columns.names
        measure = "mean" if means[large] > deviations[large] else "standard deviation"
        return (
            f"{self.name}: column '{columns[large]}' has a {measure} of {high:.3g}, '{columns[small]}' a standard "
            f"deviation of {low:.3g}, and nothing scales them: the network will hardly see the second. 'feddrm data "
            f"schema FILE.csv' writes a schema that scales them, to be given as schema (--set data.schema=schema.yaml)"
        )

    @classmethod
    def from_arrays(cls, clients: Arrays, **options: Any) -> Federation:
        """Make a federation from arrays in memory: one pair of samples and labels per client.

        Example::

            X1, X2 = np.random.rand(60, 5), np.random.rand(40, 5)   # rows [n, d]: tables
            y1, y2 = np.arange(60) % 2, np.arange(40) % 2           # one label per row
            fed = Federation.from_arrays({"oslo": (X1, y1), "lima": (X2, y2)}, columns=["age", "dose", "a", "b", "c"])

        A client is ``(X, y)``: arrays, tensors, lists, or a data frame as X. Rows [n, d] become float32; they reach the
        network as they are, so bring columns to a similar scale. Images are [n, height, width] (grey),
        [n, height, width, channels] or [n, channels, height, width] with 1 or 3 channels, as integers 0..255 or floats
        0..1. All clients have samples of one shape. y [n] has whole numbers 0, 1, ... or names of classes. Where
        several samples are of one patient, give ``(X, y, subjects)``: whom each sample is of, as numbers or text. A
        client's samples of one subject are not divided between training and test, nor among the folds of a fit.

        Options:

        - ``test``: pairs of the same form to test on. Without it, ``test_fraction`` (0.3) of every client is held out.
        - ``seed`` (2025): of that division.
        - ``classes``: names of the labels 0, 1, ..., or all names in the order wanted.
        - ``columns``: one name per column; default x0, x1, ..., or those of the data frame.
        - ``name`` ("own"): of the federation, in reports and messages.

        A missing value, a wrong shape or an unknown label is an error that names its place.
        """
        return cls(**vars(ArraySource(clients, **options).load()))

    @classmethod
    @typed_arguments
    def from_npz(cls, path: str | Path, **options: Any) -> Federation:
        """Make a federation from .npz files: one per client with arrays x and y, or one with an array client.

        Options (test, test_fraction, seed, name): see :class:`feddrm.data.sources.array_files.ArrayFileSource`.
        """
        return cls(**vars(ArrayFileSource(path, **options).load()))

    @classmethod
    @typed_arguments
    def from_folders(cls, root: str | Path, **options: Any) -> Federation:
        """Make a federation from images: a folder per client, and in it a folder per class.

        Options (size, subject, test_fraction, seed, name):
        see :class:`feddrm.data.sources.image_folders.ImageFolderSource`.
        """
        return cls(**vars(ImageFolderSource(root, **options).load()))

    @classmethod
    @typed_arguments
    def from_csv(cls, paths: Paths, **options: Any) -> Federation:
        """Make a federation from tables (CSV, Parquet): one file per client, or one file with a client column.

        A pandas data frame may stand for a file. Options (label, or time and event; client, test, drop, schema,
        categories, subject, test_fraction, seed, name):
        see :class:`feddrm.data.sources.csv_tables.CsvSource`.
        """
        return cls(**vars(CsvSource(paths, **options).load()))

    @classmethod
    @typed_arguments
    def from_leaf(cls, path: str | Path, **options: Any) -> Federation:
        """Make a federation from files in the layout of LEAF: every user is a client.

        Options (shape, least, test_fraction, seed, name): see :class:`feddrm.data.sources.leaf_files.LeafSource`.
        """
        return cls(**vars(LeafSource(path, **options).load()))

    @classmethod
    def from_dataset(cls, data: Any, *, inputs: str | Sequence[str], label: str, **options: Any) -> Federation:
        """Make a federation from a Hugging Face dataset with a client column, one per client, or a Flower partitioner.

        Options (client, subject, test, test_fraction, seed, name, classes):
        see :func:`feddrm.data.sources.dataset_objects.load_dataset_object`.
        """
        return cls(**vars(load_dataset_object(data, inputs=inputs, label=label, **options)))

    @classmethod
    @typed_arguments
    def from_flamby(cls, dataset: Callable[..., Any], centers: int, **options: Any) -> Federation:
        """Make a federation from a FLamby dataset class: every centre is a client, train and test are FLamby's."""
        return cls(**vars(load_flamby(dataset, centers, **options)))


def _subject_counts(client: Client) -> dict[str, int]:
    """Of how many subjects a client's samples are, where that is known."""
    if client.train.subject is None:
        return {}
    return {"train_subjects": client.train.subjects, "test_subjects": client.test.subjects}


def _check_split(where: str, split: Split, shape: torch.Size, dtype: torch.dtype) -> None:
    if len(split) == 0:
        raise FeddrmError(f"{where} is empty: drop the client or give it more samples")
    if len(split.x) != len(split.y):
        raise FeddrmError(f"{where} has {len(split.x)} samples but {len(split.y)} labels")
    if split.x.shape[1:] != shape or split.x.dtype != dtype:
        raise FeddrmError(
            f"{where} has samples of shape {tuple(split.x.shape[1:])} ({split.x.dtype}), "
            f"the first client {tuple(shape)} ({dtype}): bring all to one shape"
        )
