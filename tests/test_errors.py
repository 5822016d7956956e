"""Errors: the exit code of each kind."""

from __future__ import annotations

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
