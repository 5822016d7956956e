from __future__ import annotations

import json

from feddrm.serve.http.openapi import json_body, sample_body
from feddrm.serve.oip.codec import InferRequest
from feddrm.serve.schemas import Options, PredictOptions, PredictRequest, RouteRequest


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


def test_query_parameters_are_the_options_of_the_path() -> None:
    def names(operation: dict[str, list[dict[str, str]]]) -> list[str]:
        return [parameter["name"] for parameter in operation["parameters"]]

    route, predict = sample_body(RouteRequest, Options), sample_body(PredictRequest, PredictOptions)
    assert names(route) == ["kind", "datatype", "rule", "coverage", "max_away"]
    assert names(predict) == [*names(route), "consult", "abstain"]
