from __future__ import annotations

import json

import pytest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from feddrm.errors import FeddrmError, FieldProblem, TableError
from feddrm.serve.batching import Busy
from feddrm.serve.http.error_responses import ApiError, error_response, response_for


@pytest.mark.parametrize(
    ("error", "status", "text", "header"),
    [
        (ApiError(503, "no client: wait", {"Retry-After": "2"}), 503, "no client: wait", ("retry-after", "2")),
        (Busy(3), 429, "too many queries are waiting: try again in 3 s", ("retry-after", "3")),
        (FeddrmError("wrong: change it"), 422, "wrong: change it", None),
        (
            RequestValidationError([{"loc": ("query", "after"), "type": "int_parsing", "input": "x"}]),
            422,
            "after is 'x': give a whole number",
            None,
        ),
        (HTTPException(405, "not allowed", {"Allow": "GET"}), 405, "not allowed", ("allow", "GET")),
    ],
)
def test_every_known_error_has_a_status_and_one_line(
    error: Exception, status: int, text: str, header: tuple[str, str] | None
) -> None:
    response = response_for(error, "id-1")
    assert response is not None
    assert response.status_code == status
    assert json.loads(bytes(response.body)) == {"error": text, "request_id": "id-1"}
    assert header is None or header in response.headers.items()


def test_internal_errors_have_no_response() -> None:
    assert response_for(RuntimeError("secret"), "id-1") is None


def test_the_text_is_one_line_of_valid_unicode() -> None:
    body = json.loads(bytes(error_response(400, "two\nlines \ud800 \x1b[31m\0", "id-1").body))
    assert body["error"] == "two lines ? ?[31m?"


def test_cells_that_cannot_be_read_are_listed_beside_the_line() -> None:
    problems = [FieldProblem(i, "age", "x" * 99, "give a number") for i in range(30)]
    response = response_for(TableError(problems), "id-1")
    assert response is not None
    assert response.status_code == 422
    body = json.loads(bytes(response.body))
    assert body["error"].startswith("row 0: column 'age' is 'xxx")
    assert body["error"].endswith("give a number (and 29 more)")
    assert len(body["fields"]) == 20
    assert body["fields"][1] == {"row": 1, "column": "age", "value": "x" * 64, "problem": "give a number"}
