"""The Open Inference Protocol, version 2: its messages as JSON, tensors in JSON or after it as plain bytes.

The bytes follow the protocol's binary extension: ``Inference-Header-Content-Length`` says where the
JSON ends, and a tensor's ``binary_data_size`` how many bytes are its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from feddrm.errors import FeddrmError
from feddrm.serve.settings import explain

HEADER = "Inference-Header-Content-Length"
DTYPES: dict[str, np.dtype[Any]] = {"UINT8": np.dtype("uint8"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")}
LEAVES = frozenset({int, float, bool})  # bool alone is refused later, among numbers it is one
Array = NDArray[Any]
Size = Annotated[int, Field(ge=0, le=2**31)]


class TensorIn(BaseModel):
    """One named input."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str = Field(max_length=64)
    shape: list[Size] = Field(min_length=1, max_length=8)
    datatype: Literal["UINT8", "FP32", "FP64"]
    parameters: dict[str, Any] = {}
    data: list[Any] | None = None


class OutputWanted(BaseModel):
    """An output to be told; ``binary_data`` in its parameters asks for bytes."""

    name: str = Field(max_length=64)
    parameters: dict[str, Any] = {}


class InferRequest(BaseModel):
    """What is asked."""

    id: str | None = Field(None, max_length=128)
    parameters: dict[str, Any] = {}
    inputs: list[TensorIn] = Field(min_length=1, max_length=8)
    outputs: list[OutputWanted] | None = Field(None, min_length=1, max_length=8)


class TensorOut(BaseModel):
    """One named output."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class InferAnswer(BaseModel):
    """What is answered."""

    model_name: str
    model_version: str
    id: str
    parameters: dict[str, Any] = {}
    outputs: list[TensorOut]


class TensorAbout(BaseModel):
    """Name, type and shape of an input or output; -1 is any number."""

    name: str
    datatype: str
    shape: list[int]


class ModelAbout(BaseModel):
    """A model's metadata."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorAbout]
    outputs: list[TensorAbout]


class ServerAbout(BaseModel):
    """The server's metadata."""

    name: str
    version: str
    extensions: list[str]


def json_length(body: bytes, header_length: str | None) -> int:
    """How many bytes of the body are JSON: all of them, or as many as the header says."""
    if header_length is None:
        return len(body)
    # No body has a length of more digits, and int() fails on thousands of them.
    plain = header_length.isascii() and header_length.isdigit() and len(header_length) < 20
    at = int(header_length) if plain else -1
    if not 0 < at <= len(body):
        raise FeddrmError(f"{HEADER} does not fit a body of {len(body)} bytes: give the length of the JSON part")
    return at


def read_infer(body: bytes, header_length: str | None) -> tuple[InferRequest, dict[str, Array]]:
    """A request and its tensors by name; what does not fit together is refused."""
    at = json_length(body, header_length)
    try:
        request = InferRequest.model_validate_json(body[:at])
    except ValidationError as error:
        raise FeddrmError(explain(error)) from error
    tensors: dict[str, Array] = {}
    for given in request.inputs:
        size = given.parameters.get("binary_data_size")
        if given.name in tensors:
            raise FeddrmError(f"input '{given.name}' is there twice: give it once")
        if size is None:
            tensors[given.name] = _from_numbers(given)
            continue
        wanted = math.prod(given.shape) * DTYPES[given.datatype].itemsize
        if not isinstance(size, int) or isinstance(size, bool) or size != wanted or at + size > len(body):
            raise FeddrmError(f"input '{given.name}' of shape {given.shape} needs {wanted} bytes after the JSON part")
        array = np.frombuffer(body, DTYPES[given.datatype], math.prod(given.shape), at)
        tensors[given.name] = _shaped(array, given)
        at += size
    if header_length is not None and at != len(body):
        raise FeddrmError(f"{len(body) - at} bytes belong to no input: check binary_data_size")
    return request, tensors


def write_infer(name: str, rows: Array) -> tuple[bytes, dict[str, str]]:
    """A request with one tensor as bytes, and its headers."""
    datatype = "UINT8" if rows.dtype == np.uint8 else "FP32"
    content = rows.astype(DTYPES[datatype], copy=False).tobytes()
    about = {"name": name, "shape": list(rows.shape), "datatype": datatype}
    head = orjson.dumps({"inputs": [{**about, "parameters": {"binary_data_size": len(content)}}]})
    return head + content, {HEADER: str(len(head)), "Content-Type": "application/octet-stream"}


