"""The table schema: raw rows become network inputs, and errors name the field."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from documentation import blocks
from feddrm.errors import FieldProblem, TableError
from feddrm.tables.column_kinds import CategoryColumn, NumberColumn, Usual
from feddrm.tables.table_schema import TableSchema
from refusal import refused

SCHEMA = TableSchema(
    (
        NumberColumn("age", "Age", unit="years", centre=50, scale=10, minimum=0, maximum=120),
        CategoryColumn("cp", categories={"1": "typical", "2": "atypical", "3": "none"}, missing=True),
        NumberColumn("dose", missing=True),
    )
)
TEXT = """\
columns:
- {name: age, kind: number, title: Age, unit: years, centre: 50, scale: 10, minimum: 0, maximum: 120}
- name: cp
  kind: category
  missing: yes
  categories: {1: typical, 2: atypical, 3: none}
- {name: dose, kind: number, missing: true, maximum: null}
"""


def test_inputs_are_columns_then_indicators() -> None:
    assert SCHEMA.names == ("age", "cp", "dose")
    assert SCHEMA.encoded == ("age", "cp_1", "cp_2", "cp_3", "dose", "cp_missing", "dose_missing")
    rows = [{"dose": "2", "age": 60, "cp": "atypical"}, {"age": "50", "cp": None, "dose": "unknown"}]
    inputs = SCHEMA.encode_named(rows)
    assert inputs.dtype == np.float32
    assert inputs.tolist() == [[1, 0, 1, 0, 2, 0, 0], [0, 0, 0, 0, 0, 1, 1]]
    assert SCHEMA.problems(inputs) == []


def test_wrong_cells_are_named_row_by_row() -> None:
    with pytest.raises(TableError) as caught:
        SCHEMA.read([["50", "1", "2"], ["50", "7", "x"], ["old", "1", "2"]])
    assert [(found.row, found.column) for found in caught.value.problems] == [(1, "cp"), (1, "dose"), (2, "age")]
    assert SCHEMA.read([]).shape == (0, 3)
    with pytest.raises(ValueError, match="zip"):
        SCHEMA.read([["50", "1"]])


def test_missing_values_can_be_filled_and_stay_marked() -> None:
    values = SCHEMA.read([["50", "", ""]])
    assert SCHEMA.encode(values, [np.nan, 2, np.nan]).tolist() == [[0, 0, 0, 1, 0, 1, 1]]


def test_inputs_are_decoded_to_what_was_given() -> None:
    rows = [{"dose": "2", "age": 60, "cp": "atypical"}, {"age": "50.25", "cp": None, "dose": "unknown"}]
    inputs = SCHEMA.encode_named(rows)
    assert SCHEMA.decode(inputs) == [[60, 50.25], ["atypical", None], [2, None]]
    filled = SCHEMA.encode(SCHEMA.read([["50", "", ""]]), [np.nan, 2, 7.0])
    assert SCHEMA.decode(filled) == [[50], [None], [None]], "what a client has filled in was not measured"
    assert SCHEMA.decode([[0, 1, 1, 0, 0, 0, 0]])[1] == [None], "two categories at once are none"
    binary = TableSchema((CategoryColumn("sex", categories={"0": "female", "1": "male"}),))
    assert binary.decode([[-1], [1], [0]]) == [["female", "male", None]]


@pytest.mark.parametrize("centre", [1.42857, 240, 1e6])
def test_a_zero_is_decoded_to_zero_though_its_input_is_rounded(centre: float) -> None:
    one = TableSchema((NumberColumn("ward", centre=centre, scale=1.11575),))
    assert one.decode(one.encode([[0.0]])) == [[0]]


def test_small_numbers_around_zero_are_no_zeros() -> None:
    one = TableSchema((NumberColumn("dose", scale=2),))
    assert one.decode(one.encode([[3e-9], [-4e-8]])) == [[3e-9, -4e-8]]


def test_places_are_those_of_the_inputs() -> None:
    found = {
        c.name: (SCHEMA.encoded[own], None if mark is None else SCHEMA.encoded[mark]) for c, own, mark in SCHEMA.places
    }
    assert found == {
        "age": (("age",), None),
        "cp": (("cp_1", "cp_2", "cp_3"), "cp_missing"),
        "dose": (("dose",), "dose_missing"),
    }


def test_a_file_and_a_manifest_hold_the_same_schema(tmp_path: Path) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text(TEXT)
    read = TableSchema.load(path)
    assert read == SCHEMA == TableSchema.of(SCHEMA.as_dict())
    assert read.digest == SCHEMA.digest != SCHEMA.with_filled(True).digest
    assert TableSchema.of(SCHEMA.with_filled(True).as_dict()).filled


def test_labels_that_yaml_would_turn_into_booleans_stay_text(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("columns: [{name: a, kind: category, categories: {0: no, 1: yes}}]")
    (column,) = TableSchema.load(tmp_path / "s.yaml").columns
    assert isinstance(column, CategoryColumn)
    assert dict(column.categories) == {"0": "no", "1": "yes"}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("columns: 3", ["give 'columns', a list"]),
        ("columns: []", ["no columns"]),
        ("colums: []", ["no setting 'colums'"]),
        ("columns: [{name: a, kind: nubmer}]", ["column 'a'", "unknown kind 'nubmer'; did you mean 'number'?"]),
        ("columns: [{name: a}]", ["column 'a'", "known: number, category"]),
        ("columns: [{kind: number}]", ["column '1'", "no name"]),
        ("columns: [{name: a, kind: number, unti: m}]", ["column 'a'", "no setting 'unti'; did you mean 'unit'?"]),
        ("columns: [{name: a, kind: number, scale: big}]", ["column 'a'", "scale='big': give a number"]),
        ("columns: [{name: a, kind: number, scale: -1}]", ["column 'a'", "scale above zero"]),
        ("columns: [{name: a, kind: category, categories: 3}]", ["column 'a'", "categories='3'"]),
        ("columns: [{name: a, kind: category, categories: [b, c]}]", ["column 'a'", "'key: value'"]),
        ("columns: [{name: a, kind: number}, {name: a, kind: number}]", ["two columns are called 'a'"]),
        (
            "columns: [{name: a, kind: number, missing: yes}, {name: a_missing, kind: number}]",
            ["two network inputs are called 'a_missing'"],
        ),
        ("columns: [", ["is broken", "not YAML", "feddrm data schema"]),
    ],
)
def test_a_schema_that_cannot_be_is_refused(tmp_path: Path, text: str, parts: list[str]) -> None:
    (tmp_path / "schema.yaml").write_text(text)
    with refused(str(tmp_path / "schema.yaml"), *parts):
        TableSchema.load(tmp_path / "schema.yaml")


def test_an_error_names_every_field() -> None:
    rows = [{"age": "x", "cp": 9, "dose": 1}, {"age": 1, "cp": 1, "dos": 1}]
    with pytest.raises(TableError) as caught:
        SCHEMA.encode_named(rows[:1])
    assert caught.value.problems == (
        FieldProblem(0, "age", "x", "give a number (0..120 years)"),
        FieldProblem(0, "cp", 9, "give one of 1 (typical), 2 (atypical), 3 (none), or unknown"),
    )
    assert str(caught.value) == "row 0: column 'age' is 'x': give a number (0..120 years) (and 1 more)"
    with refused("row 1", "column 'dose'", "is not there") as other:
        SCHEMA.encode_named(rows)
    problems = other.value.problems  # type: ignore[attr-defined]
    assert "no such column; did you mean 'dose'?: there are age, cp, dose" in problems[1].problem


def test_similar_names_are_looked_for_only_where_they_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look for each of many unknown columns takes a gateway half a minute."""
    asked: list[str] = []
    monkeypatch.setattr("feddrm.tables.table_schema.nearest", lambda name, _: asked.append(name) or "")
    with refused("and 1002 more"):
        SCHEMA.encode_named([dict.fromkeys(map(str, range(1000)), 1)])
    assert len(asked) < 20


