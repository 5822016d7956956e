from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from feddrm.serve.http.decode import InputSpec, decode_samples
from feddrm.serve.http.openapi import json_body, sample_body
from feddrm.serve.oip.codec import InferRequest
from feddrm.serve.schemas import Options, PredictOptions, PredictRequest, RouteRequest
from refusal import refused


def test_a_json_body_has_its_definitions_in_place() -> None:
    operation = json_body(InferRequest)
    assert "$ref" not in json.dumps(operation)
    assert "$defs" not in json.dumps(operation)
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["inputs"]["items"]["properties"]["datatype"]["enum"] == ["UINT8", "FP32", "FP64"]
    assert operation["parameters"] == []


def test_samples_may_be_json_pictures_or_bytes() -> None:
    operation = sample_body(RouteRequest, Options)
    assert {"application/json", "image/png", "application/octet-stream"} <= set(operation["requestBody"]["content"])


def values_around(schema: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Texts that the schema of a parameter allows, and texts that it forbids."""
    if "enum" in schema:
        return schema["enum"], ["other"]
    if schema["type"] == "array":
        return ["oslo", "oslo,lima"], [",".join(["oslo"] * (schema["maxItems"] + 1))]
    if schema["type"] == "boolean":
        return ["true", "false"], ["maybe", "2", ""]
    if schema["type"] == "string":
        return ["oslo", "a, b"], []
    step = 1 if schema["type"] == "integer" else 0.125
    allowed, forbidden = [], ["many"]
    for bound, side in (("inimum", -step), ("aximum", step)):
        if (closed := schema.get(f"m{bound}")) is not None:
            allowed.append(closed)
            forbidden.append(str(closed + side))
        if (opened := schema.get(f"exclusiveM{bound}")) is not None:
            allowed.append(opened - side)
            forbidden.append(str(opened))
    return list(map(str, allowed)), forbidden


READ: dict[str, Callable[[str], object]] = {
    "integer": int, "number": float, "string": str, "array": lambda text: tuple(text.split(",")),
    "boolean": lambda text: text == "true",
}  # fmt: skip


@pytest.mark.parametrize(("body", "options"), [(RouteRequest, Options), (PredictRequest, PredictOptions)])
def test_query_parameters_are_what_the_decoder_reads(body: type[BaseModel], options: type[Options]) -> None:
    spec = InputSpec((1, 1, 2), 2, None, max_rows=8, max_pixels=100)  # eight bytes are samples of any kind and type

    def decode(query: dict[str, str]) -> dict[str, object]:
        query = {"kind": "inputs", **query}
        kind, x, found = decode_samples(bytes(8), "application/octet-stream", query, spec, options)
        return {"kind": kind, "datatype": str(x.dtype), **dict(found)}

    documented = {parameter["name"]: parameter for parameter in sample_body(body, options)["parameters"]}
    assert set(documented) == set(decode({}))
    for name, parameter in documented.items():
        schema = parameter["schema"]
        allowed, forbidden = values_around(schema)
        assert allowed
        for text in allowed:
            assert decode({name: text})[name] == READ[schema["type"]](text)
        for text in forbidden:
            with refused(name):
                decode({name: text})
        assert (parameter.get("style"), parameter.get("explode")) == (
            ("form", False) if schema["type"] == "array" else (None, None)
        )
