"""A schema from sums: standardisation, categories, gaps, and columns that cannot be told."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddrm.tables.column_kinds import CategoryColumn, NumberColumn
from feddrm.tables.column_sums import ColumnSums, check_levels, merge_sums, schema_from_sums, table_sums
from refusal import refused


def sums(*parts: list[str], category: bool = False) -> ColumnSums:
    return sum((ColumnSums.of(part, [True] * len(part), category) for part in parts), ColumnSums())


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=6), min_size=1, max_size=5))
def test_merged_sums_are_those_of_all_values(parts: list[list[float]]) -> None:
    merged = sums(*([repr(value) for value in part] for part in parts))
    pooled = np.array([value for part in parts for value in part])
    assert merged.count == len(pooled)
    if len(pooled):
        assert merged.mean == pytest.approx(pooled.mean(), rel=1e-9, abs=1e-6)
        assert merged.squares == pytest.approx(pooled.var() * len(pooled), rel=1e-7, abs=1e-3)


def test_a_number_is_standardised_by_mean_and_deviation() -> None:
    column = sums(["1", "2"], ["6", "", "?"]).column("age")
    assert isinstance(column, NumberColumn)
    assert column.missing
    assert column.centre == 3
    assert column.scale == float(f"{np.std([1, 2, 6]):.6g}")


@pytest.mark.parametrize(("mean", "deviation"), [(1.7001234567e9, 100.0), (123456789.0, 1.0), (123456789.0, 0.0)])
def test_numbers_far_from_zero_are_centred_to_a_thousandth_of_their_deviation(mean: float, deviation: float) -> None:
    values = np.random.default_rng(0).normal(mean, deviation, 200)
    column = sums([repr(float(value)) for value in values]).column("time")
    assert isinstance(column, NumberColumn)
    assert abs(values.mean() - column.centre) <= 1e-3 * column.scale
    halves = sums(*([repr(float(value)) for value in part] for part in (values[:70], values[70:])))
    assert halves.column("time") == column


def test_the_schema_does_not_depend_on_how_rows_are_divided() -> None:
    values = np.random.default_rng(1).normal(3.1, 2.7, 900).tolist()
    cells = [repr(value) for value in values]
    whole = schema_from_sums({"x": sums(cells)})
    thirds = schema_from_sums({"x": sums(cells[:1], cells[1:400], cells[400:])})
    assert whole == thirds


def test_cells_that_are_not_counted_leave_mean_and_deviation_alone() -> None:
    seen = ColumnSums.of(["1", "3", "1000", ""], [True, True, False, False], category=False)
    assert (seen.count, seen.mean, seen.squares, seen.missing) == (2, 2.0, 2.0, True)
    levels = ColumnSums.of(["a", "b"], [True, False], category=False)
    assert levels.levels == {"a", "b"}


@pytest.mark.parametrize("cell", ["1e200", "inf", "-inf", "-nan"])
def test_a_number_that_no_input_can_be_is_named(cell: str) -> None:
    with refused(f"row 2: column 'dose' is '{cell}', not a finite 32-bit number: correct it"):
        table_sums(["age", "dose"], [["1", "2"], ["", ""], ["3", cell]], [True, True, False], ())
    with refused(f"row 0 is '{cell}'"):
        sums([cell, "1"])
    assert sums([cell, "low"]).levels == {cell, "low"}
    assert sums([cell, "1"], category=True).levels == {cell, "1"}


def test_the_largest_numbers_can_be_added() -> None:
    most = str(float(np.finfo(np.float32).max))
    sent = [sums([most] * 3), sums([f"-{most}"] * 3), sums([most, f"-{most}"])]
    assert [ColumnSums.load(part.as_dict()) for part in sent] == sent
    assert np.isfinite(sum(sent, ColumnSums()).squares)


def test_texts_and_declared_codes_are_categories_of_all_clients_levels() -> None:
    column = sums(["red", "blue"], ["red", "NA"]).column("colour")
    assert column == CategoryColumn("colour", missing=True, categories={"blue": "blue", "red": "red"})
    codes = sums(["10", "2"], ["3"], category=True).column("code")
    assert isinstance(codes, CategoryColumn)
    assert codes.codes == ("2", "3", "10")


def test_spellings_of_one_whole_number_are_one_code() -> None:
    """A column of codes with a gap at one client is saved as 1.0, 2.0 there."""
    column = sums(["1", "2"], ["1.0", "3.0", ""], ["01", "x"], category=True).column("code")
    assert isinstance(column, CategoryColumn)
    assert column.codes == ("x", "1", "2", "3.0")
    assert [column.value(cell) for cell in ("1", "1.0", "3", "x")] == [1, 1, 3, 0]
    long = ["12345678901234567", "12345678901234568.0"]
    with refused("categories: 1.23457e+16 is two codes"):
        schema_from_sums({"code": sums(long, category=True)})


@pytest.mark.parametrize("cells", [[], ["", "?"], ["4", "4"], ["1e8", "1e8"]])
def test_constant_and_empty_columns_are_only_centred(cells: list[str]) -> None:
    column = sums(cells).column("x")
    assert isinstance(column, NumberColumn)
    assert column.scale == 1


def test_columns_that_cannot_be_told() -> None:
    clients = {"oslo": {"x": sums(["1", "2"])}, "lima": {"x": sums(["low"])}, "pune": {"x": sums(["3"])}}
    with refused("column 'x' has numbers at oslo, pune and text such as 'low' at lima", "the column in categories"):
        merge_sums(["x"], clients)
    with refused("column 'pid' has 40 different texts, such as 'p0'", "drop=['pid']"):
        sums([f"p{i}" for i in range(40)]).column("pid")
    with refused("column 'only' has the text 'same' wherever it has one: drop it", "drop=['only']"):
        sums(["same", "same"]).column("only")


def test_a_few_dates_are_no_categories() -> None:
    """Dates of one month are few enough for a column of categories, and every later day would be refused."""
    for days in (["2020-01-31", "2020-02-01"], ["31.1.2020", "1.2.2020", "1.2.2020"]):
        with refused(f"column 'day' has dates, such as '{min(days)}': write dates as numbers (days since a fixed day)"):
            ColumnSums.of(days, [True] * len(days), False).column("day")
    declared = ColumnSums.of(["2020-01-31", "2020-02-01"], [True] * 2, True).column("day")
    assert declared.kind == "category"
    assert ColumnSums.of(["2020-01-31", "earlier"], [True] * 2, False).column("day").kind == "category"


def test_the_one_text_in_a_column_of_numbers_is_named() -> None:
    """The first text in the order of the alphabet would be a number, and nothing would be wrong with it."""
    with refused("row 3: column 'age' is 'n.k.', and most others are numbers: correct it", "column in categories"):
        table_sums(["age"], [["40"], ["41"], ["42"], ["n.k."], ["n.k."]], [True] * 5, ())
    assert sums(["1", "2", "3", "3+"], category=True).levels == {"1", "2", "3", "3+"}
    assert sums(["1", "2", "3", "4a", "4b"]).levels == {"1", "2", "3", "4a", "4b"}
    with refused("column 'age' has numbers at oslo and text such as 'n.k.' at lima: correct it"):
        merge_sums(["age"], {"oslo": {"age": sums(["1", "2"])}, "lima": {"age": sums(["1", "n.k."])}})


def test_decimal_commas_are_refused_not_taken_for_categories() -> None:
    with refused("row 2: column 'dose' is '1,5': write numbers with a decimal point", "name it in categories"):
        table_sums(["dose"], [["1"], [""], ["1,5"]], [True] * 3, ())
    assert sums(["1", "1,5"], category=True).levels == {"1", "1,5"}
    assert sums(["1", "1,5,7"]).levels == {"1", "1,5,7"}
    assert sums(["Bern, Nord", "1,5"]).levels == {"Bern, Nord", "1,5"}


def test_sums_travel_as_plain_values_to_the_last_bit() -> None:
    rows = [["0.1", "red"], ["0.7", "blue"], ["", "red"]]
    for column in table_sums(["x", "colour"], rows, [True] * 3, ()).values():
        assert ColumnSums.load(json.loads(json.dumps(column.as_dict()))) == column


SENT: dict[str, Any] = {"count": 3, "mean": 1.5, "squares": 2.0, "levels": [], "missing": False}


@pytest.mark.parametrize(
    "change",
    [
        {"count": -1}, {"count": 2.5}, {"count": True}, {"mean": float("nan")}, {"mean": "1"}, {"squares": -1.0},
        {"squares": float("inf")}, {"levels": ["a"]}, {"levels": "ab", "count": 0}, {"levels": [1], "count": 0},
        {"levels": ["a\x1b"], "count": 0}, {"levels": [str(i) for i in range(31)], "count": 0}, {"missing": None},
        {"declared": 1}, {"declared": True}, {"declared": True, "levels": [str(i) for i in range(1001)], "count": 0},
        {"more": 1}, {"mean": 1e200}, {"mean": 10**400}, {"squares": 1e200}, {"squares": 10**400}, {"count": 10**400},
    ],
)  # fmt: skip
def test_sums_of_another_form_are_refused(change: dict[str, Any]) -> None:
    assert ColumnSums.load(SENT).count == 3
    with refused("both ends need the same feddrm"):
        ColumnSums.load({**SENT, **change})
    with refused("both ends need the same feddrm"):
        ColumnSums.load({key: value for key, value in SENT.items() if key != next(iter(change))} | {"more": 1})


def test_texts_that_hardly_repeat_do_not_leave_a_site() -> None:
    """Neither an identifier of many rows nor the names in a short table do. Numbers leave as sums only."""
    rows = [[f"p{i}", str(i), "ab"[i % 2]] for i in range(8)]
    sums = table_sums(["pid", "number", "sex"], rows, [True] * 8, ())
    with refused("column 'pid' has 8 different texts in 8 rows", "would leave this site", "drop: ['pid']"):
        check_levels(sums, rows)
    check_levels({name: sums[name] for name in ("number", "sex")}, [row[1:] for row in rows])
    days = [[f"2020-01-3{i % 2}"] for i in range(8)]
    with refused("column 'day' has dates, such as '2020-01-30': write dates as numbers"):
        check_levels(table_sums(["day"], days, [True] * 8, ()), days)


def test_rows_without_a_text_do_not_make_texts_repeat() -> None:
    """Four remarks in 400 rows are as telling as four remarks in four."""
    rows = [["fell from a ladder"], ["bee sting"], ["bee sting"], ["boxer"], *[[""]] * 396]
    with refused("column 'note' has 3 different texts in 4 rows that have one"):
        check_levels(table_sums(["note"], rows, [True] * 400, ()), rows)


def test_texts_must_repeat_from_subject_to_subject() -> None:
    """A surname repeats with every visit, and would leave; a ward has patients, an exercise is done by all."""
    whose = [f"p{i // 10}" for i in range(120)]
    names, wards, exercises = (
        [[text] for text in texts]
        for texts in (
            [f"name {i // 10}" for i in range(120)],
            [f"ward {i // 10 % 6}" for i in range(120)],
            [f"exercise {i % 10}" for i in range(120)],
        )
    )
    for rows in (names, wards, exercises):
        check_levels(table_sums(["text"], rows, [True] * 120, ()), rows)
    for rows in (wards, exercises):
        check_levels(table_sums(["text"], rows, [True] * 120, ()), rows, whose)
    with refused("column 'text' has 12 different texts in 12 rows", "each subject's counted once"):
        check_levels(table_sums(["text"], names, [True] * 120, ()), names, whose)


def test_declared_codes_may_leave_a_site_in_larger_number() -> None:
    """Diagnoses, not names: a person says so, and every code still has two rows or more on average."""
    rows = [[f"D{i % 200}"] for i in range(400)]
    with refused("column 'code' has 200 different texts in 400 rows", "name it in categories if these are codes"):
        check_levels(table_sums(["code"], rows, [True] * 400, ()), rows)
    declared = table_sums(["code"], rows, [True] * 400, ["code"])
    check_levels(declared, rows)
    with refused("column 'code' has 200 different texts in 399 rows", "drop: ['code']), or describe it in a schema"):
        check_levels(declared, rows[1:])
    sent = ColumnSums.load(json.loads(json.dumps(declared["code"].as_dict())))
    assert len(schema_from_sums({"code": sent + sums(["D1", "E1"])}).encoded) == 201
    assert str(sent).endswith("; 200 in all")
    with refused("column 'code' has 1001 different texts", "drop=['code']), or describe it in a schema file"):
        sums([f"D{i}" for i in range(1001)], category=True).column("code")
