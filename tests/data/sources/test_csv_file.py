"""One CSV file as text. The reading of samples from it is tested in test_csv_tables.py."""

from __future__ import annotations

from pathlib import Path

from feddrm.data.sources.csv_file import read_table
from refusal import refused


def test_a_file_is_a_header_rows_and_their_places(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('age,note\n\n50,"two\nlines"\n60,x\n')
    table = read_table(path)
    assert table.header == ("age", "note")
    assert table.rows == (("50", "two\nlines"), ("60", "x"))
    assert [table.place(0), table.place(1)] == [f"{path}, row 3", f"{path}, row 5"]
    assert table.cells(1, [1, 0], numbers=False) == ["x", "60"]
    assert table.cells(1, [0], numbers=True) == [60.0]
    with refused(f"{path} has no column 'ages' for a query; did you mean 'age'?", "give one of age, note"):
        table.column_index("ages", "a query")
