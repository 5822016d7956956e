"""What the columns of a table hold, for a person to check: ranges, categories and gaps, read from network inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from feddrm.tables.column_kinds import NumberColumn, RawColumn, Values, plain_number
from feddrm.tables.table_schema import TableSchema

FEW = 10  # different whole numbers of a column: they may be codes of categories
MOST_LISTED = 8  # categories that a line has room for


def column_facts(schema: TableSchema, inputs: Values) -> list[dict[str, Any]]:
    """What each raw column holds in network inputs [n, inputs]: how it is read, its values, and how many are missing.

    Smallest and largest values are those of single rows: they are for whoever has the table, and kept in no run.
    """
    facts = []
    for column, own, mark in schema.places:
        known = inputs[:, own] if mark is None else inputs[inputs[:, mark] != 1, own]
        missing = len(inputs) - len(known)
        facts.append({"name": column.name, "kind": column.kind, **_facts(column, known), "missing": missing})
    return facts


def _facts(column: RawColumn, inputs: Values) -> dict[str, Any]:
    if not isinstance(column, NumberColumn):
        counts = Counter(map(str, column.decode(inputs)))
        return {"categories": dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))}
    values = column.raw(inputs[:, 0])
    ends = (values.min(), np.median(values), values.max()) if len(values) else ()
    least, median, largest = map(plain_number, map(float, ends)) if ends else (None, None, None)
    return {"least": least, "median": median, "largest": largest, "different": len(np.unique(values))}


def values_text(facts: Mapping[str, Any]) -> str:
    """The values of a column in a few words."""
    if (counts := facts.get("categories")) is not None:
        listed = [f"{label} {count}" for label, count in counts.items()]
        more = len(listed) - MOST_LISTED
        return ", ".join(listed[:MOST_LISTED]) + (f", and {more} more" if more > 0 else "") or "no value"
    if not facts["different"]:
        return "no value"
    if facts["different"] == 1:
        return f"always {facts['median']}"
    whole = isinstance(facts["least"], int) and isinstance(facts["largest"], int)
    few = f", {facts['different']} different" if whole and facts["different"] <= FEW else ""
    return f"{facts['least']} to {facts['largest']}, median {facts['median']}{few}"
