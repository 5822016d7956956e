"""The codec of the Open Inference Protocol, version 2: JSON messages, with tensors in the JSON or as bytes after it.

Bytes follow the protocol's binary extension: the header ``Inference-Header-Content-Length`` gives the length of the
JSON part, and ``binary_data_size`` the number of bytes of a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from feddrm.errors import FeddrmError
from feddrm.serve.http.number_array import number_array, require_few_lists
from feddrm.serve.settings import first_problem

LENGTH_HEADER = "Inference-Header-Content-Length"
DTYPES: dict[str, np.dtype[Any]] = {"UINT8": np.dtype("uint8"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")}
# What a request may have of each; the gRPC form translates one more at most, so that this form refuses it.
MAX_INPUTS, MAX_OUTPUTS, MAX_SIDES, MAX_PARAMETERS = 8, 16, 8, 64
Array = NDArray[Any]
Size = Annotated[int, Field(ge=0, le=2**31)]


class TensorIn(BaseModel):
    """One named input."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str = Field(max_length=64, description="the name of the input, from the model's metadata")
    shape: list[Size] = Field(min_length=1, max_length=MAX_SIDES, fail_fast=True, description="samples first")
    datatype: Literal["UINT8", "FP32", "FP64"] = Field(description="the type of the numbers")
    parameters: dict[str, Any] = Field(default={}, description="binary_data_size: its bytes after the JSON part")
    data: list[Any] | None = Field(default=None, description="the numbers, flat or nested; null if they are bytes")


class OutputWanted(BaseModel):
    """A wanted output."""

    name: str = Field(max_length=64, description="the name of the output, from the model's metadata")
    parameters: dict[str, Any] = Field(default={}, description="binary_data: whether to answer it as bytes")


class InferRequest(BaseModel):
    """An infer request."""

    id: str | None = Field(None, max_length=128, description="the caller's name of the request; the answer repeats it")
    parameters: dict[str, Any] = Field(
        default={},
        max_length=MAX_PARAMETERS,
        description="options, and none misspelt; binary_data_output: answer all as bytes",
    )
    inputs: list[TensorIn] = Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True, description="the samples")
    outputs: list[OutputWanted] | None = Field(
        None, min_length=1, max_length=MAX_OUTPUTS, fail_fast=True, description="the wanted outputs; null: all"
    )


class TensorOut(BaseModel):
    """One named output."""

    name: str = Field(description="as in the model's metadata")
    shape: list[int] = Field(description="samples first")
    datatype: str = Field(description="the type of the values")
    data: list[Any] = Field(description="the values, flat")


class InferAnswer(BaseModel):
    """The answer to an infer request."""

    model_name: str = Field(description="the model that answered")
    model_version: str = Field(description="its version")
    id: str = Field(description="that of the request, or one made for it")
    parameters: dict[str, Any] = Field(default={}, description="what the protocol has no field for")
    outputs: list[TensorOut] = Field(description="the wanted outputs")


class TensorAbout(BaseModel):
    """An input or output."""

    name: str = Field(description="the name of the tensor")
    datatype: str = Field(description="the type of its values")
    shape: list[int] = Field(description="samples first; -1 is any number")


class ModelAbout(BaseModel):
    """A model's metadata."""

    name: str = Field(description="the name of the model, as in its path")
    versions: list[str] = Field(description="the versions that are served")
    platform: str = Field(description="what computes")
    inputs: list[TensorAbout] = Field(description="a request gives one of them")
    outputs: list[TensorAbout] = Field(description="what an answer may have")


class ServerAbout(BaseModel):
    """The server's metadata."""

    name: str = Field(description="the name of the program")
    version: str = Field(description="its version")
    extensions: list[str] = Field(description="of the protocol, that it knows")


def json_length(body: bytes, header_length: str | None) -> int:
    """The length of the JSON part: what the header says, or the whole body without it."""
    if header_length is None:
        return len(body)
    # int() fails on thousands of digits, and no body is that long.
    is_number = header_length.isascii() and header_length.isdigit() and len(header_length) < 20
    length = int(header_length) if is_number else -1
    if not 0 < length <= len(body):
        raise FeddrmError(f"{LENGTH_HEADER} does not fit a body of {len(body)} bytes: give the length of the JSON part")
    return length


def read_infer(body: bytes, header_length: str | None, max_rows: int = 1024) -> tuple[InferRequest, dict[str, Array]]:
    """A request and its tensors by name; an error if its parts do not fit together."""
    position = json_length(body, header_length)
    require_few_lists(body[:position], max_rows)
    try:
        request = InferRequest.model_validate_json(body[:position])
    except ValidationError as error:
        raise FeddrmError(first_problem(error.errors())) from error
    tensors: dict[str, Array] = {}
    for tensor in request.inputs:
        size = tensor.parameters.get("binary_data_size")
        if tensor.name in tensors:
            raise FeddrmError(f"input '{tensor.name}' is there twice: give it once")
        if size is None:
            tensors[tensor.name] = _from_numbers(tensor)
            continue
        expected = math.prod(tensor.shape) * DTYPES[tensor.datatype].itemsize
        if not isinstance(size, int) or isinstance(size, bool) or size != expected or position + size > len(body):
            raise FeddrmError(
                f"input '{tensor.name}' of shape {tensor.shape} and type {tensor.datatype} needs {expected} bytes of "
                f"data: send as many"
            )
        array = np.frombuffer(body, DTYPES[tensor.datatype], math.prod(tensor.shape), position)
        tensors[tensor.name] = _reshape(array, tensor)
        position += size
    if header_length is not None and position != len(body):
        raise FeddrmError(f"{len(body) - position} bytes belong to no input: check binary_data_size")
    return request, tensors


