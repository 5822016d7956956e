"""Tests of reading samples from CSV files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feddrm.drm.sample_files import read_long_table, read_sample, read_samples
from refusal import refused


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_the_first_row_decides_whether_there_is_a_header(tmp_path: Path) -> None:
    columns, values = read_sample(write(tmp_path, "named.csv", "\ufeffage,weight\r\n1,2\r\n\r\n 3 ,4e1\r\n"))
    assert columns == ("age", "weight")
    assert values.tolist() == [[1, 2], [3, 40]]
    columns, values = read_sample(write(tmp_path, "bare.csv", "1,1\n2,-0.5\n"))
    assert columns is None
    assert values.tolist() == [[1, 1], [2, -0.5]]
    samples, columns = read_samples([tmp_path / "bare.csv", tmp_path / "named.csv"])
    assert list(samples) == ["bare", "named"]
    assert columns == ("age", "weight")


def test_all_64_bits_are_kept(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=5)
    path = write(tmp_path, "x.csv", "".join(f"{v!r}\n" for v in x.tolist()))
    assert (read_sample(path)[1][:, 0] == x).all()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has 0 rows of numbers: give at least 2"),
        ("x\n1\n", "has 1 rows of numbers"),
        ("x\n1\noops\n3\n", "line 3, column x: 'oops' is not a finite number: correct it"),
        ("1\n2\n\nnan\n", "line 4, column 1: 'nan'"),
        ("1,2\n3,\n", "line 2, column 2: ''"),
        ("1,inf\n1,2\n", "line 1, column 2: 'inf'"),
        ("1_000\n2\n3_0\n", "line 3, column 1_000: '3_0'"),
        ("a,b\n1,2\n3\n", "line 3: 1 cells where 2 are expected: complete the row"),
        ("x,1\n2,3\n", "line 1, column 1: 'x'"),
        ('1\n"2\n', "not valid CSV"),
        (b"1\n2\n\xff\n", "not UTF-8 text"),
    ],
)
def test_bad_files_are_refused_in_one_line(content: str | bytes, says: str, tmp_path: Path) -> None:
    path = write(tmp_path, "bad.csv", content)
    with refused(str(path), says):
        read_sample(path)


def test_files_that_do_not_fit_together(tmp_path: Path) -> None:
    one = write(tmp_path, "one.csv", "x\n1\n2\n")
    two = write(tmp_path, "two.csv", "1,2\n3,4\n")
    other = write(tmp_path, "other.csv", "z\n1\n2\n")
    with refused("two.csv has 2 columns", "one.csv has 1", "give all the same columns"):
        read_samples([one, two])
    with refused("other.csv has columns z", "one.csv has x"):
        read_samples([one, other])
    with refused("another file called 'one': rename one"):
        read_samples([one, one])
    with refused("nowhere.csv does not exist"):
        read_samples([tmp_path / "nowhere.csv"])
    with refused("cannot be read"):
        read_sample(tmp_path)


def test_a_long_table_has_one_population_per_group(tmp_path: Path) -> None:
    path = write(tmp_path, "long.csv", "id,site,age,dose\n1,oslo,30,0.5\n2,lima,41,1.5\n3,oslo,52,2.5\n")
    samples, columns = read_long_table(path, "site", ["dose"])
    assert columns == ("dose",)
    assert {name: x[:, 0].tolist() for name, x in samples.items()} == {"oslo": [0.5, 2.5], "lima": [1.5]}
    samples, columns = read_long_table(path, "site")
    assert columns == ("id", "age", "dose")
    assert samples["lima"].tolist() == [[2, 41, 1.5]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty: give a header and rows"),
        ("place,x\na,1\n", "has no column 'site' (there are: place, x)"),
        ("site,site,x\na,b,1\n", "has 2 columns 'site'"),
        ("site\na\n", "has no column but 'site'"),
        ("site,x\na,1\nb,two\n", "line 3, column x: 'two' is not a finite number: correct it"),
        ("site,x\na,1\n,2\n", "line 3, column site: the group is missing"),
        ("site,x\na,1\nb\n", "line 3: 1 cells where 2 are expected"),
    ],
)
def test_bad_long_tables_are_refused_in_one_line(content: str, says: str, tmp_path: Path) -> None:
    path = write(tmp_path, "long.csv", content)
    with refused(str(path), says):
        read_long_table(path, "site")
