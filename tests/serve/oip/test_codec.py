from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddrm.errors import FeddrmError
from feddrm.serve.oip.codec import LENGTH_HEADER, InferRequest, read_infer, write_answer, write_infer
from letters import LETTERS
from refusal import refused


@given(st.sampled_from([np.uint8, np.float32]), st.integers(1, 5))
def test_a_written_tensor_is_read_back(dtype: type, rows: int) -> None:
    x = np.linspace(0, 100, 6 * rows).reshape(rows, 2, 3).astype(dtype)
    body, headers = write_infer("input", x)
    _, tensors = read_infer(body, headers[LENGTH_HEADER])
    assert tensors["input"].dtype == dtype
    assert np.array_equal(tensors["input"], x)


@given(st.binary(max_size=200), st.one_of(st.none(), st.text(LETTERS, max_size=5), st.integers(-5, 300).map(str)))
def test_arbitrary_bytes_are_an_error(body: bytes, length: str | None) -> None:
    with pytest.raises(FeddrmError):
        read_infer(body, length)


@pytest.mark.parametrize(
    ("tensor", "part"),
    [
        ({"shape": [2], "data": [1]}, "1 numbers"),
        ({"shape": [1]}, "neither data"),
        ({"shape": [1], "parameters": {"binary_data_size": 4}}, "4 bytes"),
        ({"shape": [2**31, 2**31], "parameters": {"binary_data_size": 8}}, "bytes"),
        ({"shape": [1], "data": [[1], [1, 2]]}, "different length"),
        ({"shape": [2**31, 2**31, 2**31, 0], "data": []}, "no array has the shape"),
        ({"shape": [2**31, 2**31, 2**31, 0], "parameters": {"binary_data_size": 0}}, "no array has the shape"),
    ],
)
def test_tensors_that_do_not_fit_their_shape_are_errors(tensor: dict[str, object], part: str) -> None:
    with refused(part):
        read_infer(json.dumps({"inputs": [{"name": "input", "datatype": "FP32", **tensor}]}).encode(), None)


@pytest.mark.parametrize("length", ["1" * 5000, "0" * 5000 + "2", "-1", "+2", "\u00b2", "3"])
def test_impossible_lengths_of_the_json_part_are_errors(length: str) -> None:
    with refused(LENGTH_HEADER, "2 bytes"):
        read_infer(b"{}", length)


def test_an_answer_has_the_wanted_outputs_as_json_or_bytes() -> None:
    outputs = {"margin": np.array([0.5, 0.25]), "sure": np.array([True, False]), "client": ["oslo", "lima"]}
    tensor = {"name": "input", "datatype": "FP32", "shape": [1], "data": [1]}
    plain, headers = write_answer({"id": "7"}, outputs, InferRequest(inputs=[tensor]))
    assert headers == {"Content-Type": "application/json"}
    assert {out["name"]: out["data"] for out in json.loads(plain)["outputs"]} == {
        "margin": [0.5, 0.25],
        "sure": [True, False],
        "client": ["oslo", "lima"],
    }
    wanted = [{"name": "margin", "parameters": {"binary_data": True}}]
    body, headers = write_answer({"id": "7"}, outputs, InferRequest(inputs=[tensor], outputs=wanted))
    length = int(headers[LENGTH_HEADER])
    assert [out["name"] for out in json.loads(body[:length])["outputs"]] == ["margin"]
    assert np.frombuffer(body[length:], "<f4").tolist() == [0.5, 0.25]
    wanted = [{"name": "client", "parameters": {"binary_data": True}}]
    body, headers = write_answer({"id": "7"}, outputs, InferRequest(inputs=[tensor], outputs=wanted))
    assert body.endswith(b"\4\0\0\0oslo\4\0\0\0lima")
    (output,) = json.loads(body[: int(headers[LENGTH_HEADER])])["outputs"]
    about = {"name": "client", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 16}}
    assert output == about
    with refused("no output 'x'", "margin, sure, client"):
        write_answer({}, outputs, InferRequest(inputs=[tensor], outputs=[{"name": "x"}]))
