"""The messages of the protocol's gRPC form, and their translation to and from the HTTP form with bytes.

The classes are made at run time from ``open_inference.binpb``, the compiled ``open_inference.proto``. Generated Python
code would demand a version of protobuf, and it would define names of which another package of the same process
(tritonclient, say) may have its own definition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from feddrm.errors import FeddrmError
from feddrm.serve.http.number_array import number_array
from feddrm.serve.oip.codec import DTYPES, MAX_INPUTS, MAX_OUTPUTS, MAX_PARAMETERS, MAX_SIDES

CONTENTS = {"UINT8": "uint_contents", "FP32": "fp32_contents", "FP64": "fp64_contents"}  # the field of a datatype
_POOL = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(
    Path(__file__).with_name("open_inference.binpb").read_bytes()
).file:
    _POOL.AddSerializedFile(_file.SerializeToString())
SERVICE = _POOL.FindServiceByName("inference.GRPCInferenceService")
MESSAGES = {
    name: message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"inference.{name}"))
    for method in SERVICE.methods
    for name in (method.input_type.name, method.output_type.name)
}


def infer_head(request: Any) -> bytes:
    """The JSON part of a ``ModelInferRequest``. All outputs are wanted as bytes.

    It is made before the key is checked. So it has one more than is allowed at most of what may be there in millions.
    """
    tensors = request.inputs[: MAX_INPUTS + 1]
    inputs: list[dict[str, Any]] = [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape[: MAX_SIDES + 1])}
        for tensor in tensors
    ]
    for place, (tensor, written) in enumerate(zip(tensors, inputs, strict=True)):
        if request.raw_input_contents:
            written["parameters"] = {"binary_data_size": len(_raw(request, place))}
        elif field := CONTENTS.get(tensor.datatype):
            size = len(getattr(tensor.contents, field)) * DTYPES[tensor.datatype].itemsize
            written["parameters"] = {"binary_data_size": size}
    head = {"inputs": inputs, "parameters": {**_values(request.parameters), "binary_data_output": True}}
    if request.outputs:
        head["outputs"] = [{"name": output.name} for output in request.outputs[: MAX_OUTPUTS + 1]]
    return orjson.dumps(head | ({"id": request.id} if request.id else {}))


def infer_tail(request: Any) -> bytes:
    """The bytes after the JSON part of a ``ModelInferRequest``; an error if it does not say which are whose."""
    given, tensors = len(request.raw_input_contents), len(request.inputs)
    if given:
        if given != tensors or any(tensor.HasField("contents") for tensor in request.inputs):
            raise FeddrmError(
                f"{given} raw_input_contents for {tensors} inputs: give one for every input, and no contents besides"
            )
        return b"".join(request.raw_input_contents)
    parts = []
    for tensor in request.inputs:
        field = CONTENTS.get(tensor.datatype)
        if field and (values := list(getattr(tensor.contents, field))):
            parts.append(number_array(values, DTYPES[tensor.datatype], f"input '{tensor.name}'").tobytes())
    return b"".join(parts)


def infer_response(content: bytes, head_length: int) -> Any:
    """The ``ModelInferResponse`` of an answer of the HTTP form whose outputs are all bytes."""
    head, position = orjson.loads(content[:head_length]), head_length
    response = MESSAGES["ModelInferResponse"]()
    response.model_name, response.model_version, response.id = head["model_name"], head["model_version"], head["id"]
    for output in head["outputs"]:
        response.outputs.add(name=output["name"], datatype=output["datatype"], shape=output["shape"])
        size = output["parameters"]["binary_data_size"]
        response.raw_output_contents.append(content[position : position + size])
        position += size
    return response


def _raw(request: Any, place: int) -> bytes:
    contents: bytes = request.raw_input_contents[place] if place < len(request.raw_input_contents) else b""
    return contents


def _values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as JSON has them. It has no infinite numbers; as text they are refused like any other wrong value."""
    values = {
        name: getattr(value, value.WhichOneof("parameter_choice") or "", None)
        for name, value in islice(parameters.items(), MAX_PARAMETERS + 1)
    }
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
