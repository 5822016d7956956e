"""The Open Inference Protocol, version 2: its messages as JSON, tensors in JSON or after it as plain bytes.

The bytes follow the protocol's binary extension: ``Inference-Header-Content-Length`` says where the
JSON ends, and a tensor's ``binary_data_size`` how many bytes are its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from feddrm.errors import FeddrmError
from feddrm.serve.settings import explain

HEADER = "Inference-Header-Content-Length"
DTYPES: dict[str, np.dtype[Any]] = {"UINT8": np.dtype("uint8"), "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")}
Size = Annotated[int, Field(ge=0, le=2**31)]


class TensorIn(BaseModel):
    """One named input."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str = Field(max_length=64)
    shape: list[Size] = Field(min_length=1, max_length=8)
    datatype: Literal["UINT8", "FP32", "FP64"]
    parameters: dict[str, Any] = {}
    data: list[Any] | None = None


class InferRequest(BaseModel):
    """What is asked."""

    id: str | None = Field(None, max_length=128)
    parameters: dict[str, Any] = {}
    inputs: list[TensorIn] = Field(min_length=1, max_length=8)
    outputs: list[dict[str, Any]] | None = None


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


def read_infer(body: bytes, header_length: str | None) -> tuple[InferRequest, dict[str, Tensor]]:
    """A request and its tensors by name; what does not fit together is refused."""
    at = len(body)
    if header_length is not None:
        at = int(header_length) if header_length.isascii() and header_length.isdigit() else -1
        if not 0 < at <= len(body):
            raise FeddrmError(f"{HEADER} does not fit a body of {len(body)} bytes: give the length of the JSON part")
    try:
        request = InferRequest.model_validate_json(body[:at])
    except ValidationError as error:
        raise FeddrmError(explain(error)) from error
    tensors: dict[str, Tensor] = {}
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
        tensors[given.name] = _tensor(array.reshape(given.shape))
        at += size
    if header_length is not None and at != len(body):
        raise FeddrmError(f"{len(body) - at} bytes belong to no input: check binary_data_size")
    return request, tensors


def write_infer(name: str, rows: Tensor) -> tuple[bytes, dict[str, str]]:
    """A request with one tensor as bytes, and its headers."""
    datatype = "UINT8" if rows.dtype == torch.uint8 else "FP32"
    content = np.ascontiguousarray(rows.numpy(), DTYPES[datatype]).tobytes()
    about = {"name": name, "shape": list(rows.shape), "datatype": datatype}
    head = json.dumps({"inputs": [{**about, "parameters": {"binary_data_size": len(content)}}]}).encode()
    return head + content, {HEADER: str(len(head)), "Content-Type": "application/octet-stream"}


def write_answer(
    about: Mapping[str, Any], outputs: Sequence[dict[str, Any]], binary: bool
) -> tuple[bytes, dict[str, str]]:
    """An answer and its headers; with ``binary``, tensors of numbers follow the JSON part as bytes."""
    told, tail = [], b""
    for output in outputs:
        if binary and output["datatype"] in DTYPES:
            content = np.asarray(output["data"], DTYPES[output["datatype"]]).tobytes()
            bare = {key: value for key, value in output.items() if key != "data"}
            told.append({**bare, "parameters": {"binary_data_size": len(content)}})
            tail += content
        else:
            told.append(output)
    head = json.dumps({**about, "outputs": told}, ensure_ascii=False, allow_nan=False).encode()
    if not binary:
        return head, {"Content-Type": "application/json"}
    return head + tail, {"Content-Type": "application/octet-stream", HEADER: str(len(head))}


def numbers(data: Any, kind: np.dtype[Any], name: str) -> np.ndarray[Any, Any]:
    """Nested lists of numbers as an array of exactly this kind; anything else is refused."""
    try:
        array = np.asarray(data)
    except (ValueError, TypeError, OverflowError) as error:
        raise FeddrmError(f"{name}: rows of different length, or no numbers: give nested lists of numbers") from error
    if array.dtype.kind not in "iuf" or (kind.kind == "u" and array.dtype.kind == "f"):
        raise FeddrmError(f"{name}: give {'whole numbers' if kind.kind == 'u' else 'numbers'} only")
    if kind.kind == "u" and array.size and (array.min() < 0 or array.max() > 255):
        raise FeddrmError(f"{name}: uint8 goes from 0 to 255")
    with np.errstate(over="ignore"):
        return array.astype(kind)


def _from_numbers(given: TensorIn) -> Tensor:
    if given.data is None:
        raise FeddrmError(f"input '{given.name}' has neither data nor binary_data_size")
    array = numbers(given.data, DTYPES[given.datatype], f"input '{given.name}'")
    if array.size != math.prod(given.shape):
        raise FeddrmError(f"input '{given.name}' has {array.size} numbers, its shape {given.shape} wants others")
    return _tensor(array.reshape(given.shape))


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    with np.errstate(over="ignore"):
        return torch.from_numpy(array.astype(array.dtype if array.dtype == np.uint8 else np.float32))
