"""What a table's columns hold, read back from network inputs."""

from __future__ import annotations

from typing import Any

import pytest

from feddrm.tables.column_kinds import CategoryColumn, NumberColumn
from feddrm.tables.column_values import column_facts, values_text
from feddrm.tables.table_schema import TableSchema

SCHEMA = TableSchema(
    (
        NumberColumn("age", centre=50, scale=10),
        NumberColumn("chol", centre=240, scale=50, missing=True),
        NumberColumn("dose", missing=True),
        CategoryColumn("sex", categories={"0": "female", "1": "male"}),
        CategoryColumn("pain", missing=True, categories={"1": "none", "2": "some", "3": "much"}),
    )
)
ROWS = [
    [18, 233.4, "", "male", "some"],
    [97, "", "", "male", "some"],
    [44, 180.2, "", "female", "none"],
    [44, 260, "", "male", ""],
]


def test_ranges_categories_and_gaps_are_those_of_the_cells() -> None:
    assert column_facts(SCHEMA, SCHEMA.encode(SCHEMA.read(ROWS)).astype(float)) == [
        {"name": "age", "kind": "number", "least": 18, "median": 44, "largest": 97, "different": 3, "missing": 0},
        {
            "name": "chol",
            "kind": "number",
            "least": 180.2,
            "median": 233.4,
            "largest": 260,
            "different": 3,
            "missing": 1,
        },
        {
            "name": "dose",
            "kind": "number",
            "least": None,
            "median": None,
            "largest": None,
            "different": 0,
            "missing": 4,
        },
        {"name": "sex", "kind": "category", "categories": {"male": 3, "female": 1}, "missing": 0},
        {"name": "pain", "kind": "category", "categories": {"some": 2, "none": 1}, "missing": 1},
    ]


def test_values_that_a_client_has_filled_in_are_missing_all_the_same() -> None:
    inputs = SCHEMA.encode(SCHEMA.read(ROWS), fill=[50, 999, 7, 0, 2])
    chol, dose = column_facts(SCHEMA.with_filled(True), inputs.astype(float))[1:3]
    assert (chol["largest"], chol["missing"], dose["different"]) == (260, 1, 0)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"least": -99, "median": 79, "largest": 133, "different": 63}, "-99 to 133, median 79"),
        ({"least": 1, "median": 2, "largest": 5, "different": 4}, "1 to 5, median 2, 4 different"),
        ({"least": 0.5, "median": 1, "largest": 2, "different": 3}, "0.5 to 2, median 1"),
        ({"least": None, "median": None, "largest": None, "different": 0}, "no value"),
        ({"categories": {"m": 7, "f": 3}}, "m 7, f 3"),
        ({"least": 5, "median": 5, "largest": 5, "different": 1}, "always 5"),
        ({"categories": {}}, "no value"),
        (
            {"categories": {f"c{i}": 20 - i for i in range(10)}},
            "c0 20, c1 19, c2 18, c3 17, c4 16, c5 15, c6 14, c7 13, and 2 more",
        ),
    ],
)
def test_a_line_says_what_a_column_holds(facts: dict[str, Any], text: str) -> None:
    assert values_text(facts) == text
