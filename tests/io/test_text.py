"""Text files: what is written is read back; a broken file is one line that names the path and the remedy."""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feddrm.io.text import (
    as_in_yaml,
    json_bytes,
    json_line,
    parse_float,
    parse_whole,
    read_bytes,
    read_csv,
    read_json,
    read_json_lines,
    read_text,
    read_yaml,
    read_yaml_text,
    yaml_bytes,
)
from letters import LETTERS
from refusal import refused

REMEDY = "restore the file"
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def mappings_of(words: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    values = st.recursive(
        st.none() | st.booleans() | numbers | words,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
        max_leaves=8,
    )
    return st.dictionaries(words, values, max_size=4)


mappings = mappings_of(st.text(LETTERS, max_size=8))
# PyYAML folds the line breaks U+0085, U+2028 and U+2029; no name or setting may hold them.
printable = mappings_of(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=8))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


# Every reader


@pytest.mark.parametrize("read", [read_bytes, read_text, read_json, read_yaml, read_json_lines])
def test_a_missing_file_and_a_folder_are_named_with_the_remedy(read: Callable[[Path, str], Any], path: Path) -> None:
    with refused(f"cannot read {path} (No such file or directory): {REMEDY}"):
        read(path, REMEDY)
    path.mkdir()
    with refused(f"cannot read {path} (Is a directory): {REMEDY}"):
        read(path, REMEDY)


@pytest.mark.parametrize("read", [read_text, read_json, read_yaml])
def test_a_file_in_another_encoding_is_refused(read: Callable[[Path, str], Any], path: Path) -> None:
    path.write_bytes("key: müde".encode("latin-1"))
    with refused(f"{path} is broken (not UTF-8 text): {REMEDY}"):
        read(path, REMEDY)


# JSON and YAML


@same_folder
@given(mapping=mappings)
def test_json_is_read_back(mapping: dict[str, Any], path: Path) -> None:
    path.write_bytes(json_bytes(mapping))
    assert read_json(path, REMEDY) == mapping
    assert path.read_bytes().endswith(b"}\n")


@same_folder
@given(mapping=printable)
def test_yaml_is_read_back_in_order(mapping: dict[str, Any], path: Path) -> None:
    path.write_bytes(yaml_bytes(mapping))
    assert list(read_yaml(path, REMEDY).items()) == list(mapping.items())


def test_letters_of_other_languages_stay_readable() -> None:
    assert "Malmö".encode() in json_bytes({"name": "Malmö"})
    assert "Malmö".encode() in json_line({"name": "Malmö"})
    assert "Malmö".encode() in yaml_bytes({"name": "Malmö"})


@pytest.mark.parametrize(
    ("read", "content", "why"),
    [
        (read_json, '{\n"a": 1,\n"b": }', "line 3 is not JSON"),
        (read_json, "", "line 1 is not JSON"),
        (read_json, "[" * 100_000, "not JSON"),
        (read_json, "[1]", "expected an object, found list"),
        (read_yaml, "a: 1\nb: [2", "line 2 is not YAML"),
        (read_yaml, "a: \x07", "not YAML"),
        (read_yaml, "", "expected a mapping, found NoneType"),
        (read_yaml, "!!python/object/apply:os.getcwd []", "line 1 is not YAML"),
    ],
)
def test_files_that_are_no_mapping_are_refused(
    read: Callable[[Path, str], Any], content: str, why: str, path: Path
) -> None:
    path.write_text(content)
    with refused(f"{path} is broken (", f"{why}): {REMEDY}"):
        read(path, REMEDY)


# JSON lines


@same_folder
@given(entries=st.lists(mappings, max_size=5))
def test_json_lines_are_read_back(entries: list[dict[str, Any]], path: Path) -> None:
    path.write_bytes(b"".join(json_line(entry) for entry in entries))
    assert read_json_lines(path, REMEDY) == entries


@same_folder
@given(entries=st.lists(mappings.filter(bool), min_size=1, max_size=4), data=st.data())
def test_a_file_cut_off_anywhere_gives_its_whole_lines(
    entries: list[dict[str, Any]], data: st.DataObject, path: Path
) -> None:
    """Even in the middle of a character."""
    content = b"".join(json_line(entry) for entry in entries)
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n")
    complete = len(b"".join(json_line(entry) for entry in entries[: whole + 1])) - 1
    assert read_json_lines(path, REMEDY) == entries[: whole + (cut == complete and whole < len(entries))]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"a": 1}\n\n{"b": \n{"c": 3}\n', "line 3 is not JSON"),
        (b'{"a": "\xff"}\n{"b": 2}\n', "line 1 is not JSON"),
        (b'{"a": 1}\n[2]\n{"c": 3}\n', "line 2 is no object"),
        (b'{"a": 1}\n2\n', "line 2 is no object"),
    ],
)
def test_a_broken_line_is_named(content: bytes, why: str, path: Path) -> None:
    path.write_bytes(content)
    with refused(f"{path} is broken ({why}): {REMEDY}"):
        read_json_lines(path, REMEDY)


