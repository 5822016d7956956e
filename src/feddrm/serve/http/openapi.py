"""What the OpenAPI document says about request bodies that our own code decodes.

FastAPI derives the rest of the document from the routes.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from feddrm.rules import ROUTING_RULES
from feddrm.serve.schemas import PICTURE_TYPES, PredictOptions, RawOptions


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """An operation whose body is JSON of this model."""
    schema = _without_references(model.model_json_schema())
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}, "parameters": []}


def sample_body(model: type[BaseModel], options: type[BaseModel]) -> dict[str, Any]:
    """An operation whose body is JSON, a picture or raw bytes; the latter two have their options in the query."""
    operation = json_body(model)
    binary = {"schema": {"type": "string", "format": "binary"}}
    operation["requestBody"]["content"] |= dict.fromkeys((*PICTURE_TYPES, "application/octet-stream"), binary)
    schemas: dict[str, dict[str, Any]] = {
        "kind": {"type": "string", "enum": ["inputs", "features"]},
        "datatype": {"type": "string", "enum": ["uint8", "float32"]},
        "rule": {"type": "string", "enum": list(ROUTING_RULES)},
        "coverage": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "max_away": {"type": "number", "minimum": 0, "maximum": 1},
    }
    if options is PredictOptions:
        schemas["consult"] = {"type": "integer", "minimum": 1, "maximum": 1024}
        schemas["abstain"] = {"type": "string", "enum": ["mark", "answer"]}
    fields = RawOptions.model_fields | options.model_fields
    operation["parameters"] = [
        {"name": name, "in": "query", "required": False, "description": fields[name].description, "schema": schema}
        for name, schema in schemas.items()
    ]
    return operation


def _without_references(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with every definition in the place where it is used."""
    definitions = schema.get("$defs", {})

    def inline(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return inline(definitions[value["$ref"].rpartition("/")[2]])
            return {key: inline(inner) for key, inner in value.items() if key != "$defs"}
        return [inline(inner) for inner in value] if isinstance(value, list) else value

    inlined: dict[str, Any] = inline(schema)
    return inlined
