"""Kinds of columns: what a cell may hold, how it is encoded, and what no cell can have become."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddrm.tables.column_kinds import CategoryColumn, NumberColumn, RawColumn, Usual, all_numbers, is_missing
from refusal import refused

CHOL = NumberColumn("chol", unit="mg/dl", centre=240, scale=50, minimum=40, maximum=700, missing=True)
PAIN = CategoryColumn("cp", categories={"1": "typical", "2": "atypical", "4": "none"})
SMOKER = CategoryColumn("smoker", categories={"no": "no", "yes": "yes"}, missing=True)


def wrong(
    column: RawColumn,
    inputs: list[list[float]],
    empty: bool = False,
    filled: bool = False,
    usual: Usual | None = None,
) -> list[tuple[int, Any, str]]:
    x = np.array(inputs, dtype=np.float64)
    return list(column.problems(x, np.full(len(x), empty), filled, usual))


CELLS = [
    "1",
    "-2.5",
    " 3 ",
    "0",
    "",
    "NA",
    "na",
    "nA",
    "?",
    "NaN",
    "-nan",
    "Unknown",
    "1_0",
    "1e39",
    "inf",
    "x",
    "\uff11",
]


@given(
    st.lists(st.sampled_from([*CELLS, 4, 0.5, math.nan, 10**400, True, None, "2", "typical"]), min_size=1, max_size=4)
)
def test_a_whole_column_is_read_as_its_cells_are(cells: list[Any]) -> None:
    """Where it is not read as a whole, its cells are read one by one."""
    for column in (CHOL, NumberColumn("age"), NumberColumn("bp", missing=True, zero_is_missing=True), PAIN, SMOKER):
        if (whole := column.read_all(cells)) is not None:
            np.testing.assert_array_equal(whole, [column.read(cell) for cell in cells])


def test_ordinary_columns_are_read_as_a_whole() -> None:
    np.testing.assert_array_equal(all_numbers(["1", " -2.5", "", "NA", "nan"]), [1, -2.5, *[math.nan] * 3])
    np.testing.assert_array_equal(all_numbers([1, 2.5, math.nan]), [1, 2.5, math.nan])
    assert PAIN.read_all(["1", "atypical", "4.0"]).tolist() == [0, 1, 2]  # type: ignore[union-attr]
    np.testing.assert_array_equal(CHOL.read_all(["240", "nA"]), [240, math.nan])
    for cells in (["1_0"], ["-nan"], ["1e39"], ["x"], [10**400], [True], [None]):
        assert all_numbers(cells) is None


@given(st.sampled_from(CELLS))
def test_what_is_missing_in_a_whole_column_is_missing_in_a_cell(cell: str) -> None:
    values = all_numbers([cell])
    assert values is None or bool(np.isnan(values[0])) == is_missing(cell)


@pytest.mark.parametrize("cell", ["240", " 240.0 ", 240, 240.0, np.float64(240), "2.4e2"])
def test_numbers_are_read_from_text_and_numbers(cell: object) -> None:
    assert CHOL.read(cell) == 240


@pytest.mark.parametrize("cell", [None, "", " ", "?", "NA", "#N/A", "<NA>", "nan", "Unknown", math.nan])
def test_missing_values_are_known_by_many_words(cell: object) -> None:
    assert math.isnan(CHOL.read(cell))
    with pytest.raises(ValueError, match="a value is needed: give a number"):
        NumberColumn("age").read(cell)


@pytest.mark.parametrize("cell", ["high", "1_000", True, "1e60", math.inf, [1]])
def test_what_is_no_number_is_refused(cell: object) -> None:
    with pytest.raises(ValueError, match=r"give a number \(40..700 mg/dl\), or unknown"):
        CHOL.read(cell)


def test_a_zero_can_mean_missing() -> None:
    column = NumberColumn("bp", missing=True, zero_is_missing=True)
    assert math.isnan(column.read("0.0"))
    assert column.read("-1") == -1
    with refused("zero_is_missing needs 'missing: true'"):
        NumberColumn("bp", zero_is_missing=True).check()


@pytest.mark.parametrize(("cell", "place"), [("1", 0), (1, 0), ("1.0", 0), ("Atypical", 1), (4.0, 2), ("none", 2)])
def test_categories_are_known_by_code_number_or_label(cell: object, place: int) -> None:
    """Also by a label that means 'missing' elsewhere."""
    assert PAIN.read(cell) == place


def test_two_categories_take_the_words_of_json() -> None:
    column = CategoryColumn("fbs", categories={"0": "no", "1": "yes"})
    assert [column.read(cell) for cell in (False, True, "YES", 0)] == [0, 1, 1, 0]
    assert CategoryColumn("fbs", categories={"false": "a", "true": "b"}).read(True) == 1
    with pytest.raises(ValueError, match=r"give one of 1 \(typical\), 2 \(atypical\), 4 \(none\)$"):
        PAIN.read("3")


def test_encoding_is_what_one_computes_by_hand() -> None:
    assert CHOL.encode(np.array([240, 290, math.nan])).tolist() == [[0], [1], [0]]
    assert PAIN.outputs == ("cp_1", "cp_2", "cp_4")
    assert PAIN.encode(np.array([2.0, 0, math.nan])).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    assert SMOKER.outputs == ("smoker",)
    assert SMOKER.encode(np.array([0.0, 1, math.nan])).tolist() == [[-1], [1], [0]]


def test_impossible_descriptions_are_refused() -> None:
    for column, part in (
        (NumberColumn("a", scale=0), "scale=0"),
        (NumberColumn("a", minimum=2, maximum=1), "minimum=2 is above maximum=1"),
        (CategoryColumn("a", categories={"1": "one"}), "at least two"),
        (CategoryColumn("a", categories={"1": "same", "2": "Same"}), "'same' names two of them"),
        (
            CategoryColumn("a", categories={"Yes": "Yes", "yes": "yes"}),
            "'Yes' and 'yes' differ only in case: spell them",
        ),
        (CategoryColumn("a", categories={"1": "a", "01": "b"}), "1 is two codes"),
    ):
        with refused(part):
            column.check()


def test_values_outside_their_range_are_flagged() -> None:
    inputs = CHOL.encode(np.array([40, 700, 9000, 39.0])).astype(np.float32).tolist()
    assert wrong(CHOL, inputs) == [(2, 9000, "outside 40..700 mg/dl"), (3, 39, "outside 40..700 mg/dl")]
    assert wrong(NumberColumn("a", minimum=0), [[-1], [0], [1e9]]) == [(0, -1, "it must be at least 0")]
    assert wrong(NumberColumn("a", maximum=0), [[1]]) == [(0, 1, "it must be at most 0")]


def test_without_a_range_the_training_data_decide() -> None:
    usual, column = Usual(mean=1.0, deviation=2.0), NumberColumn("a", centre=10, scale=5)
    assert wrong(column, [[17], [17.1], [-15.1]], usual=usual) == [
        (1, 95.5, "more than 8 standard deviations from the mean of the training data"),
        (2, -65.5, "more than 8 standard deviations from the mean of the training data"),
    ]
    assert wrong(column, [[1e9]]) == []


def test_a_rare_one_among_zeros_is_not_flagged() -> None:
    share = 0.001
    rare = Usual(share, math.sqrt(share * (1 - share)))
    assert [row for row, _ in rare.flags(np.array([0.0, 1.0, 2.0]))] == [2]


def test_contradictory_categories_are_flagged() -> None:
    assert wrong(PAIN, [[1, 0, 0], [1, 0, 1], [0, 0, 0], [0.5, 0, 0]]) == [
        (1, "typical and none", "several categories at once"),
        (2, None, "no category, and not marked as missing"),
        (3, "cp_1=0.5", "no encoding of a category"),
    ]
    assert wrong(SMOKER, [[-1], [0], [0.3]]) == [
        (1, None, "no category, and not marked as missing"),
        (2, "smoker=0.3", "no encoding of a category"),
    ]


def test_a_value_beside_the_mark_of_a_missing_one_is_flagged() -> None:
    marked = "it is marked as missing, but has a value"
    assert wrong(SMOKER, [[1], [0]], empty=True) == [(0, "yes", marked)]
    assert wrong(CHOL, [[1], [0]], empty=True) == [(0, 290, marked)]
    for column in (SMOKER, CHOL):  # clients may have filled it from their own data
        assert wrong(column, [[1], [0]], empty=True, filled=True) == []


def test_examples_can_be_read() -> None:
    for column in (CHOL, PAIN, SMOKER, NumberColumn("a", centre=0, scale=4, minimum=1)):
        inputs = column.encode(np.array([column.read(cell) for cell in column.examples()]))
        assert wrong(column, inputs.tolist()) == []


def test_rounding_to_float32_takes_no_value_out_of_its_range() -> None:
    column = NumberColumn("income", centre=0.1, scale=0.3, minimum=-1234567.8, maximum=7654321.9)
    inputs = column.encode(np.array([-1234567.8, 7654321.9])).astype(np.float32)
    assert wrong(column, inputs.tolist()) == []


@pytest.mark.parametrize(
    ("centre", "scale", "written"),
    [
        (0.0, 1e-20, [0, 3e-20, -7e-20]),
        (1e-12, 1.0, [0, 1, -7, 0.25, 1_000_000]),
        (1332.5, 770.0, [0, 1, 0.25, 1332, 2664, -7]),
        (-4e6, 2e6, [0, 1, -7, 4_000_000]),
        (2e9, 1e9, [0, 2_000_000_000, 1000]),
    ],
)
def test_a_number_is_shown_as_it_was_written(centre: float, scale: float, written: list[float]) -> None:
    """A one in a column whose mean is 1332.5 is a one, not 0.999985."""
    column = NumberColumn("a", centre=centre, scale=scale)
    inputs = column.encode(np.array(written, dtype=np.float64)).astype(np.float32)
    assert column.decode(inputs.astype(np.float64)) == written


def test_a_column_that_varies_little_beside_its_mean_keeps_its_decimals() -> None:
    written = np.array([45000.125, 44999.876543, 45001.3])
    column = NumberColumn("day", centre=45000.25, scale=0.5)
    inputs = column.encode(written).astype(np.float32)
    assert column.raw(inputs[:, 0].astype(np.float64)).tolist() == written.tolist()
