"""Labelled samples of every client, and the checks and steps that turn them into clients of a federation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feddrm.data.client import Client, Split
from feddrm.data.partition import Indices, split_rows
from feddrm.errors import FeddrmError, SettingError, quoted, short_list
from feddrm.io.run_files import check_client_names
from feddrm.io.text import nfc
from feddrm.registry import nearest
from feddrm.tables.table_schema import TableSchema
from feddrm.tasks import CLASSIFICATION, Task

SPELLING_REMEDY = "differ only in case or spaces: spell them alike, or rename one"

Label = int | str


@dataclass(frozen=True, eq=False)
class LabelledSamples:
    """Samples with labels as given; ``place(i)`` says in an error message where sample i came from.

    ``x`` is uint8 [n, channels, height, width] or float32 [n, columns]. ``subjects`` say whom each sample is of, such
    as a patient with several images; the samples of one are never divided.
    """

    x: NDArray[Any]
    labels: Sequence[Label]
    place: Callable[[int], str]
    subjects: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.labels)


Numbered = tuple[Mapping[str, LabelledSamples], Mapping[str, NDArray[np.int64]]]  # samples and labels of every client


@dataclass(frozen=True)
class Division:
    """How test samples are split off where none are given: which fraction, and the generator's seed."""

    test_fraction: float
    seed: int

    @classmethod
    def checked(cls, where: str, test_fraction: Any, seed: Any) -> Division:
        """A division in plain Python numbers, which YAML can hold."""
        if not isinstance(test_fraction, float | np.floating) or not 0 < test_fraction < 1:
            raise SettingError(
                f"{where}: test_fraction={quoted(test_fraction)}: give a fraction between 0 and 1, as 0.3"
            )
        if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
            raise SettingError(
                f"{where}: seed {quoted(seed)} is out of range: give a whole number from 0 to {2**32 - 1}"
            )
        return cls(float(test_fraction), int(seed))

    def settings(self, *, test_given: bool) -> dict[str, Any]:
        """The settings of a federation that say how its test samples came about."""
        if test_given:
            return {"test": "given"}
        return {"test": "split", "test_fraction": self.test_fraction, "seed": self.seed}


@dataclass(frozen=True, eq=False)
class FederationParts:
    """What a source has loaded. The fields have the names of a federation's fields."""

    name: str
    clients: tuple[Client, ...]
    classes: tuple[str, ...]
    source: str
    settings: Mapping[str, Any]
    columns: tuple[str, ...] | None = None
    schema: TableSchema | None = None
    task: Task = CLASSIFICATION


def check_same_clients(where: str, train: Iterable[str], test: Iterable[str]) -> None:
    """Check that test samples are given for every client of the training samples and for no other."""
    known, given = dict.fromkeys(train), dict.fromkeys(test)
    for client in given:
        if client not in known:
            raise FeddrmError(
                f"{where}: test data for client '{client}', which has no training data{nearest(client, known)}: "
                f"name it as in the training data ({short_list(known)})"
            )
    for client in known:
        if client not in given:
            raise FeddrmError(
                f"{where}: client '{client}' has no test data: give some, or leave test out to have them split off"
            )


def assemble(
    name: str,
    train: Mapping[str, LabelledSamples],
    test: Mapping[str, LabelledSamples] | None,
    division: Division,
    classes: Sequence[str] | None = None,
) -> tuple[tuple[Client, ...], tuple[str, ...]]:
    """Clients and class names from the samples of every client; no client's samples may be empty.

    The classes come from the training samples. Where the test samples are split off here, they come
    from all samples, so that a class does not depend on the seed.
    """
    check_client_names(name, list(train))
    if test is not None:
        check_same_clients(name, train, test)
    _check_label_types([*train.values(), *(test or {}).values()])
    labels = {label for samples in train.values() for label in samples.labels}
    if len(labels) < 2:
        raise FeddrmError(
            f"{name}: every sample has the label {quoted(labels.pop())}, there is nothing to tell apart: "
            f"add samples of another class"
        )
    class_names, numbers = _number_classes(name, labels, classes)
    remedy = "correct it" if classes is None else "correct it or add it to classes"
    y_train = {client: _class_numbers(samples, numbers, remedy) for client, samples in train.items()}
    y_test = {client: _class_numbers(samples, numbers, remedy) for client, samples in (test or {}).items()}
    return _divided(name, (train, y_train), None if test is None else (test, y_test), division), class_names


def assemble_survival(
    name: str, train: Mapping[str, LabelledSamples], test: Mapping[str, LabelledSamples] | None, division: Division
) -> tuple[Client, ...]:
    """Clients from samples whose labels are those of :class:`Survival`: they stay as they are."""
    check_client_names(name, list(train))
    if test is not None:
        check_same_clients(name, train, test)
    y_train, y_test = (
        {client: np.array(samples.labels, dtype=np.int64) for client, samples in part.items()}
        for part in (train, test or {})
    )
    return _divided(name, (train, y_train), None if test is None else (test, y_test), division)


def _divided(name: str, train: Numbered, test: Numbered | None, division: Division) -> tuple[Client, ...]:
    """The clients; their test samples are split off where none are given."""
    sizes = {client: len(samples) for client, samples in train[0].items()}
    if test is None:
        subjects = {client: samples.subjects for client, samples in train[0].items()}
        rows, test = divide(name, sizes, division, subjects), train
    else:
        rows = {client: (np.arange(size), np.arange(len(test[0][client]))) for client, size in sizes.items()}
        _check_subjects(train[0], test[0])
    (given, y_train), (tested, y_test) = train, test
    return tuple(
        Client(client, _split(given[client], y_train[client], first), _split(tested[client], y_test[client], rest))
        for client, (first, rest) in rows.items()
    )


