from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc_health", reason="pip install 'feddrm[grpc]' to run this")

import numpy as np
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from feddrm.errors import FeddrmError
from feddrm.serve.oip import grpc_messages
from feddrm.serve.oip.codec import LENGTH_HEADER, read_infer, write_answer
from feddrm.serve.oip.grpc_messages import CONTENTS, MESSAGES, SERVICE, infer_head, infer_response, infer_tail
from refusal import refused

FOLDER = Path(grpc_messages.__file__).parent


def request(datatype: str = "UINT8", shape: tuple[int, ...] = (2, 3), **contents: Any) -> Any:
    made = MESSAGES["ModelInferRequest"](model_name="router")
    tensor = made.inputs.add(name="input", datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return made


def read(made: Any) -> Any:
    """What the HTTP form reads."""
    head = infer_head(made)
    return read_infer(head + infer_tail(made), str(len(head)))


def fields(descriptor: Any) -> dict[str, Any]:
    """Names, numbers and types of a message's fields, and those of the messages in it."""
    found: dict[str, Any] = {}
    for field in descriptor.fields:
        choice = field.containing_oneof and field.containing_oneof.name
        inner = fields(field.message_type) if field.message_type else None
        found[field.name] = (field.number, field.type, field.is_repeated, choice, inner)
    return found


def test_the_compiled_file_is_the_proto_file(tmp_path: Path) -> None:
    compiled = tmp_path / "compiled"
    assert protoc.main(["", f"-I{FOLDER}", f"--descriptor_set_out={compiled}", "open_inference.proto"]) == 0
    stored = FileDescriptorSet.FromString((FOLDER / "open_inference.binpb").read_bytes())
    assert FileDescriptorSet.FromString(compiled.read_bytes()) == stored


def test_messages_and_calls_are_those_of_tritonclient() -> None:
    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert theirs.full_name == SERVICE.full_name
    assert len(SERVICE.methods) == 6
    for method in SERVICE.methods:
        other = theirs.methods_by_name[method.name]
        for own_type, other_type in ((method.input_type, other.input_type), (method.output_type, other.output_type)):
            assert own_type.full_name == other_type.full_name
            assert fields(own_type) == fields(other_type)


@pytest.mark.parametrize("datatype", CONTENTS)
def test_the_http_form_reads_the_numbers_of_either_place(datatype: str) -> None:
    numbers = [0, 1, 2, 100, 200, 255]
    dtype = np.uint8 if datatype == "UINT8" else np.float32
    raw = request(datatype)
    raw.raw_input_contents.append(np.array(numbers, {"FP64": "<f8", "FP32": "<f4"}.get(datatype, "u1")).tobytes())
    for made in (raw, request(datatype, **{CONTENTS[datatype]: numbers})):
        _, tensors = read(made)
        assert tensors["input"].dtype == dtype
        assert tensors["input"].tolist() == [numbers[:3], numbers[3:]]


def test_id_parameters_and_wanted_outputs_are_kept_and_outputs_are_bytes() -> None:
    made = request(uint_contents=[1] * 6)
    made.id = "7"
    made.parameters["consult"].int64_param = 2
    made.parameters["without"].string_param = "oslo,lima"
    made.parameters["coverage"].double_param = 0.5
    made.parameters["max_away"].double_param = float("nan")
    made.parameters["binary_data_output"].bool_param = False
    made.outputs.add(name="label")
    infer_request, _ = read(made)
    assert infer_request.id == "7"
    assert infer_request.parameters == {
        "consult": 2, "without": "oslo,lima", "coverage": 0.5, "max_away": "nan", "binary_data_output": True,
    }  # fmt: skip
    assert [output.name for output in infer_request.outputs] == ["label"]
    assert read(request(uint_contents=[1] * 6))[0].outputs is None


def test_tensors_that_do_not_fit_are_errors() -> None:
    for contents, parts in (
        ({"uint_contents": [256] * 6}, ("'input'", "0 to 255")),
        ({"uint_contents": [1] * 5}, ("[2, 3]", "UINT8", "6 bytes")),
        ({}, ("[2, 3]", "6 bytes")),
        ({"fp32_contents": [1.0] * 6}, ("6 bytes",)),
    ):
        with refused(*parts):
            read(request(**contents))
    with refused("datatype", "UINT8", "FP32"):
        read(request("INT64", int64_contents=[1] * 6))
    with refused("shape"):
        read(request(shape=(-1,)))
    for number, contents in ((2, {}), (1, {"uint_contents": [1] * 6})):
        made = request(**contents)
        made.raw_input_contents.extend([bytes(6)] * number)
        with refused(f"{number} raw_input_contents for 1 inputs"):
            read(made)


@given(
    st.sampled_from([*CONTENTS, "BYTES", ""]),
    st.lists(st.integers(-2, 2**63 - 1) | st.integers(0, 3), max_size=3),
    st.dictionaries(
        st.sampled_from([*CONTENTS.values(), "bool_contents"]), st.lists(st.integers(0, 300), max_size=6), max_size=2
    ),
    st.lists(st.binary(max_size=8), max_size=2),
    st.floats() | st.none(),
)
def test_any_message_is_read_or_refused(
    datatype: str, shape: list[int], contents: dict[str, list[int]], raw: list[bytes], parameter: float | None
) -> None:
    made = request(datatype, tuple(shape), **contents)
    made.raw_input_contents.extend(raw)
    made.parameters["coverage"].SetInParent()
    if parameter is not None:
        made.parameters["coverage"].double_param = parameter
    try:
        infer_request, tensors = read(made)
    except FeddrmError:
        return
    assert list(tensors["input"].shape) == shape
    assert infer_request.parameters["coverage"] in (parameter, str(parameter))


def test_an_answer_of_the_http_form_becomes_a_response() -> None:
    outputs = {"margin": np.array([[0.5, np.nan]]), "sure": np.array([True]), "client": ["Ås", ""]}
    infer_request, _ = read(request(uint_contents=[1] * 6))
    content, headers = write_answer({"model_name": "m", "model_version": "v", "id": "7"}, outputs, infer_request)
    response = infer_response(content, int(headers[LENGTH_HEADER]))
    assert (response.model_name, response.model_version, response.id) == ("m", "v", "7")
    assert [(out.name, out.datatype, list(out.shape)) for out in response.outputs] == [
        ("margin", "FP32", [1, 2]), ("sure", "BOOL", [1]), ("client", "BYTES", [2]),
    ]  # fmt: skip
    margin, sure, client = response.raw_output_contents
    assert margin == np.array([0.5, np.nan], "<f4").tobytes()
    assert (sure, client) == (b"\1", b"\3\0\0\0\xc3\x85s\0\0\0\0")


@pytest.mark.parametrize("field", ["inputs", "outputs", "parameters", "shape"])
def test_what_is_there_too_often_is_not_translated_and_refused(field: str) -> None:
    """The translation comes before the check of the key, and a message of 8 MiB has room for millions."""
    made = request(uint_contents=[1] * 6)
    for number in range(1000):
        match field:
            case "parameters":
                made.parameters[f"p{number}"].int64_param = 1
            case "shape":
                made.inputs[0].shape.append(1)
            case "inputs":
                made.inputs.add().CopyFrom(made.inputs[0])
            case _:
                made.outputs.add()
    assert len(infer_head(made)) < 2000
    with refused(field, "at most"):
        read(made)
