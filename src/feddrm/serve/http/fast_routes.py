"""Paths on which speed counts: FastAPI documents them, and is passed by when they run.

Its stack of layers costs several times what a decision does (docs/serve.md has the figures).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from feddrm.rules import RULES
from feddrm.serve.auth import ANYBODY, Caller, Keys
from feddrm.serve.http.decode import IMAGES
from feddrm.serve.http.error_responses import Refusal, answer_to
from feddrm.serve.schemas import PredictOptions
from feddrm.serve.settings import ServerSettings


class Direct(APIRoute):
    """A POST path whose function takes the request and nothing else."""

    def __init__(self, path: str, endpoint: Any, **about: Any) -> None:
        super().__init__(path, endpoint, methods=["POST"], **about)
        self.app = self._run

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self.endpoint(Request(scope, receive))
        except Exception as error:
            answer = answer_to(error, scope["state"]["request_id"])
            if answer is None:
                raise
        await answer(scope, receive, send)


class Shortcuts:
    """Stands before an application: the paths it knows go straight to their functions."""

    def __init__(self, app: ASGIApp, known: Mapping[str, tuple[Direct, dict[str, str]]]) -> None:
        self.app, self.known = app, dict(known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.known.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self.app(scope, receive, send)
        else:
            scope["route"], scope["path_params"] = found
            await found[0].app(scope, receive, send)


def header(request: Request, name: bytes) -> str:
    """The first header of this name (in lower case); empty if there is none."""
    for key, value in request.scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return ""


async def read_body(request: Request, settings: ServerSettings) -> bytes:
    """The body, or a refusal as soon as it is known to be too long or too slow."""
    given, limit = header(request, b"content-length"), settings.max_body_bytes
    # A length of more digits has zeros in front, which int() does not take by the thousand: then what comes is counted.
    size = int(given) if given.isdecimal() and len(given) < 20 else 0
    parts: list[bytes] = []
    got, more = 0, True
    try:
        async with asyncio.timeout(settings.body_seconds):
            while more and size <= limit:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                parts.append(message.get("body", b""))
                got += len(parts[-1])
                size = max(size, got)
                more = message.get("more_body", False)
    except TimeoutError as error:
        text = f"the body took longer than {settings.body_seconds:g} s: send less at a time"
        raise Refusal(408, text, {"Connection": "close"}) from error
    if size > limit:
        raise Refusal(413, f"a body of more than {limit} bytes: send less")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def authorise(request: Request, keys: Keys | None, scope: str) -> Caller:
    """Whose key it is; no key, an unknown one or one without the scope is refused."""
    if keys is None:
        return ANYBODY
    given = header(request, b"authorization")
    key = given[7:] if given[:7].lower() == "bearer " else header(request, b"x-api-key")
    caller = keys.find(key) if key else None
    if caller is None:
        raise Refusal(401, "no valid API key: send 'Authorization: Bearer KEY'", {"WWW-Authenticate": "Bearer"})
    request.scope["state"]["caller"] = caller.name
    if scope not in caller.scopes:
        raise Refusal(403, f"the key '{caller.name}' has no scope '{scope}': ask for one that has")
    return caller


def takes(model: type[BaseModel], options: type[BaseModel] | None = None) -> dict[str, Any]:
    """What OpenAPI shall say of a body that is read by hand: JSON, and where options are given, pictures and bytes."""
    content: dict[str, Any] = {"application/json": {"schema": _inlined(model.model_json_schema())}}
    parameters = []
    if options is not None:
        binary = {"schema": {"type": "string", "format": "binary"}}
        content |= dict.fromkeys((*IMAGES, "application/octet-stream"), binary)
        parameters = [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in {
                "kind": {"type": "string", "enum": ["inputs", "features"]},
                "datatype": {"type": "string", "enum": ["uint8", "float32"]},
                "rule": {"type": "string", "enum": list(RULES)},
                "coverage": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                **({"consult": {"type": "integer", "minimum": 1, "maximum": 1024},
                    "abstain": {"type": "string", "enum": ["mark", "refuse"]}}
                   if options is PredictOptions else {}),
            }.items()
        ]  # fmt: skip
    return {"requestBody": {"required": True, "content": content}, "parameters": parameters}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Without references: the definitions are small, and each stands where it is used."""
    known = schema.get("$defs", {})

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return walk(known[value["$ref"].rpartition("/")[2]])
            return {key: walk(inner) for key, inner in value.items() if key != "$defs"}
        return [walk(inner) for inner in value] if isinstance(value, list) else value

    found: dict[str, Any] = walk(schema)
    return found
