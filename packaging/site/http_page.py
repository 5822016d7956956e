"""The reference of gateway and predictor over HTTP, from their OpenAPI documents."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import feddrm
from feddrm.predictor.predictor import Predictor
from feddrm.serve.app import build_gateway
from feddrm.serve.predictor.predictor_app import build_predictor
from feddrm.serve.settings import GatewaySettings, PredictorSettings, make_settings
from markdown_table import table

Document = dict[str, Any]


@cache
def documents() -> dict[str, Document]:
    """The OpenAPI documents of a gateway and of one of its predictors, which serve a small run."""
    rng = np.random.default_rng(0)
    samples = {name: (rng.normal(mean, 1, (20, 2)), np.arange(20) % 2) for mean, name in enumerate(("oslo", "lima"))}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        feddrm.fit(feddrm.Federation.from_arrays(samples), out=run)
        gateway = build_gateway(run, make_settings(GatewaySettings))
        predictor = build_predictor(Predictor.load(run / "clients" / "oslo"), make_settings(PredictorSettings))
        return {"gateway": _document(gateway), "predictor": _document(predictor)}


def _document(app: Any) -> Document:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            return await client.get("/openapi.json")

    document: Document = asyncio.run(ask()).raise_for_status().json()
    return document


def http_reference() -> str:
    """Both documents in words: paths, what they take, what they answer; then the objects that they name."""
    return "\n\n".join(part for name, document in documents().items() for part in _parts(name, document)) + "\n"


def _parts(name: str, document: Document) -> Iterator[str]:
    yield f"## The {name}"
    yield f"The OpenAPI document: [{name}.json]({name}.json)."
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"### {method.upper()} {path}" + (" of a predictor" if name == "predictor" else "")
            yield operation.get("description", operation["summary"])
            yield from _request(operation, name)
            yield table(
                ("status", "meaning", "answer"),
                [
                    (status, answer["description"], ", ".join(_content(answer, name)))
                    for status, answer in sorted(operation["responses"].items())
                ],
            )
    for title, schema in sorted(document["components"]["schemas"].items()):
        yield f"### {title}" + f" {{ #{name}-{title.lower()} }}"
        yield schema.get("description", "")
        yield _fields(schema, name)


def _request(operation: Document, name: str) -> Iterator[str]:
    if parameters := operation.get("parameters"):
        rows = [(f"`{p['name']}`", p["in"], _kind(p["schema"], name), _meaning(p | p["schema"])) for p in parameters]
        yield table(("parameter", "place", "type", "meaning"), rows)
    if body := operation.get("requestBody"):
        for kind, content in body["content"].items():
            schema = content["schema"]
            yield f"Body, `{kind}`: {_kind(schema, name)}."
            if "properties" in schema:
                yield _fields(schema, name)


def _content(answer: Document, name: str) -> Iterator[str]:
    for kind, content in answer.get("content", {}).items():
        yield _kind(content.get("schema", {}), name) if kind == "application/json" else f"`{kind}`"


def _fields(schema: Document, name: str) -> str:
    if "properties" not in schema:
        return _kind(schema, name)
    always = schema.get("required", ())
    rows = [
        (f"`{field}`", _kind(about, name), "always" if field in always else _default(about), _meaning(about))
        for field, about in schema["properties"].items()
    ]
    return table(("field", "type", "given", "meaning"), rows)


def _default(about: Document) -> str:
    return f"default `{json.dumps(about['default'])}`" if about.get("default") is not None else "optional"


def _meaning(about: Document) -> str:
    return ("Deprecated. " if about.get("deprecated") else "") + str(about.get("description", ""))


def _kind(schema: Document, name: str) -> str:
    """A type in words, with a link where it has a name."""
    if "$ref" in schema:
        title = schema["$ref"].rpartition("/")[2]
        return f"[{title}](#{name}-{title.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if kinds := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(_kind(kind, name) for kind in kinds))
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}), name)}"
    if kind == "object" and isinstance(values := schema.get("additionalProperties"), dict):
        return f"object of {_kind(values, name)}"
    return kind
