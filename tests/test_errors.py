"""Errors: the exit code of each kind."""

from __future__ import annotations

import copy

import pytest

from feddrm.errors import FeddrmError, FieldProblem, InterruptedRunError, SettingError, TableError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FeddrmError("x"), 1),
        (SettingError("x"), 2),
        (InterruptedRunError("the same command goes on"), 130),
        (TableError([FieldProblem(0, "age", "x\ny", "give a number")]), 1),
    ],
)
def test_every_error_is_a_feddrm_error_with_its_exit_code(error: FeddrmError, code: int) -> None:
    assert isinstance(error, FeddrmError)
    assert error.exit_code == code
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "error",
    [SettingError("x"), InterruptedRunError("again"), TableError([FieldProblem(0, "age", "x", "give a number")])],
)
def test_an_error_comes_back_from_another_process_as_it_was(error: FeddrmError) -> None:
    """An error that cannot be unpickled breaks a pool of processes. Copies are made in the same way."""
    again = copy.deepcopy(error)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
