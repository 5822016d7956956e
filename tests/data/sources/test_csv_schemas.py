"""CSV tables whose raw columns a schema describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from feddrm.data import Federation
from feddrm.data.sources.csv_tables import read_rows
from feddrm.data.tables.column_kinds import CategoryColumn, NumberColumn
from feddrm.data.tables.table_schema import TableSchema
from feddrm.io.text import yaml_bytes
from refusal import refused

from_csv = Federation.from_csv

SCHEMA = TableSchema(
    (
        NumberColumn("age", centre=50, scale=10, minimum=0, maximum=120, unit="years"),
        CategoryColumn("sex", categories={"f": "female", "m": "male"}, missing=True),
    )
)
VISITS = ["sex,town,ill,age", "female,oslo,no,60", "m,oslo,yes,40", "?,lima,yes,50", "F,lima,no,70", "m,lima,no,50"]


def one(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "all.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_schema_encodes_raw_columns(tmp_path: Path) -> None:
    table = one(tmp_path, *VISITS)
    path = tmp_path / "schema.yaml"
    path.write_bytes(yaml_bytes(SCHEMA.as_dict()))
    for schema in (SCHEMA, path, str(path)):
        fed = from_csv(table, label="ill", client="town", test=table, schema=schema)
        assert (fed.columns, fed.schema) == (("age", "sex", "sex_missing"), SCHEMA)
        assert fed.clients[0].train.x.tolist() == [[1, -1, 0], [-1, 1, 0]]
        assert fed.clients[1].test.x.tolist() == [[0, 0, 1], [2, -1, 0], [0, 1, 0]]


def test_what_a_schema_does_not_allow_is_refused_with_its_place(tmp_path: Path) -> None:
    def load(*lines: str, **options: Any) -> None:
        from_csv(one(tmp_path, *lines), label="ill", client="town", schema=SCHEMA, **options)

    with refused("all.csv, row 4: column 'age' is 'old': give a number (0..120 years)"):
        load(*VISITS[:3], "m,lima,no,old")
    with refused("all.csv, row 4: column 'age' is 200: outside 0..120 years", "the range in the schema"):
        load(*VISITS[:3], "m,lima,no,200")
    with refused("all.csv has no column 'sex'"):
        load("town,ill,age", "oslo,no,3")
    with refused("all.csv has a column 'id' that the schema lacks: remove it, or drop=['id']"):
        load("id,sex,town,ill,age", "1,m,oslo,no,3")
    with refused(str(tmp_path / "none.yaml"), "feddrm data schema"):
        from_csv(tmp_path / "all.csv", label="ill", client="town", schema=tmp_path / "none.yaml")


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
    with refused("all.csv has no column 'sex'"):
        read_rows(one(tmp_path, "age", "60"), SCHEMA.encoded, 3, SCHEMA)
    with refused("all.csv, row 2: column 'sex' is 'x'", "female"):
        read_rows(one(tmp_path, "sex,age", "x,60"), SCHEMA.encoded, 3, SCHEMA)