def write_infer(name: str, rows: Array, parameters: Mapping[str, Any] | None = None) -> tuple[bytes, dict[str, str]]:
    """A request with one tensor as bytes, and its headers."""
    datatype = "UINT8" if rows.dtype == np.uint8 else "FP32"
    content = rows.astype(DTYPES[datatype], copy=False).tobytes()
    about = {"name": name, "shape": list(rows.shape), "datatype": datatype}
    inputs = [{**about, "parameters": {"binary_data_size": len(content)}}]
    head = orjson.dumps({"inputs": inputs, **({"parameters": parameters} if parameters else {})})
    return head + content, {LENGTH_HEADER: str(len(head)), "Content-Type": "application/octet-stream"}


def write_answer(
    about: Mapping[str, Any], outputs: Mapping[str, Array | list[str]], request: InferRequest
) -> tuple[bytes, dict[str, str]]:
    """An answer with the outputs that the request wants, and its headers.

    They are written as JSON or, if the request wants it, as bytes after the JSON.
    """
    all_binary = request.parameters.get("binary_data_output") is True
    wanted = [(out.name, out.parameters) for out in request.outputs] if request.outputs else [(n, {}) for n in outputs]
    written: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for name, parameters in wanted:
        if name not in outputs:
            raise FeddrmError(f"no output '{name}' (there are: {', '.join(outputs)})")
        data, binary = outputs[name], parameters.get("binary_data", all_binary) is True
        if isinstance(data, list):
            output: dict[str, Any] = {"name": name, "datatype": "BYTES", "shape": [len(data)]}
        else:
            datatype = "BOOL" if data.dtype == bool else "FP32"
            output = {"name": name, "datatype": datatype, "shape": list(data.shape)}
            data = data.astype(bool if datatype == "BOOL" else "<f4").ravel()
        if binary:
            tail.append(_text_bytes(data) if isinstance(data, list) else data.tobytes())
            written.append({**output, "parameters": {"binary_data_size": len(tail[-1])}})
        else:
            written.append({**output, "data": data})
    head = orjson.dumps({**about, "outputs": written}, option=orjson.OPT_SERIALIZE_NUMPY)
    if not tail:
        return head, {"Content-Type": "application/json"}
    return b"".join((head, *tail)), {"Content-Type": "application/octet-stream", LENGTH_HEADER: str(len(head))}


def json_texts(values: Sequence[Any]) -> list[str]:
    """Values as JSON texts: the protocol has no tensors of lists."""
    return [orjson.dumps(value).decode() for value in values]


def single_input(tensors: Mapping[str, Array]) -> tuple[str, Array]:
    """The kind of samples (``"inputs"`` or ``"features"``) and the samples: our models take one tensor."""
    kind = {"input": "inputs", "features": "features"}.get(next(iter(tensors)))
    if len(tensors) != 1 or kind is None:
        raise FeddrmError("give one tensor, named 'input' or 'features'")
    return kind, next(iter(tensors.values()))


def _text_bytes(texts: Sequence[str]) -> bytes:
    """Texts as the protocol's bytes: the length of each in four bytes, then its UTF-8."""
    encoded = [text.encode() for text in texts]
    return b"".join(len(text).to_bytes(4, "little") + text for text in encoded)


def _from_numbers(tensor: TensorIn) -> Array:
    if tensor.data is None:
        raise FeddrmError(f"input '{tensor.name}' has neither data nor binary_data_size: give one of them")
    array = number_array(tensor.data, DTYPES[tensor.datatype], f"input '{tensor.name}'")
    if array.size != math.prod(tensor.shape):
        needed = math.prod(tensor.shape)
        raise FeddrmError(f"input '{tensor.name}' has {array.size} numbers: its shape {tensor.shape} needs {needed}")
    return _reshape(array, tensor)


def _reshape(array: Array, tensor: TensorIn) -> Array:
    """The array in the tensor's shape, as float32 where it was float64."""
    try:
        shaped = array.reshape(tensor.shape)
    except ValueError as error:  # a side of 0 makes any product 0, though the others may exceed every limit
        raise FeddrmError(f"input '{tensor.name}': no array has the shape {tensor.shape}: check it") from error
    if shaped.dtype != np.float64:
        return shaped
    with np.errstate(over="ignore"):
        return shaped.astype(np.float32)
