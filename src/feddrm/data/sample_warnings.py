"""Warnings of samples whose figures would be too good or senseless: copies, columns that name rows, odd values."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddrm.data.client import Client, Split
from feddrm.errors import short_list
from feddrm.io.text import parse_whole
from feddrm.tables.column_kinds import FAR, ROUNDING, NumberColumn, RawColumn, Values, plain_number
from feddrm.tables.table_schema import TableSchema

COPIED = 0.01  # share of the test samples from which on there is a warning
DISTINCT = 0.9  # share of different training rows below which rows of a table may well be equal by chance
NUMBERED_ROWS = 50  # training rows of one client that all differ by chance in no column of counts or ages
OWN_ROWS = 10  # training rows of a client below which its values say little
MOST_CLASSES = 20  # of labels that are whole numbers, but no numbers of classes: more look like a measurement
FLOAT32 = 2e-7  # of a value: what is lost in float32
OTHER_UNIT = 2.0  # times the median of the other clients: few measurements differ by so much without overlap
# What a column is called that says whom a row is of.
WHOM = re.compile(
    r"(.*[\W_])?(id|pid|mrn|patient|subject|(patient|subject|person|case|record|visit)[\W_]?(id|no|nr|number))"
)


def sample_warnings(
    name: str, clients: Sequence[Client], classes: Sequence[str], schema: TableSchema | None
) -> list[str]:
    """All warnings of this module. ``schema`` is that of rows; images have none, and labels of survival no classes.

    Of a client alone, those are left out that compare it with others.
    """
    found = [copies_warning(name, clients)]
    if schema is not None:
        checks = ROW_WARNINGS if len(clients) > 1 else OWN_ROW_WARNINGS
        found += [check(name, clients, schema) for check in checks]
        found += [label_warning(name, classes)]
    return [warning for warning in found if warning is not None]


def row_columns(schema: TableSchema | None, columns: Sequence[str] | None, inputs: int) -> TableSchema:
    """The schema of rows; without one, every network input is a number as it is."""
    return schema or TableSchema(tuple(map(NumberColumn, columns or [f"x{i}" for i in range(inputs)])))


def copies_warning(name: str, clients: Sequence[Client]) -> str | None:
    """A warning where test samples are equal to training samples of any client, label and all; None where few are."""
    train = [sample for client in clients for sample in _hashes(client.train)]
    known = set(train)
    if clients[0].train.x.ndim == 2 and len(known) < DISTINCT * len(train):
        return None
    equal = [[sample in known for sample in _hashes(client.test)] for client in clients]
    copies, tested = sum(map(sum, equal)), sum(map(len, equal))
    if copies < COPIED * tested or not copies:
        return None
    client, own = next((client, own) for client, own in zip(clients, equal, strict=True) if any(own))
    return (
        f"{name}: {copies:,} of {tested:,} test samples are equal to training samples, such as test sample "
        f"{own.index(True)} of client '{client.name}'. If they are copies, accuracies will be too good: remove them, "
        "or name whom the samples are of (subject)"
    )


def identifier_warning(name: str, clients: Sequence[Client], schema: TableSchema) -> str | None:
    """A warning of columns that number the rows: numbers of patients follow from the client, so routing looks perfect.

    A column with a declared range is a measurement. Numbers of patients with several visits are known by their name.
    """
    numbers = [(c, own.start) for c, own, _ in schema.places if isinstance(c, NumberColumn) and not c.range]
    enough = max(len(client.train) for client in clients) >= NUMBERED_ROWS
    found = [c.name for c, place in numbers if enough and all(_numbers_rows(c, client, place) for client in clients)]
    if not found:
        if (whom := next((c.name for c, _ in numbers if WHOM.fullmatch(c.name.casefold())), None)) is None:
            return None
        return (
            f"{name}: '{whom}' is an input, though by its name it says whom a row is of: name it as the subject "
            f"(subject='{whom}'), or leave it out (drop=['{whom}'])"
        )
    quoted_names = short_list([f"'{column}'" for column in found], 3)
    return (
        f"{name}: {quoted_names}: another whole number in every row of a client. If it numbers patients or visits, the "
        f"router would know the clients by it: leave it out (drop=['{found[0]}']). If it is a measurement, declare "
        "minimum and maximum in a schema"
    )


def own_values_warning(name: str, clients: Sequence[Client], schema: TableSchema) -> str | None:
    """A warning of columns in which a client has no value that any other client has: they name the client.

    It has spelled its categories in its own way, or the column is one of hospitals, devices or regions. A client of few
    rows, and one beside which there are few, may have its own values by chance.
    """
    rows = [len(client.train) for client in clients]
    known = [min(own, sum(rows) - own) >= OWN_ROWS for own in rows]
    for column, own, _ in schema.places:
        values = [_values(column, client.train.x[:, own].double().cpu().numpy()) for client in clients]
        sets = [set(value) for value in values]
        if not all(sets):
            continue
        for client, held in itertools.compress(zip(clients, sets, strict=True), known):
            if held.isdisjoint(set().union(*(other for other in sets if other is not held))):
                return (
                    f"{name}: column '{column.name}': no other client has the values of '{client.name}' "
                    f"({short_list(sorted(map(str, held)), 5)}), so the router would know the client by them: spell "
                    f"categories alike at all clients; leave out what names the client (drop=['{column.name}'])"
                )
    return None


def is_code(value: float) -> bool:
    """Whether a number is one of those that often stand for a missing value: -9, -99, 99, -999, 999 and so on."""
    return set(f"{abs(value):.6g}") == {"9"} and not 0 < value < 99


def missing_code_warning(name: str, clients: Sequence[Client], schema: TableSchema) -> str | None:
    """A warning of numbers that often stand for a missing value (-9, -99, 999) and lie apart from all others.

    A column with a declared range has been looked at. :meth:`Federation.far_warning` names values that are far off.
    """
    found = []
    for column, parts in _measurements(clients, schema):
        values = np.concatenate(parts)
        for code in dict.fromkeys((values.min(initial=0.0), values.max(initial=0.0))):
            if not is_code(code):
                continue
            same = np.abs(values - code) <= ROUNDING * abs(code)
            others, count = values[~same], int(same.sum())
            if not len(others) or abs(code - values.mean()) > FAR * values.std():
                continue
            gap = min(abs(code - others.min()), abs(code - others.max()))
            if code < 0 <= others.min() or (count > 1 and gap > np.ptp(others)):
                ends = f"{plain_number(others.min())} to {plain_number(others.max())}"
                found.append(f"'{column.name}' is {code:.6g} in {count:,} rows, and {ends} in all others")
    if not found:
        return None
    return (
        f"{name}: {short_list(found, 3)}. If this says that the value is missing, empty these cells (schema=auto "
        "allows gaps): it would be taken for a measurement"
    )


def unit_warning(name: str, clients: Sequence[Client], schema: TableSchema) -> str | None:
    """A warning of measurements that some clients have in another order of magnitude, as in another unit.

    The middle 90 % of their values do not overlap with those of the others, and medians differ by a factor of two.
    Clients of few values are left out.
    """
    found = []
    for column, every in _measurements(clients, schema):
        known = [(client, part) for client, part in zip(clients, every, strict=True) if len(part) >= OWN_ROWS]
        names, parts = [client.name for client, _ in known], [part for _, part in known]
        if (
            len(known) < 2
            or WHOM.fullmatch(column.name.casefold())
            or any(part.min() <= 0 for part in every if len(part))
        ):
            continue
        middle = np.array([np.quantile(part, (0.05, 0.5, 0.95)) for part in parts])
        order = np.argsort(middle[:, 1])
        for below, above in ((order[:cut], order[cut:]) for cut in range(1, len(order))):
            apart = middle[below, 2].max() < middle[above, 0].min()
            if apart and middle[above, 1].min() >= OTHER_UNIT * middle[below, 1].max():
                few, many = sorted((below, above), key=len)
                ranges = [f"{middle[own, 0].min():.3g} to {middle[own, 2].max():.3g}" for own in (few, many)]
                others = "all others" if len(known) == len(clients) else "others"
                at = short_list([f"'{names[i]}'" for i in sorted(few)], 3)
                found.append(f"'{column.name}' is mostly {ranges[0]} at {at}, {ranges[1]} at {others}")
                break
    if not found:
        return None
    return (
        f"{name}: {short_list(found, 3)}. If units differ, convert them: the router would know the client by them, and "
        "answers would be wrong for values in another unit"
    )


def label_warning(name: str, classes: Sequence[str]) -> str | None:
    """A warning of whole numbers as labels that are no classes: ages, lengths of stay, a code of a missing value."""
    numbers = [parse_whole(label) for label in classes]
    if len(classes) <= MOST_CLASSES and (code := next(filter(is_code, filter(None, numbers)), None)) is not None:
        return (
            f"{name}: {code} is a class among {short_list(classes)}: if it says that the label is missing, remove its "
            "rows"
        )
    if (
        len(classes) <= MOST_CLASSES
        or None in numbers
        or numbers in ([*range(len(classes))], [*range(1, len(classes) + 1)])
    ):
        return None
    return (
        f"{name}: the label has {len(classes)} different whole numbers, from {classes[0]} to {classes[-1]}, and each "
        "is a class: divide a measurement into a few classes"
    )


def _measurements(clients: Sequence[Client], schema: TableSchema) -> Iterator[tuple[NumberColumn, list[Values]]]:
    """Every column of numbers without a declared range, and its values at every client, training rows alone."""
    for column, own, mark in schema.places:
        if isinstance(column, NumberColumn) and not column.range:
            parts = (
                client.train.x if mark is None else client.train.x[client.train.x[:, mark] != 1] for client in clients
            )
            yield column, [column.raw(rows[:, own.start].double().cpu().numpy()) for rows in parts]


def _numbers_rows(column: NumberColumn, client: Client, place: int) -> bool:
    """Whether every training row of the client has another whole number in this column."""
    for rows in (client.train.x[:NUMBERED_ROWS, place], client.train.x[:, place]):  # few columns pass the first
        raw = column.raw(rows.double().cpu().numpy())
        whole = np.abs(raw - np.rint(raw)) <= FLOAT32 * (np.abs(raw).max() + abs(column.centre))
        if not whole.all() or len(np.unique(raw)) < len(raw):
            return False
    return True


def _values(column: RawColumn, inputs: NDArray[np.float64]) -> list[Any]:
    """The categories that a client has, or the value of a column of numbers that is the same in all its rows."""
    if isinstance(column, NumberColumn) and (inputs != inputs[:1]).any():
        return []
    return [value for value in column.decode(np.unique(inputs, axis=0)) if value is not None]


def _hashes(split: Split) -> Iterator[int]:
    """One number per sample, equal for equal samples: the samples' bytes would take as much memory as they do."""
    rows, labels = split.x.cpu().contiguous().numpy().reshape(len(split), -1), split.y.tolist()
    return (hash((row.tobytes(), label)) for row, label in zip(rows, labels, strict=True))


ROW_WARNINGS = (identifier_warning, own_values_warning, missing_code_warning, unit_warning)
OWN_ROW_WARNINGS = (identifier_warning, missing_code_warning)  # those that need the rows of one client alone
