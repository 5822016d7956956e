"""The check of a request's API key or token."""

from __future__ import annotations

from starlette.requests import Request

from feddrm.serve.access import Access, AccessRefused, credentials
from feddrm.serve.http.error_responses import ApiError


async def authorise(request: Request, access: Access, scope: str) -> str:
    """The name of the caller (empty where anybody may ask); an error if key or token lack the scope or are missing."""
    headers, state = request.headers, request.scope["state"]
    scheme, token = credentials(headers.get("authorization", ""), headers.get("x-api-key", ""))
    try:
        state["caller"] = await access.authorise(scheme, token, scope)  # for the log line
    except AccessRefused as refusal:
        state["caller"] = refusal.caller
        raise ApiError(refusal.status, str(refusal), refusal.headers) from refusal
    return str(state["caller"])
