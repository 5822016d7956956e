"""The check of a request's API key."""

from __future__ import annotations

from starlette.requests import Request

from feddrm.serve.auth import ApiKeys
from feddrm.serve.http.error_responses import ApiError

NO_KEY = "none was sent: send 'Authorization: Bearer KEY' ('feddrm query' takes --key or FEDDRM_KEY)"


def authorise(request: Request, keys: ApiKeys | None, scope: str) -> str:
    """The name of the request's key (empty without keys); an error if it is missing, unknown or lacks the scope."""
    if keys is None:
        return ""
    given = request.headers.get("authorization", "")
    key = given[7:] if given[:7].lower() == "bearer " else request.headers.get("x-api-key", "")
    caller = keys.find(key) if key else None
    if caller is None:
        reason = "this API key is unknown here: ask for one of this address" if key else NO_KEY
        request.scope["state"]["caller"] = "(unknown key)" if key else "(no key)"  # for the log line
        raise ApiError(401, f"no valid API key: {reason}", {"WWW-Authenticate": "Bearer"})
    request.scope["state"]["caller"] = caller.name  # for the log line
    if scope not in caller.scopes:
        raise ApiError(403, f"the key '{caller.name}' has no scope '{scope}': ask for one that has")
    return caller.name
