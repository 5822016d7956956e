"""From an HTTP request to samples: the body is read and decoded within strict limits."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl
from weakref import WeakKeyDictionary

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from feddrm.data.sources.images import decode_image, has_colours
from feddrm.errors import FeddrmError
from feddrm.registry import listing, nearest
from feddrm.serve.http.error_responses import ApiError
from feddrm.serve.http.number_array import number_array, require_few_lists
from feddrm.serve.schemas import (
    PICTURE_TYPES,
    Cell,
    Options,
    PredictOptions,
    PredictRequest,
    RawOptions,
    RouteRequest,
    SampleFields,
)
from feddrm.serve.settings import HttpSettings, as_given, first_problem
from feddrm.serve.telemetry.tracing import span
from feddrm.tables.table_schema import TableSchema

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
SMALL_JSON = 2**14  # bytes of JSON that are parsed in the event loop
SMALL_PNG = 512  # bytes of a PNG file that are decoded in the event loop
DECODERS = 4  # bodies that are decoded at once: a short file can unpack to 64 MB of pixels, and a copy of them
DEFAULTS: dict[type[Options], Any] = {Options: RouteRequest(), PredictOptions: PredictRequest()}
# Parameters of the Open Inference Protocol's extensions, which its clients may send with any request.
PROTOCOL_PARAMETERS = frozenset(("binary_data_output", "content_type", "headers", "priority", "timeout",
                                 "sequence_id", "sequence_start", "sequence_end"))  # fmt: skip
TRITON = "triton_"  # the beginning of further ones
CELL_TYPES = frozenset((bool, int, float, str, type(None)))
_decoders: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor] = WeakKeyDictionary()
Array = NDArray[Any]
Decoded = TypeVar("Decoded")
AnyOptions = TypeVar("AnyOptions", bound=Options)
AnyModel = TypeVar("AnyModel", bound=BaseModel)


@dataclass(frozen=True)
class InputSpec:
    """What samples must look like (shape, number of features, column names), and the limits of one request."""

    shape: tuple[int, ...]
    features: int
    columns: tuple[str, ...] | None
    max_rows: int
    max_pixels: int
    schema: TableSchema | None = None

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3


async def read_body(request: Request, settings: HttpSettings) -> bytes:
    """The whole body; an error as soon as it is too long or too slow, or if it is compressed."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "a compressed body is not read here: send it without Content-Encoding")
    given, limit = request.headers.get("content-length", ""), settings.max_body_bytes
    # int() fails on thousands of digits, which may all be leading zeros; then the bytes are counted as they arrive.
    size = int(given) if given.isdecimal() and len(given) < 20 else 0
    parts: list[bytes] = []
    received, more = 0, True
    try:
        async with asyncio.timeout(settings.body_seconds):
            while more and size <= limit:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                parts.append(message.get("body", b""))
                received += len(parts[-1])
                size = max(size, received)
                more = message.get("more_body", False)
    except TimeoutError as error:
        text = f"the body took longer than {settings.body_seconds:g} s: send less at a time"
        raise ApiError(408, text, {"Connection": "close"}) from error
    if size > limit:
        raise ApiError(413, f"a body of more than {limit} bytes: send less")
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def read_samples(
    request: Request, settings: HttpSettings, spec: InputSpec, options: type[AnyOptions]
) -> tuple[str, Array, AnyOptions]:
    """The kind of samples (``"inputs"`` or ``"features"``), the samples [n, ...] and the options of a request."""
    body = await read_body(request, settings)
    content_type = request.headers.get("content-type", "")
    query = dict(parse_qsl(str(request.scope["query_string"], "latin-1"), keep_blank_values=True))
    with span("decode"):
        if needs_thread(body, content_type):
            return await in_decoder(decode_samples, body, content_type, query, spec, options)
        return decode_samples(body, content_type, query, spec, options)


async def in_decoder(decode: Callable[..., Decoded], *arguments: object) -> Decoded:
    """What ``decode`` returns in one of the few threads that decode bodies: nothing else waits behind them."""
    loop = asyncio.get_running_loop()
    if loop not in _decoders:
        _decoders[loop] = ThreadPoolExecutor(DECODERS, thread_name_prefix="decode")
    return await loop.run_in_executor(_decoders[loop], decode, *arguments)


