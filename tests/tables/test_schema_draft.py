"""A first schema from tables: its constants are round, and it loads the tables it was made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from feddrm.data import Federation
from feddrm.tables.column_kinds import CategoryColumn, NumberColumn
from feddrm.tables.schema_draft import draft_schema
from feddrm.tables.table_schema import TableSchema
from refusal import refused


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [
        f"{i},{40 + i},{30_000 + 1000 * i},{i % 2},{('red', 'green', '?')[i % 3]},{i % 2},{'ab'[i % 2]}"
        for i in range(21)
    ]
    (tmp_path / "all.csv").write_text("\n".join(["id,age,income,smoker,colour,ill,town", *rows]) + "\n")
    return tmp_path / "all.csv"


def test_columns_kinds_and_constants(table: Path, tmp_path: Path) -> None:
    text = draft_schema([table], ["ill", "town", "id"])
    assert text.decode().startswith("# A draft: complete it")
    path = tmp_path / "schema.yaml"
    path.write_bytes(text)
    schema = TableSchema.load(path)
    assert schema.columns == (
        NumberColumn("age", centre=50, scale=7),  # median 50, quartiles 45 and 55
        NumberColumn("income", centre=40_000, scale=7000),
        CategoryColumn("smoker", categories={"0": "0", "1": "1"}),
        CategoryColumn("colour", missing=True, categories={"green": "green", "red": "red"}),
    )
    fed = Federation.from_csv(table, label="ill", client="town", drop=["id"], schema=path)
    assert fed.shape == (5,)
    assert fed.scale_warning() is None
    assert Federation.from_csv(table, label="ill", client="town", drop=["id", "colour"]).scale_warning() is not None


def test_constant_and_empty_columns_have_constants_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,c\n" + "3,,0.001\n" * 3)
    path = tmp_path / "schema.yaml"
    path.write_bytes(draft_schema([tmp_path / "a.csv"]))
    assert TableSchema.load(path).columns == (
        NumberColumn("a", centre=3),
        NumberColumn("b", missing=True),
        NumberColumn("c"),
    )


def test_spellings_of_one_whole_number_are_one_code(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("smoker\n0\n1\n")
    (tmp_path / "b.csv").write_text("smoker\n0.0\n1.0\n?\n")
    path = tmp_path / "schema.yaml"
    path.write_bytes(draft_schema([tmp_path / "a.csv", tmp_path / "b.csv"]))
    assert TableSchema.load(path).columns == (CategoryColumn("smoker", missing=True, categories={"0": "0", "1": "1"}),)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("inf", "a.csv, row 4: column 'x' is 'inf', not a finite 32-bit number"),
        ("1e300", "a.csv, row 4: column 'x' is '1e300', not a finite 32-bit number"),
        ('"2,5"', "a.csv, row 4: column 'x' is '2,5': write numbers with a decimal point"),
        ("n.k.", "a.csv, row 4: column 'x' is 'n.k.', and most others are numbers: correct it"),
    ],
)
def test_a_cell_that_is_no_number_is_named(tmp_path: Path, cell: str, message: str) -> None:
    cells = ["1", "", cell, *map(str, range(2, 33))]
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *(f"{cell},0" for cell in cells)]) + "\n")
    with refused(message):
        draft_schema([tmp_path / "a.csv"], ["y"])


def test_tables_that_give_no_schema_are_refused(table: Path, tmp_path: Path) -> None:
    with refused("no column 'ages' to leave out; did you mean 'age'?"):
        draft_schema([table], ["ages"])
    (tmp_path / "c.csv").write_text("town,age\nOslo,1\nOslo,2\n?,3\n")
    with refused("column 'town' has the text 'Oslo' wherever it has one: leave it out", "--drop 'town'"):
        draft_schema([tmp_path / "c.csv"])
    (tmp_path / "b.csv").write_text("age\n1\n")
    with refused("b.csv and", "differ in column 'colour'"):
        draft_schema([table, tmp_path / "b.csv"])
    (tmp_path / "c.csv").write_text("name\n" + "".join(f"person {i}\n" for i in range(40)))
    with refused("column 'name' has 40 different texts", "--categories 'name'", "--drop 'name'"):
        draft_schema([tmp_path / "c.csv"])
    with refused("--categories: ", "no input column 'nam'; did you mean 'name'?"):
        draft_schema([tmp_path / "c.csv"], categories=["nam"])


def test_a_few_dates_are_no_categories(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("day,y\n" + "".join(f"2020-01-{10 + i % 3},0\n" for i in range(40)))
    with refused("column 'day' has dates, such as '2020-01-10': write dates as numbers", "--drop 'day'"):
        draft_schema([tmp_path / "a.csv"], ["y"])
    assert "kind: category" in draft_schema([tmp_path / "a.csv"], ["y"], categories=["day"]).decode()


def test_codes_are_drafted_as_categories_also_where_they_are_many_or_numbers(tmp_path: Path) -> None:
    rows = [f"D{i},{i % 3},,{'1,5' if i else 2}" for i in range(40)]
    (tmp_path / "a.csv").write_text(
        "\n".join(["code;ward;empty;dose", *(row.replace(",", ";", 3) for row in rows)]) + "\n"
    )
    path = tmp_path / "schema.yaml"
    path.write_bytes(draft_schema([tmp_path / "a.csv"], categories=["code", "ward", "empty", "dose"]))
    code, ward, empty, dose = TableSchema.load(path).columns
    assert isinstance(code, CategoryColumn)
    assert len(code.codes) == 40
    assert ward == CategoryColumn("ward", categories={"0": "0", "1": "1", "2": "2"})
    assert empty == NumberColumn("empty", missing=True)
    assert dose == CategoryColumn("dose", categories={"1,5": "1,5", "2": "2"})
