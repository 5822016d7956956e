"""Everything but the answer asked for: one small JSON message, whichever layer it comes from."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from feddrm.errors import FeddrmError
from feddrm.serve.batching import Busy
from feddrm.serve.http.decode import WrongKind
from feddrm.serve.schemas import ErrorAnswer

REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorAnswer, "description": text}
    for code, text in {
        401: "no valid API key", 403: "the key lacks the scope",
        408: "the body did not arrive in time", 413: "the body is too long",
        415: "a kind of body that is not read", 422: "what was sent does not fit", 429: "too busy: see Retry-After",
        503: "no client answered",
    }.items()
}  # fmt: skip


class Refusal(Exception):
    """An answer that is not the one asked for: a status, one line that says what to do, perhaps headers."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.headers = status, headers or {}


def answer_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON as compact as it gets."""
    return Response(orjson.dumps(value), status, headers, media_type="application/json")


def answer_error(status: int, text: str, request_id: str, headers: dict[str, str] | None = None) -> Response:
    """What was wrong, in one line, and where to find it in the log."""
    # A caller's bytes may be in the text, and half a character is no character.
    plain = " ".join(text.split()).encode(errors="replace").decode()
    return answer_json({"error": plain, "request_id": request_id}, status, headers)


def answer_to(error: Exception, request_id: str) -> Response | None:
    """The message for an error that can be told; None for one that is nobody's business but the log's."""
    match error:
        case Refusal():
            return answer_error(error.status, str(error), request_id, error.headers)
        case Busy():
            return answer_error(429, str(error), request_id, {"Retry-After": str(error.seconds)})
        case FeddrmError():
            return answer_error(415 if isinstance(error, WrongKind) else 422, str(error), request_id)
        case RequestValidationError():
            first = error.errors()[0]
            return answer_error(422, f"{'.'.join(map(str, first['loc']))}: {first['msg']}", request_id)
        case HTTPException():
            headers = None if error.headers is None else dict(error.headers)
            return answer_error(error.status_code, str(error.detail), request_id, headers)
    return None


def install_errors(app: FastAPI) -> None:
    """For what is raised on FastAPI's own paths; :class:`Direct` does it for the others."""

    async def reply(request: Request, error: Exception) -> Response:
        found = answer_to(error, request.scope["state"]["request_id"])
        if found is None:
            raise error
        return found

    for kind in (Refusal, Busy, FeddrmError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, reply)
