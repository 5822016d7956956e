"""Rows of tables that are queries, with a schema and without one."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pandas
import pytest

from feddrm.tables.column_kinds import CategoryColumn, NumberColumn
from feddrm.tables.query_rows import frame_rows, read_rows
from feddrm.tables.table_schema import TableSchema
from refusal import refused

SCHEMA = TableSchema(
    (
        NumberColumn("age", centre=50, scale=10, minimum=0, maximum=120, unit="years"),
        CategoryColumn("sex", categories={"f": "female", "m": "male"}, missing=True),
    )
)


def one(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "all.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_queries_in_a_table(tmp_path: Path) -> None:
    """Columns by name, others passed over; a query's columns cannot be dropped, so that is no remedy."""
    path = one(tmp_path, "id,b,a", "x,1,2", "y,3,4")
    found, places = read_rows(path, ("a", "b"), 2)
    assert found.tolist() == [[2, 1], [4, 3]]
    assert places == [f"{path}, row 2", f"{path}, row 3"]
    with refused(f"{path} has 3 columns, 2 are wanted"):
        read_rows(path, None, 2)
    with refused(f"{path} has no column 'c' for a query", "add it, as in the training data"):
        read_rows(path, ("a", "c"), 2)
    for cell, remedy in (("?", "fill it in"), ("low", "encode it as numbers"), ("1e99", "correct it")):
        with refused(f"{path}, row 2: column 'b'", remedy) as caught:
            read_rows(one(tmp_path, "a,b", f"1,{cell}"), ("a", "b"), 2)
        assert str(caught.value).endswith(remedy)


def test_queries_by_raw_or_by_encoded_columns(tmp_path: Path) -> None:
    inputs, places = read_rows(one(tmp_path, "sex,age", "male,60", ",50"), SCHEMA.encoded, 3, SCHEMA)
    assert inputs.tolist() == [[1, 1, 0], [0, 0, 1]]
    assert [place.rpartition(", ")[2] for place in places] == ["row 2", "row 3"]
    encoded = one(tmp_path, "age,sex,sex_missing", "1,1,0")
    assert read_rows(encoded, SCHEMA.encoded, 3, SCHEMA)[0].tolist() == [[1, 1, 0]]
    # Where both have the same names, the cells are raw.
    numbers = TableSchema((NumberColumn("age", centre=50, scale=10),))
    assert read_rows(one(tmp_path, "age", "60"), ("age",), 1, numbers)[0].tolist() == [[1]]


def test_an_unknown_column_of_a_query_is_named_unless_it_is_ignored(tmp_path: Path) -> None:
    path = one(tmp_path, "id,sex,age", "7,m,60")
    with refused("all.csv has a column 'id' that the router does not know", "--ignore 'id'"):
        read_rows(path, SCHEMA.encoded, 3, SCHEMA)
    assert read_rows(path, SCHEMA.encoded, 3, SCHEMA, ["id"])[0].tolist() == [[1, 1, 0]]
    several = one(tmp_path, "id,sex,seen by,age", "7,m,Ng,60")
    said = "all.csv has 2 columns that the router does not know, 'id', 'seen by': leave them out, or "
    with refused(f"{said}--ignore 'id' --ignore 'seen by'"):
        read_rows(several, SCHEMA.encoded, 3, SCHEMA)
    with refused("all.csv has no column 'sex' for a query", "add it, as in the training data"):
        read_rows(one(tmp_path, "age", "60"), SCHEMA.encoded, 3, SCHEMA)
    with refused("all.csv, row 2: column 'sex' is 'x'", "female"):
        read_rows(one(tmp_path, "sex,age", "x,60"), SCHEMA.encoded, 3, SCHEMA)