def _check_subjects(train: Mapping[str, LabelledSamples], test: Mapping[str, LabelledSamples]) -> None:
    """Refuse given test samples of a subject that its client trains on."""
    for client, samples in test.items():
        known = set(train[client].subjects or ())
        for i, subject in enumerate(samples.subjects or ()):
            if subject in known:
                raise FeddrmError(
                    f"{samples.place(i)}: '{subject}' has training samples at client '{client}', too: give all samples "
                    "of a subject to one side"
                )


def assemble_client(name: str, samples: LabelledSamples, division: Division, classes: Sequence[str]) -> Client:
    """One client alone. ``classes`` are those of the whole federation; the client may hold a few of them."""
    _check_label_types([samples])
    _, numbers = _number_classes(name, set(samples.labels), classes)
    y = _class_numbers(samples, numbers, "correct it or add it to classes")
    train, test = divide(name, {name: len(samples)}, division, {name: samples.subjects})[name]
    return Client(name, _split(samples, y, train), _split(samples, y, test))


def spelling_variants(labels: Sequence[Label]) -> tuple[Label, Label] | None:
    """Two labels that differ only in case or spaces, such as 'Healthy' and 'healthy'; None if there are none.

    Labels of one letter may differ in case.
    """
    seen: dict[str, Label] = {}
    for label in labels:
        folded = " ".join(str(label).casefold().split())
        if len(str(label)) > 1 and folded in seen:
            return seen[folded], label
        seen[folded] = label
    return None


def _check_label_types(parts: Sequence[LabelledSamples]) -> None:
    expected = type(parts[0].labels[0])
    nouns = {int: "a whole number", str: "text"}
    for samples in parts:
        for i, label in enumerate(samples.labels):
            if type(label) is not expected:
                raise FeddrmError(
                    f"{samples.place(i)}: label {quoted(label)} is {nouns[type(label)]}, "
                    f"that of {parts[0].place(0)} is {nouns[expected]}: use one kind throughout"
                )


def _number_classes(
    name: str, labels: set[Any], classes: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[Label, int]]:
    """Class names, and the number of every label."""
    if classes is None:
        ordered = sorted(labels)
        if (pair := spelling_variants(ordered)) is not None:
            raise FeddrmError(f"{name}: the classes {quoted(pair[0])} and {quoted(pair[1])} {SPELLING_REMEDY}")
        return tuple(str(label) for label in ordered), {label: i for i, label in enumerate(ordered)}
    given: Sequence[Any] = classes
    names = tuple(nfc(c) if isinstance(c, str) else c for c in given)
    distinct = {c for c in names if isinstance(c, str) and c}
    if isinstance(classes, str) or len(distinct) != len(names):
        raise FeddrmError(f"{name}: classes={quoted(classes)}: give a list of distinct names")
    numbered = all(isinstance(label, int) for label in labels)
    return names, {(i if numbered else c): i for i, c in enumerate(names)}


def _class_numbers(samples: LabelledSamples, numbers: Mapping[Label, int], remedy: str) -> NDArray[np.int64]:
    for i, label in enumerate(samples.labels):
        if label not in numbers:
            known = [" ".join(str(k).split()) for k in numbers]
            raise FeddrmError(
                f"{samples.place(i)}: label {quoted(label)} is not one of the classes "
                f"({short_list(known)}){nearest(str(label), known)}: {remedy}"
            )
    return np.array([numbers[label] for label in samples.labels], dtype=np.int64)


def divide(
    name: str,
    sizes: Mapping[str, int],
    division: Division,
    subjects: Mapping[str, Sequence[str] | None] | None = None,
) -> dict[str, tuple[Indices, Indices]]:
    """The rows of every client to train on and to test on. All rows of a client's subject are on one side."""
    # 1 - 0.9 is a little less than 0.1 in binary; rounding down would then lose a sample.
    fraction, rng = round(1 - division.test_fraction, 12), np.random.RandomState(division.seed)
    parts = {}
    for client, size in sizes.items():
        own = _subject_numbers((subjects or {}).get(client))
        parts[client] = first, rest = split_rows(size, rng, fraction, own)
        if own is not None and own.max() == 0:
            raise FeddrmError(
                f"{name}: all {size} samples of client '{client}' are of one subject, which cannot be divided: "
                "give it samples of others, or test samples"
            )
        if len(first) == 0 or len(rest) == 0:
            raise FeddrmError(
                f"{name}: client '{client}' has too few samples ({size}) to split with "
                f"test_fraction={division.test_fraction:g}: give it more, or change the fraction"
            )
    return parts


def _split(samples: LabelledSamples, y: NDArray[np.int64], rows: Indices) -> Split:
    # Indexing by an array copies, so the federation shares no memory with the caller's arrays.
    subject = _subject_numbers(samples.subjects)
    parts = (samples.x, y) if subject is None else (samples.x, y, subject)
    return Split(*(torch.from_numpy(part[rows]) for part in parts))


def _subject_numbers(subjects: Sequence[str] | None) -> Indices | None:
    """A number for every sample, the same for those of one subject."""
    return None if subjects is None else np.unique(np.array(subjects), return_inverse=True)[1].astype(np.int64)
