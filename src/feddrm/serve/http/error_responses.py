"""Error responses: every error is answered with the same small JSON body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from feddrm.errors import FeddrmError, FieldProblem, TableError
from feddrm.serve.batching import Busy
from feddrm.serve.schemas import ErrorAnswer
from feddrm.serve.settings import first_problem

# The error responses that most paths can give, for the OpenAPI document.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorAnswer, "description": text}
    for code, text in {
        401: "no valid API key or token", 403: "the key or token lacks the scope",
        408: "the body did not arrive in time", 413: "the body is too long",
        415: "the content type is not supported", 422: "the body or an option does not fit",
        429: "too busy: see Retry-After", 503: "no client answered",
    }.items()
}  # fmt: skip


class ApiError(FeddrmError):
    """An error with its HTTP status: one line that says what is wrong and what to do, and extra headers."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.headers = status, headers or {}


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A compact JSON response."""
    return Response(orjson.dumps(value), status, headers, media_type="application/json")


def error_response(
    status: int,
    text: str,
    request_id: str,
    headers: dict[str, str] | None = None,
    fields: Sequence[FieldProblem] = (),
) -> Response:
    """The body of every error: one line of text, the request id under which the log has more, and cells to correct."""
    # The text may quote the caller: half of a surrogate pair cannot be encoded, and control characters can mislead.
    line = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))
    body: dict[str, Any] = {"error": line, "request_id": request_id}
    if fields:
        body["fields"] = [field.as_dict() for field in fields]
    return json_response(body, status, headers)


def response_for(error: Exception, request_id: str) -> Response | None:
    """The response to an error; None for internal errors, which are only logged."""
    match error:
        case ApiError():
            return error_response(error.status, str(error), request_id, error.headers)
        case Busy():
            return error_response(429, str(error), request_id, {"Retry-After": str(error.seconds)})
        case TableError():
            return error_response(422, str(error), request_id, fields=error.problems)
        case FeddrmError():
            return error_response(422, str(error), request_id)
        case RequestValidationError():
            problem = dict(error.errors()[0])  # its place begins with "query" or "path"
            return error_response(422, first_problem([problem | {"loc": problem["loc"][1:]}]), request_id)
        case HTTPException():
            headers = None if error.headers is None else dict(error.headers)
            return error_response(error.status_code, str(error.detail), request_id, headers)
    return None


def _no_route(request: Request, error: HTTPException) -> ApiError:
    path, headers = request.url.path[:64], dict(error.headers or {})
    if error.status_code == 404:
        return ApiError(404, f"no path '{path}': GET /openapi.json lists all", headers)
    return ApiError(405, f"{request.method} is no method of '{path}': send {headers.get('Allow', 'another')}", headers)


def install_error_handlers(app: FastAPI) -> None:
    """Make FastAPI answer errors by :func:`response_for` instead of in its own form."""

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code in (404, 405):  # of Starlette's routing
            error = _no_route(request, error)
        response = response_for(error, request.scope["state"]["request_id"])
        if response is None:
            raise error
        return response

    for kind in (Busy, FeddrmError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, handle)
