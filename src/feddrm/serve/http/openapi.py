"""What the OpenAPI document says about request bodies that our own code decodes.

FastAPI derives the rest of the document from the routes.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from feddrm.serve.schemas import PICTURE_TYPES, RawOptions


def json_body(model: type[BaseModel], options: type[BaseModel] | None = None) -> dict[str, Any]:
    """An operation whose body is JSON of this model, and whose query string may have these options."""
    content = {"application/json": {"schema": _without_references(model.model_json_schema())}}
    parameters = [] if options is None else _query_parameters(options)
    return {"requestBody": {"required": True, "content": content}, "parameters": parameters}


def sample_body(model: type[BaseModel], options: type[BaseModel]) -> dict[str, Any]:
    """An operation whose body is JSON, a picture or raw bytes; the latter two have their options in the query."""
    operation = json_body(model, options)
    binary = {"schema": {"type": "string", "format": "binary"}}
    operation["requestBody"]["content"] |= dict.fromkeys((*PICTURE_TYPES, "application/octet-stream"), binary)
    operation["parameters"] = _query_parameters(RawOptions) + operation["parameters"]
    return operation


def _query_parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    """The fields of the model as optional parameters of the query string; a list is one text with commas."""
    parameters = []
    for name, field in _without_references(model.model_json_schema())["properties"].items():
        # A query string has no null: the parameter is left out instead.
        kind = next((kind for kind in field.get("anyOf", ()) if kind["type"] != "null"), field)
        schema = {key: value for key, value in kind.items() if key not in ("title", "description")}
        parameter = {"name": name, "in": "query", "required": False, "description": field["description"]}
        if schema["type"] == "array":
            listed = f"{field['description']}; commas between them"
            parameter |= {"style": "form", "explode": False, "description": listed}
        parameters.append(parameter | {"schema": schema})
    return parameters


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
