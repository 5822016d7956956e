"""What every field of a reply's header may hold: a site has signed it, but the server trusts no value in it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from feddrm.deploy.server.reply_validation import FIELDS, LARGEST, check_header
from feddrm.tables.column_sums import ColumnSums
from refusal import refused

NUMBERS = ([True, "1", None, [], math.nan, math.inf, -math.inf, 2 * LARGEST, 10**400], [LARGEST, 0.5])
WHOLE = [*NUMBERS[0], 0.5, -1]
TEXTS = ["", ["a", 1], ["a\n"], {"a": 1}, 1]
PRIVACY, MASKS = {"clip": 1.0, "noise": 3}, {"protocol": 2, "required": True, "fewest": 3}
COLUMN, SUMS_OF_COLUMN = {"name": "age", "kind": "number"}, ColumnSums(3, 1.0, 2.0).as_dict()
HEADER: dict[str, tuple[list[Any], list[Any]]] = {  # what a field cannot hold, and what it may
    "samples": ([*WHOLE, 0], [1]),
    "shape": ([*WHOLE, 1, [0], [8, 0], [[8]], {"8": 8}], [[1], [3, 8, 8]]),
    "dtype": (["float", [], None, 1], ["float32", "uint8"]),
    "classes": ([*TEXTS, [], None], [["a"], ["a", "b"]]),
    "columns": (TEXTS, [None, [], ["a"]]),
    "schema": (
        [[], "x", {}, {"columns": []}, {"columns": [{"name": "age"}]}, {"columns": [COLUMN, 1]}],
        [None, {"columns": [COLUMN]}],
    ),
    "column_sums": (
        ["x", [], {"age": {}}, {"age\n": SUMS_OF_COLUMN}, {"age": SUMS_OF_COLUMN, "sex": 1}],
        [None, {"age": SUMS_OF_COLUMN}],
    ),
    "crop": ([None, 0, 1, "true"], [True, False]),
    "scale": ([None, 1, [1, 2], [[0.0]], [[0.0], [1.0], [1.0]], [[0.0], [math.nan]], [[0.0], ["1"]]], [[[-1], [1.5]]]),
    "version": ([None, 1, "1\n", "\x1b[2J", ["1"]], ["1.0"]),
    "fit_protocol": ([*WHOLE[:2], 0, 0.5], [None, 1]),
    "share_features": ([0, "true"], [None, True]),
    "privacy": (
        [{}, [1, 3], {"clip": 1}, {"clip": 1, "noise": "3"}, {"clip": math.nan, "noise": 3}, PRIVACY | {"delta": 1}],
        [None, PRIVACY],
    ),
    "masks": (
        [{}, 1, MASKS | {"protocol": True}, MASKS | {"required": 1}, {"protocol": 2, "required": True}],
        [None, MASKS],
    ),
    "mask_key": ([None, {}, "x", {"key": "a"}, {"key": "a", "signature": 1}], [{"key": "a", "signature": "b"}]),
    "sent_round": (WHOLE, [0, 7]),
    "sent_for": ([*TEXTS, None], [[], ["a"]]),
    "unmasked": ([None, 0, "true"], [True, False]),
    "metrics": ([None, 1, "true"], [True, False]),
    "seconds": ([*NUMBERS[0], -0.5], [*NUMBERS[1], 0]),
    "answers": ([None, 1, "a\n"], ["a"]),
    "loss": (NUMBERS[0], [*NUMBERS[1], -LARGEST]),
    "uploads": ([*NUMBERS[0], -0.5], [*NUMBERS[1], 0]),
    "right": (WHOLE, [0, 7]),
    "tested": (WHOLE, [0, 7]),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_of_another_form_is_refused(name: str) -> None:
    bad, good = HEADER[name]
    for value in bad:
        with refused(f"its '{name}' is {str(value)[:40]!r}: both ends need the same feddrm"):
            check_header({"right": 0, name: value}, name)
    for value in good:
        assert check_header({"right": 0, name: value}, name) == {name: value}


def test_more_right_answers_than_tested_samples_are_refused() -> None:
    assert check_header({"right": 6, "tested": 6}, "right", "tested") == {"right": 6, "tested": 6}
    with refused("7 right of 6 tested"):
        check_header({"right": 7, "tested": 6}, "right", "tested")


def test_fields_that_were_not_asked_for_are_dropped_unread() -> None:
    """Whatever they hold: a private run asks for no accuracy, so nobody compares these."""
    assert check_header({"seconds": 1.0, "right": "x", "tested": [2]}, "seconds") == {"seconds": 1.0}