def write_answer(
    about: Mapping[str, Any], outputs: Mapping[str, Array | list[str]], asked: InferRequest
) -> tuple[bytes, dict[str, str]]:
    """An answer and its headers: the outputs asked for, numbers as JSON or, where asked for, as bytes after it.

    Words stay in the JSON part.
    """
    everything = asked.parameters.get("binary_data_output") is True
    wanted = [(one.name, one.parameters) for one in asked.outputs] if asked.outputs else [(n, {}) for n in outputs]
    told: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for name, parameters in wanted:
        if name not in outputs:
            raise FeddrmError(f"no output '{name}' (there are: {', '.join(outputs)})")
        data, binary = outputs[name], parameters.get("binary_data", everything) is True
        if isinstance(data, list):
            told.append({"name": name, "datatype": "BYTES", "shape": [len(data)], "data": data})
            continue
        datatype = "BOOL" if data.dtype == bool else "FP32"
        flat = data.astype(bool if datatype == "BOOL" else "<f4").ravel()
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(data.shape)}
        if binary:
            tail.append(flat.tobytes())
            told.append({**output, "parameters": {"binary_data_size": len(tail[-1])}})
        else:
            told.append({**output, "data": flat})
    head = orjson.dumps({**about, "outputs": told}, option=orjson.OPT_SERIALIZE_NUMPY)
    if not tail:
        return head, {"Content-Type": "application/json"}
    return b"".join((head, *tail)), {"Content-Type": "application/octet-stream", HEADER: str(len(head))}


def the_tensor(tensors: Mapping[str, Array]) -> tuple[str, Array]:
    """The one input our models take: ``"inputs"`` or ``"features"``, and its rows."""
    kind = {"input": "inputs", "features": "features"}.get(next(iter(tensors)))
    if len(tensors) != 1 or kind is None:
        raise FeddrmError("give one tensor, named 'input' or 'features'")
    return kind, next(iter(tensors.values()))


def numbers(data: Any, kind: np.dtype[Any], name: str) -> Array:
    """Nested lists of numbers as an array of exactly this kind; anything else is refused."""
    only = f"{name}: give {'whole numbers' if kind.kind == 'u' else 'numbers'} only"
    if not _leaves_are_numbers(data):
        raise FeddrmError(only)
    try:
        array = np.asarray(data)
    except (ValueError, TypeError, OverflowError) as error:
        raise FeddrmError(f"{name}: rows of different length, or no numbers: give nested lists of numbers") from error
    except MemoryError as error:
        raise FeddrmError(f"{name}: more numbers than there is memory for: send less at a time") from error
    if array.dtype.kind not in "iuf" or (kind.kind == "u" and array.dtype.kind == "f"):
        raise FeddrmError(only)
    if kind.kind == "u" and array.size and (array.min() < 0 or array.max() > 255):
        raise FeddrmError(f"{name}: uint8 goes from 0 to 255")
    with np.errstate(over="ignore"):
        return array.astype(kind)


def _leaves_are_numbers(data: Any) -> bool:
    """Looked at before NumPy does: an array of words is as wide as its longest, so little text would fill the memory.

    Level by level, whatever the depth: every value is looked at once.
    """
    level = [data]
    while level:
        kinds = set(map(type, level))
        if not kinds - LEAVES:
            return True
        if kinds - LEAVES != {list}:
            return False
        level = list(chain.from_iterable(level if kinds == {list} else (one for one in level if type(one) is list)))
    return True


def _from_numbers(given: TensorIn) -> Array:
    if given.data is None:
        raise FeddrmError(f"input '{given.name}' has neither data nor binary_data_size: give one of them")
    array = numbers(given.data, DTYPES[given.datatype], f"input '{given.name}'")
    if array.size != math.prod(given.shape):
        raise FeddrmError(f"input '{given.name}' has {array.size} numbers, its shape {given.shape} wants others")
    return _shaped(array, given)


def _shaped(array: Array, given: TensorIn) -> Array:
    try:
        return _narrowed(array.reshape(given.shape))
    except ValueError as error:  # a side of 0 hides that the others are more than any array has
        raise FeddrmError(f"input '{given.name}': no array has the shape {given.shape}: check it") from error


def _narrowed(array: Array) -> Array:
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float32)