def test_names_of_a_frames_columns_may_be_composed_otherwise() -> None:
    """A Mac writes 'ö' as two characters. The frame that was trained on was refused as a query."""
    schema = TableSchema((NumberColumn("größe", centre=50, scale=10),))
    for form in ("NFC", "NFD"):
        frame = pandas.DataFrame({unicodedata.normalize(form, "größe"): [60.0]})
        assert frame_rows(frame, ("größe",), None).tolist() == [[60]]
        assert frame_rows(frame, ("größe",), schema).tolist() == [[1]]


def test_two_columns_of_one_name_are_refused() -> None:
    """By a schema the last one was taken; without one it was a stack trace."""
    frame = pandas.DataFrame(np.ones((2, 3)), columns=["age", "dose", "age"])
    for schema in (None, TableSchema((NumberColumn("age"), NumberColumn("dose")))):
        with refused("the data frame has two columns 'age': rename or remove one"):
            frame_rows(frame, ("age", "dose"), schema)


def test_a_frame_is_read_by_columns_to_the_same_bits_as_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dictionaries of 50,000 rows took longer than the answers."""
    schema = TableSchema(
        (
            NumberColumn("whole"), NumberColumn("small", missing=True), NumberColumn("tiny", scale=3),
            NumberColumn("mixed", missing=True),
            CategoryColumn("code", categories={"1": "one", "2": "two", "3": "three"}),
            CategoryColumn("gap", categories={"1": "one", "2": "two"}, missing=True),
            CategoryColumn("text", categories={"a": "a", "b": "b"}, missing=True),
            CategoryColumn("yes", categories={"0": "false", "1": "true"}),
        )
    )  # fmt: skip
    frame = pandas.DataFrame(
        {
            "yes": [True, False, True],
            "text": pandas.Categorical(["a", None, "b"]),
            "gap": [1.0, np.nan, 2.0],
            "code": np.array([3, 1, 2], dtype=np.int16),
            "mixed": pandas.Series([np.int64(4), "5.5", None], dtype=object),
            "tiny": np.array([0.1, 1e-30, -0.0], dtype=np.float32),
            "small": [0.1, np.nan, 1 / 3],
            "whole": [2**40 + 1, -5, 0],
        }
    )
    expected = schema.encode_named(frame.to_dict("records"))
    monkeypatch.setattr(pandas.DataFrame, "to_dict", None)
    assert frame_rows(frame, None, schema).tobytes() == expected.tobytes()
    assert frame_rows(frame[:0], None, schema).shape == (0, expected.shape[1])


def test_what_pandas_calls_missing_is_missing() -> None:
    """The gaps of a column of whole numbers are pandas.NA."""
    schema = TableSchema((NumberColumn("age", missing=True), SCHEMA.columns[1]))
    frame = pandas.DataFrame({"age": pandas.array([5, None], dtype="Int64"), "sex": pandas.array([None, "f"])})
    assert frame_rows(frame, None, schema).tolist() == [[5, 0, 0, 1], [0, -1, 1, 0]]


def test_a_frame_must_have_exactly_the_columns_of_the_schema() -> None:
    with refused("the data frame has no column 'sex'; did you mean 'sexe'?: add it"):
        frame_rows(pandas.DataFrame({"age": [60], "sexe": ["f"]}), None, SCHEMA)
    with refused("the data frame has a column 'id' that the router does not know: leave it out"):
        frame_rows(pandas.DataFrame({"age": [60], "sex": ["f"], "id": [1]}), None, SCHEMA)
    with refused("row 1: column 'sex' is 'x': give one of f (female), m (male)"):
        frame_rows(pandas.DataFrame({"age": [60, 61], "sex": ["f", "x"]}), None, SCHEMA)


@pytest.mark.parametrize("cell", ["f", 10**400])
def test_a_cell_of_a_frame_that_is_no_float_is_refused_by_its_column(cell: object) -> None:
    with refused("column 'age' of the data frame has no numbers", "give numbers"):
        frame_rows(pandas.DataFrame({"age": [cell]}), ("age",), None)