def test_impossible_inputs_are_named_by_raw_column() -> None:
    good = SCHEMA.encode_named([{"age": 60, "cp": 1, "dose": 1}])[0].tolist()
    old = [15.0, *good[1:]]
    twice = [good[0], 1, 1, 0, *good[4:]]
    half = [*good[:5], 0, 0.5]
    found = SCHEMA.problems([good, old, twice, half])
    assert [(p.row, p.column, p.value, p.problem) for p in found] == [
        (1, "age", 200, "outside 0..120 years"),
        (2, "cp", "typical and atypical", "several categories at once"),
        (3, "dose_missing", 0.5, "the mark of a missing value is 0 or 1"),
    ]


def test_the_usual_range_is_for_columns_without_one() -> None:
    usual = [Usual(0, 1)] * len(SCHEMA.encoded)
    far = SCHEMA.encode_named([{"age": 120, "cp": 1, "dose": 50}, {"age": 20, "cp": 1, "dose": 8}])
    assert [(p.row, p.column, p.value) for p in SCHEMA.problems(far, usual)] == [(0, "dose", 50)]


def test_examples_are_made_up_and_fit() -> None:
    examples = SCHEMA.examples()
    assert [row["age"] for row in examples] == [50, 60, 45]
    assert (examples[2]["cp"], examples[2]["dose"]) == (None, None)
    assert SCHEMA.problems(SCHEMA.encode_named(examples)) == []


def test_a_problem_as_json_is_short_and_plain() -> None:
    assert FieldProblem(1, "a", "x" * 100, "bad").as_dict()["value"] == "x" * 64
    assert FieldProblem(1, "a", float("nan"), "bad").as_dict()["value"] == "nan"
    assert FieldProblem(1, "a", None, "bad").as_dict() == {"row": 1, "column": "a", "value": None, "problem": "bad"}


def test_the_documented_schema_can_be_read(tmp_path: Path) -> None:
    ((_, block),) = blocks("docs/tables.md", "yaml")
    (tmp_path / "schema.yaml").write_text(block)
    assert TableSchema.load(tmp_path / "schema.yaml").names == ("age", "chol", "smoker")
