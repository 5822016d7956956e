"""CSV tables whose raw columns a schema describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

from feddrm.data import Federation
from feddrm.io.text import yaml_bytes
from feddrm.tables.column_kinds import CategoryColumn, NumberColumn
from feddrm.tables.table_schema import TableSchema
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


# A schema from sums over all clients


MIXED = ["pid,town,code,dose,colour,ill"] + [
    f"p{i},{'oslo' if i % 3 else 'lima'},{i % 4},{'' if i == 7 else i * i},{('red', 'blue', 'green')[i % 3]},{i % 2}"
    for i in range(60)
]


def test_numbers_are_standardised_by_the_training_rows_of_all_clients(tmp_path: Path) -> None:
    options: dict[str, Any] = {"label": "ill", "client": "town", "drop": "pid", "categories": ["code"]}
    fed = from_csv(one(tmp_path, *MIXED), schema="auto", **options)
    assert fed.schema is not None
    code, dose, colour = fed.schema.columns
    assert isinstance(code, CategoryColumn)
    assert code.codes == ("0", "1", "2", "3")
    assert isinstance(colour, CategoryColumn)
    assert colour.codes == ("blue", "green", "red")
    assert isinstance(dose, NumberColumn)
    assert dose.missing
    x = torch.cat([client.train.x for client in fed.clients]).double()
    place = fed.schema.encoded.index("dose")
    known = x[x[:, fed.schema.encoded.index("dose_missing")] == 0, place]
    assert abs(known.mean()) < 1e-5
    assert known.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    again = from_csv(tmp_path / "all.csv", schema=fed.schema, **{k: v for k, v in options.items() if k != "categories"})
    assert again.digest() == fed.digest()


def test_given_test_rows_change_no_scale_but_may_bring_categories(tmp_path: Path) -> None:
    table, other = one(tmp_path, *MIXED), tmp_path / "later.csv"
    other.write_text("\n".join([MIXED[0], "q1,oslo,1,1e6,violet,0", "q2,lima,2,1e6,red,1"]) + "\n")
    schemas = [
        from_csv(table, label="ill", client="town", drop="pid", schema="auto", test=test).schema
        for test in (table, other)
    ]
    dose, later = (next(c for c in schema.columns if c.name == "dose") for schema in schemas if schema)
    assert dose == later
    assert [("colour_violet" in schema.encoded) for schema in schemas if schema] == [False, True]


def test_columns_that_no_sums_describe_are_refused(tmp_path: Path) -> None:
    with refused("column 'pid' has 60 different texts", "drop=['pid']"):
        from_csv(one(tmp_path, *MIXED), label="ill", client="town", schema="auto")
    with refused("categories: there is no column 'cod'; did you mean 'code'?"):
        from_csv(one(tmp_path, *MIXED), label="ill", client="town", drop="pid", schema="auto", categories=["cod"])
    single = one(tmp_path, "x,town,ill", "1,oslo,no", "2,oslo,yes", "1,lima,no")
    with refused(f"{single.stem}: client 'lima' has too few samples (1)"):
        from_csv(single, label="ill", client="town", schema="auto")
    with refused("all.csv, row 62: column 'dose' is '1e200', not a finite 32-bit number: correct it"):
        from_csv(one(tmp_path, *MIXED, "p,oslo,1,1e200,red,0"), label="ill", client="town", drop="pid", schema="auto")
    with refused("all: client 'rome' has too few samples (1)"):
        from_csv(one(tmp_path, *MIXED, "p,rome,1,1,red,0"), label="ill", client="town", drop="pid", schema="auto")


def test_a_column_named_in_categories_may_have_many(tmp_path: Path) -> None:
    """Diagnoses, states, branches: a person says that they are codes. Without a word they may be names of patients."""
    options: dict[str, Any] = {"label": "ill", "client": "town", "schema": "auto"}
    with refused("column 'pid' has 60 different texts", "name it in categories if these are codes"):
        from_csv(one(tmp_path, *MIXED), **options)
    fed = from_csv(one(tmp_path, *MIXED), **options, categories=["pid"])
    assert fed.schema is not None
    assert fed.columns is not None
    assert sum(name.startswith("pid_") for name in fed.columns) == 60
    for day in ("2026-01-{:02}", "{:02}.01.2026", "01/{:02}/2026 08:30"):
        rows = [f"{'ab'[i % 2]},{day.format(i)},{i % 3}" for i in range(1, 32)]
        with refused(f"column 'day' has dates, such as '{day.format(1)}': write dates as numbers"):
            from_csv(one(tmp_path, "town,day,ill", *rows), **options)


def test_one_column_of_categories_by_its_bare_name(tmp_path: Path) -> None:
    """It was read letter by letter, and then columns c, o, d and e were meant."""
    options: dict[str, Any] = {"label": "ill", "client": "town", "drop": "pid", "schema": "auto"}
    one_name, several = (from_csv(one(tmp_path, *MIXED), **options, categories=c) for c in ("code", ["code"]))
    assert one_name.digest() == several.digest()
    assert one_name.settings["categories"] == ["code"]


def test_categories_are_not_passed_over_where_no_schema_is_made(tmp_path: Path) -> None:
    options: dict[str, Any] = {"label": "ill", "client": "town", "drop": ["pid", "dose", "colour"]}
    with refused("all: categories=['code'] need schema='auto': give schema='auto', too"):
        from_csv(one(tmp_path, *MIXED), **options, categories=["code"])
    with refused("categories=['sex'] need schema='auto': describe them in the schema"):
        from_csv(one(tmp_path, *VISITS), label="ill", client="town", schema=SCHEMA, categories="sex")


# Data frames


def test_a_data_frame_stands_for_a_file(tmp_path: Path) -> None:
    path = one(tmp_path, *MIXED)
    frame = pandas.read_csv(path)
    options: dict[str, Any] = {"label": "ill", "drop": "pid", "schema": "auto", "seed": 3}
    file = from_csv(path, client="town", **options)
    whole = from_csv(frame, client="town", **options)
    assert (whole.name, whole.source) == ("own", "data frame")
    assert [c.train.x.tolist() for c in whole.clients] == [c.train.x.tolist() for c in file.clients]
    towns = {town: part.drop(columns="town") for town, part in frame.groupby("town", sort=False)}
    parts = from_csv(towns, **options)
    assert [c.train.x.tolist() for c in parts.clients] == [c.train.x.tolist() for c in file.clients]


def test_a_wrong_cell_of_a_data_frame_is_named_by_its_row(tmp_path: Path) -> None:
    frame = pandas.read_csv(one(tmp_path, *MIXED)).drop(columns=["pid", "colour"])
    with refused("data frame, row 7: column 'dose' has no value"):
        from_csv(frame, label="ill", client="town")
    with refused("data frame has no column 'town '"):
        from_csv(frame, label="ill", client="town ")
