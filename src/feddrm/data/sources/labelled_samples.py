"""From what each client brought to a Federation: number the labels, split, refuse what cannot be."""

from __future__ import annotations

import reprlib
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feddrm.data.federation import Client, Federation, Split, check_clients
from feddrm.data.partition import Indices, split
from feddrm.errors import FeddrmError, SettingError
from feddrm.registry import nearest

Label = int | str


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples whose labels are not numbered yet; ``place`` says where sample i came from, for errors.

    ``x`` is uint8 [n, channels, height, width] or float32 [n, columns].
    """

    x: NDArray[Any]
    labels: Sequence[Label]
    place: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.labels)


def shown(value: object) -> str:
    """A value from outside, quoted and shortened, so that an error stays one line."""
    plain = value.item() if isinstance(value, np.generic) else value
    return " ".join(reprlib.repr(plain).split())


def composed(text: str) -> str:
    """One spelling of what looks the same: some systems write 'ü' as one character, some as two."""
    return unicodedata.normalize("NFC", text)


def check_division(where: str, test_fraction: Any, seed: Any) -> tuple[float, int]:
    """The two as plain numbers, which files can hold; impossible settings are refused before anything is read."""
    if not isinstance(test_fraction, float | np.floating) or not 0 < test_fraction < 1:
        raise SettingError(f"{where}: test_fraction={shown(test_fraction)}: give a fraction between 0 and 1, as 0.3")
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise SettingError(f"{where}: seed {shown(seed)} is out of range: give a whole number from 0 to {2**32 - 1}")
    return float(test_fraction), int(seed)


def check_same_clients(where: str, train: Iterable[str], test: Iterable[str]) -> None:
    """Test data that are given must be given for every client, under the same name."""
    known, given = list(train), list(test)
    for client in given:
        if client not in known:
            raise FeddrmError(
                f"{where}: test data for client '{client}', which has no training data{nearest(client, known)}: "
                f"name it as in the training data ({', '.join(known)})"
            )
    for client in known:
        if client not in given:
            raise FeddrmError(
                f"{where}: client '{client}' has no test data: give some, or leave test out to have them split off"
            )


def assemble(
    name: str,
    train: Mapping[str, Samples],
    test: Mapping[str, Samples] | None,
    *,
    test_fraction: float,
    seed: int,
    source: str,
    settings: Mapping[str, Any],
    classes: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> Federation:
    """Check, number and split samples, of which every client has some.

    Classes come from the training data, or from all data where the test data are split off here:
    whether a class exists must not hang on the seed.
    """
    check_clients(name, list(train))
    if test is not None:
        check_same_clients(name, train, test)
    _check_kinds([*train.values(), *(test or {}).values()])
    names, number = _classes(name, train, classes)
    advice = "correct it" if classes is None else "correct it or add it to classes"
    y_train = {client: _number(samples, number, advice) for client, samples in train.items()}
    clients = []
    if test is None:
        for client, (first, rest) in _divide(name, train, test_fraction, seed).items():
            x, y = train[client].x, y_train[client]
            clients.append(Client(client, train=_split(x, y, first), test=_split(x, y, rest)))
    else:
        for client, samples in train.items():
            y_test = _number(test[client], number, advice)
            mine = _split(samples.x, y_train[client], np.arange(len(samples)))
            theirs = _split(test[client].x, y_test, np.arange(len(y_test)))
            clients.append(Client(client, train=mine, test=theirs))
    return Federation(
        name=name,
        clients=tuple(clients),
        classes=names,
        source=source,
        columns=None if columns is None else tuple(columns),
        settings=dict(settings),
    )


def _check_kinds(everything: Sequence[Samples]) -> None:
    kind = type(everything[0].labels[0])
    words = {int: "a whole number", str: "text"}
    for samples in everything:
        for i, label in enumerate(samples.labels):
            if type(label) is not kind:
                raise FeddrmError(
                    f"{samples.place(i)}: label {shown(label)} is {words[type(label)]}, "
                    f"that of {everything[0].place(0)} is {words[kind]}: use one kind throughout"
                )


def _classes(
    name: str, train: Mapping[str, Samples], classes: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[Label, int]]:
    """Class names, and the number of every label."""
    found: set[Any] = {label for samples in train.values() for label in samples.labels}
    if len(found) < 2:
        raise FeddrmError(
            f"{name}: every sample has the label {shown(found.pop())}, there is nothing to tell apart: "
            f"add samples of another class"
        )
    if classes is None:
        ordered = sorted(found)
        _check_spelling(name, ordered)
        return tuple(str(label) for label in ordered), {label: i for i, label in enumerate(ordered)}
    given: Sequence[Any] = classes
    names = tuple(composed(c) if isinstance(c, str) else c for c in given)
    distinct = {c for c in names if isinstance(c, str) and c}
    if isinstance(classes, str) or len(distinct) != len(names):
        raise FeddrmError(f"{name}: classes={shown(classes)}: give a list of distinct names")
    numbered = all(isinstance(label, int) for label in found)
    return names, {(i if numbered else c): i for i, c in enumerate(names)}


UNLIKE = "differ in upper and lower case or spaces alone: spell them alike, or rename one"


def one_word(labels: Sequence[Label]) -> tuple[Label, Label] | None:
    """Two labels that differ in case or spaces alone, such as 'Healthy' and 'healthy'; letters may come in both."""
    seen: dict[str, Label] = {}
    for label in labels:
        folded = " ".join(str(label).casefold().split())
        if len(str(label)) > 1 and folded in seen:
            return seen[folded], label
        seen[folded] = label
    return None


def _check_spelling(name: str, labels: Sequence[Label]) -> None:
    if (pair := one_word(labels)) is not None:
        raise FeddrmError(f"{name}: the classes {shown(pair[0])} and {shown(pair[1])} {UNLIKE}")


def _number(samples: Samples, number: Mapping[Label, int], advice: str) -> NDArray[np.int64]:
    for i, label in enumerate(samples.labels):
        if label not in number:
            known = [" ".join(str(k).split()) for k in number]
            raise FeddrmError(
                f"{samples.place(i)}: label {shown(label)} is not one of the classes "
                f"({listed(known)}){nearest(str(label), known)}: {advice}"
            )
    return np.array([number[label] for label in samples.labels], dtype=np.int64)


def listed(words: Sequence[str], most: int = 12) -> str:
    """The first of them, so that an error stays readable."""
    return ", ".join(words[:most]) + (", ..." if len(words) > most else "")


def _divide(
    name: str, clients: Mapping[str, Samples], test_fraction: float, seed: int
) -> dict[str, tuple[Indices, Indices]]:
    # 1 - 0.9 is a little less than 0.1 in binary, which would cost a sample when rounded down.
    fraction = round(1 - test_fraction, 12)
    parts = split([np.arange(len(s)) for s in clients.values()], np.random.RandomState(seed), fraction)
    for client, (first, rest) in zip(clients, parts, strict=True):
        if len(first) == 0 or len(rest) == 0:
            raise FeddrmError(
                f"{name}: client '{client}' has too few samples ({len(clients[client])}) to split with "
                f"test_fraction={test_fraction:g}: give it more, or change the fraction"
            )
    return dict(zip(clients, parts, strict=True))


def _split(x: NDArray[Any], y: NDArray[np.int64], rows: Indices) -> Split:
    # Indexing by an array copies: the federation never shares memory with what it was made from.
    return Split(torch.from_numpy(x[rows]), torch.from_numpy(y[rows]))