def needs_thread(body: bytes, content_type: str) -> bool:
    """Whether decoding may hold up the event loop. Conservative: True when unsure.

    See docs/decisions/0006-what-is-decoded-in-a-thread.md.
    """
    if content_type.startswith("application/octet-stream"):
        return False
    if content_type.startswith("application/json"):  # a backslash may be part of an escaped "image"
        return len(body) > SMALL_JSON or b'"image"' in body or b"\\" in body
    return len(body) > SMALL_PNG or not body.startswith(PNG_SIGNATURE)


def decode_samples(
    body: bytes, content_type: str, query: dict[str, str], spec: InputSpec, options: type[AnyOptions]
) -> tuple[str, Array, AnyOptions]:
    """As :func:`read_samples`, from the body, its content type and the query string."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "application/json":
        if query:
            raise FeddrmError(f"option '{next(iter(query))[:64]}' is in the query string: give it in the JSON body")
        return _from_json(body, spec, options)
    if media_type in PICTURE_TYPES:
        checked = checked_options(query, options)
        return "inputs", _from_picture(body, spec), checked
    if media_type == "application/octet-stream":
        require_known(query, {**RawOptions.model_fields, **options.model_fields})
        raw = checked_options({name: query[name] for name in RawOptions.model_fields if name in query}, RawOptions)
        others = {name: value for name, value in query.items() if name not in RawOptions.model_fields}
        checked = checked_options(others, options)
        return raw.kind, _from_bytes(body, raw, spec), checked
    raise ApiError(
        415,
        f"content type '{media_type[:64]}' is not read here: send application/json, a picture "
        f"({', '.join(PICTURE_TYPES)}) or application/octet-stream",
    )


def options_in(parameters: Mapping[str, Any], options: type[AnyModel]) -> AnyModel:
    """The options among the parameters of an infer request, which may also have parameters of the protocol.

    Any other name is an error, as in ``/v1``: the answer to a misspelt option would look like the one asked for.
    """
    given = {
        name: value
        for name, value in parameters.items()
        if name in options.model_fields or not (name in PROTOCOL_PARAMETERS or name.startswith(TRITON))
    }
    return checked_options(given, options)


def checked_options(given: Mapping[str, Any], model: type[AnyModel]) -> AnyModel:
    """Options as this model has them; an unknown name or a wrong value is an error."""
    require_known(given, model.model_fields)
    try:
        return model.model_validate(_with_list(given))
    except ValidationError as error:
        raise FeddrmError(first_problem(error.errors())) from error


async def check_query(request: Request) -> None:
    """Refuse what the query string of this path cannot have: a misspelt parameter would be ignored.

    A path can have what the OpenAPI document says. Pages, which are not in it, take anything.
    """
    route = request.scope["route"]
    if not request.scope["query_string"] or not route.include_in_schema:
        return
    described = (route.openapi_extra or {}).get("parameters", ())
    known = [parameter.alias for parameter in route.dependant.query_params]
    known += [parameter["name"] for parameter in described if parameter["in"] == "query"]
    require_known(request.query_params, known)


def require_known(names: Iterable[str], known: Collection[str]) -> None:
    """Refuse the first name that is not known. pydantic would make an error for each of perhaps a million."""
    for name in names:
        if not known:
            raise FeddrmError(f"unknown option '{name[:64]}': there are none here, leave it out")
        if name not in known:
            raise FeddrmError(f"unknown option '{name[:64]}'{nearest(name[:64], known)} {listing(known)}")


def check_samples(kind: str, x: Array, spec: InputSpec) -> Array:
    """The samples, if their shape, number and type fit and all numbers are finite; else an error."""
    shape = spec.shape if kind == "inputs" else (spec.features,)
    if x.shape[1:] != shape:
        raise FeddrmError(f"{kind} of shape {list(x.shape)}: give [n, {', '.join(map(str, shape))}]")
    if not 1 <= len(x) <= spec.max_rows:
        raise FeddrmError(f"{len(x)} samples: give 1 to {spec.max_rows} in one request")
    if x.dtype == np.uint8:
        if not (kind == "inputs" and spec.is_image):
            raise FeddrmError(f"{kind} of type uint8: give float32")
    elif not np.isfinite(x).all():
        raise FeddrmError(f"{kind} hold a number that is not finite, or too large for float32: replace it")
    return x


def _with_list(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with ``without`` as a list where it is a text: query strings and gRPC have no lists."""
    values = dict(given)
    if isinstance(values.get("without"), str):
        values["without"] = [name for name in values["without"].split(",") if name]
    return values