# CSV


cells = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from(',"\n'), max_size=6).map(str.strip)


@same_folder
@given(rows=st.lists(st.lists(cells, min_size=1, max_size=4), max_size=5))
def test_csv_is_read_back_with_the_first_line_of_every_row(rows: list[list[str]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerows(rows)
    expected, line = [], 1
    for row in rows:
        if any(row):
            expected.append((line, row))
        line += 1 + sum(cell.count("\n") for cell in row)
    assert read_csv(path, REMEDY) == expected


def test_a_byte_order_mark_blank_lines_and_spaces_are_ignored(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbfx , y\r\n\r\n 1,2 \r\n,,\r\n3,\r\n")
    assert read_csv(path, REMEDY) == [(1, ["x", "y"]), (3, ["1", "2"]), (5, ["3", ""])]


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_cells_may_be_separated_otherwise_where_the_first_line_has_no_comma(path: Path, separator: str) -> None:
    path.write_text(f'\n"age, in years"{separator}note\n50{separator}a,b\n', encoding="utf-8-sig")
    assert read_csv(path, REMEDY) == [(2, ["age, in years", "note"]), (3, ["50", "a,b"])]
    path.write_text(f"weight, kg{separator}age{separator}note\n70{separator}50{separator}a\n")
    assert read_csv(path, REMEDY) == [(1, ["weight, kg", "age", "note"]), (2, ["70", "50", "a"])]
    path.write_text(f"sep={separator}\nx{separator}y\n1,5{separator}2\n")
    assert read_csv(path, REMEDY) == [(2, ["x", "y"]), (3, ["1,5", "2"])]
    path.write_text(f'x,"y{separator}z"\n1,2\n')
    assert read_csv(path, REMEDY) == [(1, ["x", f"y{separator}z"]), (2, ["1", "2"])]


def test_csv_that_cannot_be_read_is_refused(path: Path) -> None:
    with refused(f"{path} does not exist: {REMEDY}"):
        read_csv(path, REMEDY)
    path.write_text('x,y\n1,2\n"open,\nand never closed\n')
    with refused(f"{path}, line 3: not valid CSV", "correct it there"):
        read_csv(path, REMEDY)
    path.write_bytes(b"x,y\n" + b"1,2\n" * 40_000 + b"1,\xff\n")  # more than is read at once
    with refused(f"{path} is not UTF-8 text (line 40002)", "save it as CSV in UTF-8"):
        read_csv(path, REMEDY)
    path.write_bytes(gzip.compress(b"x,y\n1,2\n"))
    with refused(f"{path} is compressed: unpack it"):
        read_csv(path, REMEDY)
    path.unlink()
    path.mkdir()
    with refused(f"{path} cannot be read (Is a directory): {REMEDY}"):
        read_csv(path, REMEDY)


@pytest.mark.parametrize(
    ("text", "number"), [("1", 1.0), ("-1e-2", -0.01), (".5", 0.5), ("inf", math.inf), ("1_000", None), ("", None)]
)
def test_a_number_in_a_cell(text: str, number: float | None) -> None:
    assert parse_float(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("1.0", 1), ("-01.", -1), ("12345678901234567", 12345678901234567), ("1E5", None), ("9" * 5000, None)],
)
def test_a_whole_number_in_a_cell(text: str, number: int | None) -> None:
    assert parse_whole(text) == number


def test_json_line_is_one_line() -> None:
    assert json_line({"a": "x\ny\u2028"}).count(b"\n") == 1
    assert json.loads(json_line({"a": "x\ny\u2028"})) == {"a": "x\ny\u2028"}


def test_yaml_as_text_keeps_every_value_as_written(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("1: no\nb: [yes, 2.50, null]\n")
    assert read_yaml_text(tmp_path / "a.yaml", "mend it") == {"1": "no", "b": ["yes", "2.50", "null"]}
    (tmp_path / "a.yaml").write_text("a: [")
    with refused("a.yaml is broken", "not YAML", "mend it"):
        read_yaml_text(tmp_path / "a.yaml", "mend it")


def test_a_path_that_is_no_utf8_comes_back_from_json() -> None:
    path = os.fsdecode(b"dir\xff/malm\xc3\xb6")
    for content in (json_bytes({"path": path}), json_line({"path": path})):
        assert b"malm\xc3\xb6" in content
        assert json.loads(content) == {"path": path}


def test_settings_are_shown_as_a_yaml_file_has_them() -> None:
    text = "size=(8, 9), drop=['a b', '5'] (subject='p') or schema=auto: x=3, aseed=1, seed=True"
    shown = "'size: [8, 9]', drop: [a b, '5'] (subject: p) or 'schema: auto': x=3, aseed=1, 'seed: true'"
    assert as_in_yaml(text, {"size", "drop", "subject", "schema", "seed"}) == shown
