"""One CSV file as text. The reading of samples from it is tested in test_csv_tables.py."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pandas
import pytest

from feddrm.tables.csv_file import frame_table, read_table
from refusal import refused


def test_a_file_is_a_header_rows_and_their_places(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('age,note\n\n50,"two\nlines"\n60,x\n')
    table = read_table(path)
    assert table.header == ("age", "note")
    assert table.rows == (("50", "two\nlines"), ("60", "x"))
    assert [table.place(0), table.place(1)] == [f"{path}, row 3", f"{path}, row 5"]
    assert table.texts([1, 0]) == [["two\nlines", "50"], ["x", "60"]]
    assert table.numbers([0]).tolist() == [[50.0], [60.0]]
    with refused(f"{path} has no column 'ages' for a query; did you mean 'age'?", "give one of age, note"):
        table.column_index("ages", "a query")


def test_the_first_cell_without_a_number_is_named_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("age,dose\n50,1\n60,?\nold,2\n")
    with refused(f"{path}, row 3: column 'dose' has no value ('?'): fill it in, take schema=auto", "or drop=['dose']"):
        read_table(path).numbers([0, 1])


class Columns:
    """What pyarrow returns for a Parquet file, as far as it is used."""

    def __init__(self, **columns: list[object]) -> None:
        self.columns = columns

    def to_pydict(self) -> dict[str, list[object]]:
        return self.columns


@pytest.fixture
def fake_pyarrow(monkeypatch):
    """pyarrow's two names that are used; the test below takes the real package where it is installed."""

    class ArrowException(Exception):
        pass

    def install(read):
        arrow, parquet = types.ModuleType("pyarrow"), types.ModuleType("pyarrow.parquet")
        arrow.ArrowException, arrow.parquet, parquet.read_table = ArrowException, parquet, read
        monkeypatch.setitem(sys.modules, "pyarrow", arrow)
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
        return arrow

    return install


def test_parquet_becomes_the_same_cells_as_csv(fake_pyarrow, tmp_path):
    fake_pyarrow(lambda path: Columns(age=[1.5, 2.0], town=["a ", None], ill=[0, 1]))
    table = read_table(tmp_path / "visits.parquet")
    assert table.header == ("age", "town", "ill")
    assert table.rows == (("1.5", "a", "0"), ("2.0", "", "1"))
    assert table.place(1).endswith("visits.parquet, row 3")


def test_a_broken_parquet_file_is_refused(fake_pyarrow, tmp_path):
    def fail(path):
        raise arrow.ArrowException("not a\nParquet file")

    arrow = fake_pyarrow(fail)
    with refused("cannot read", "visits.parquet (not a Parquet file)", "readable .parquet file"):
        read_table(tmp_path / "visits.parquet")


def test_without_pyarrow_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with refused("needs pyarrow", "pip install 'feddrm[parquet]'"):
        read_table(tmp_path / "visits.parquet")


def test_real_parquet_files(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="pip install 'feddrm[parquet]' to run this")
    from pyarrow.parquet import write_table

    write_table(arrow.table({"x": [1.5, None], "ill": ["no", "yes"]}), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").rows == (("1.5", "no"), ("", "yes"))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with refused("cannot read", "broken.parquet"):
        read_table(tmp_path / "broken.parquet")


def test_a_frame_becomes_the_cells_that_its_rows_would_be():
    frame = pandas.DataFrame(
        {
            "float": [0.1, None, -0.0], "small": np.array([0.1, 2, np.nan], dtype=np.float32), "whole": [1, 2, 2**60],
            "yes": [True, False, True], "text": [" a ", None, "é"],
            "mixed": pandas.Series([1, "b", None], dtype=object),
            "kind": pandas.Categorical(["x", None, "y"]), "gaps": pandas.array([1, None, 3], dtype="Int64"),
            "day": pandas.to_datetime(["2020-01-01", None, "2021-02-03"]),
        }
    )  # fmt: skip
    rows = frame.astype(object).where(frame.notna(), "").to_numpy().tolist()
    table = frame_table("data frame", frame)
    assert table.rows == tuple(tuple(str(cell).strip() for cell in row) for row in rows)
    assert (table.header, table.lines) == (tuple(frame.columns), (0, 1, 2))