def _from_json(body: bytes, spec: InputSpec, options: type[AnyOptions]) -> tuple[str, Array, AnyOptions]:
    require_few_lists(body, spec.max_rows)
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FeddrmError(f"the body is no JSON ({error}): check it") from error
    if not isinstance(content, dict):
        raise FeddrmError('the body is JSON, but no object: give one such as {"features": [[...]]}')
    defaults = DEFAULTS[options]
    features = content.pop("features", None)  # checked as one array: pydantic would check number by number
    request = checked_options(content, type(defaults)) if content else defaults
    given = [name for name in ("image", "inputs", "rows") if getattr(request, name) is not None]
    given += [] if features is None else ["features"]
    if len(given) != 1:
        raise FeddrmError(f"give one of image, inputs, rows, features, not {' and '.join(given) or 'none'}")
    if features is not None:
        x = number_array(features, np.dtype("float32"), "features")
        return "features", check_samples("features", x, spec), request
    return "inputs", _from_fields(request, spec), request


def _from_fields(request: SampleFields, spec: InputSpec) -> Array:
    if request.image is not None:
        try:
            return _from_picture(base64.b64decode(request.image, validate=True), spec)
        except (binascii.Error, ValueError) as error:
            raise FeddrmError("image is no base64: encode the bytes of the picture file by it") from error
    if request.rows is not None:
        return check_samples("inputs", _from_rows(request.rows, spec), spec)
    datatype = request.datatype or ("uint8" if spec.is_image else "float32")
    return check_samples("inputs", number_array(request.inputs, np.dtype(datatype), "inputs"), spec)


def _from_bytes(body: bytes, raw: RawOptions, spec: InputSpec) -> Array:
    shape = spec.shape if raw.kind == "inputs" else (spec.features,)
    dtype = np.dtype(raw.datatype).newbyteorder("<")
    size = int(np.prod(shape)) * dtype.itemsize
    if not body or len(body) % size:
        text = f"{len(body)} bytes: one sample of {raw.kind} in {raw.datatype} has {size}: send whole samples"
        raise FeddrmError(text)
    return check_samples(raw.kind, np.frombuffer(body, dtype).reshape(-1, *shape), spec)


def _from_rows(rows: Sequence[Mapping[str, Cell]], spec: InputSpec) -> Array:
    if len(rows) > spec.max_rows:  # before all else: work on many rows takes long
        raise FeddrmError(f"{len(rows)} samples: give 1 to {spec.max_rows} in one request")
    for number, row in enumerate(rows):
        if not CELL_TYPES.issuperset(map(type, row.values())):
            column, value = next((name, cell) for name, cell in row.items() if type(cell) not in CELL_TYPES)
            raise FeddrmError(
                f"row {number}: column '{column[:64]}' is {as_given(value)}: give a number, a text, true, false or null"
            )
    if spec.schema is not None and not (rows and all(map(spec.schema.is_encoded, rows))):
        return spec.schema.encode_named(rows)
    if spec.columns is None:
        raise FeddrmError("this router knows no column names: give inputs")
    for row in rows:
        if difference := sorted(set(row) ^ set(spec.columns)):
            verb = "misses" if difference[0] in spec.columns else "has an unknown"
            raise FeddrmError(f"a row {verb} column '{difference[0][:64]}': give {', '.join(spec.columns)}")
        if texts := [column for column, value in row.items() if isinstance(value, str | bool | None)]:
            raise FeddrmError(f"rows: column '{texts[0][:64]}' is no number: give numbers only")
    with np.errstate(over="ignore"):
        return np.array([[row[column] for column in spec.columns] for row in rows], dtype=np.float32)


def _from_picture(content: bytes, spec: InputSpec) -> Array:
    if not spec.is_image:
        raise FeddrmError(f"this router takes rows of {spec.shape[0]} numbers, not pictures: send JSON")
    channels, height, width = spec.shape
    pixels = decode_image(io.BytesIO(content), "the picture", (height, width), limit=spec.max_pixels)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None].repeat(channels, 2)
    elif channels == 1:
        if has_colours(pixels):
            raise FeddrmError("the picture has colours, the router wants shades of grey: convert it")
        pixels = pixels[:, :, :1]
    return pixels.transpose(2, 0, 1)[None]
