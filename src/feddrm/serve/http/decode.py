"""From a request's bytes to samples: strict, and bounded before anything large is made of them."""

from __future__ import annotations

import base64
import binascii
import io
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import ValidationError

from feddrm.data.sources.images import decode_image
from feddrm.errors import FeddrmError
from feddrm.serve.oip.codec import numbers
from feddrm.serve.schemas import Options, PredictOptions, PredictRequest, RawOptions, RouteRequest, Samples
from feddrm.serve.settings import explain

IMAGES = ("image/png", "image/jpeg", "image/bmp", "image/webp", "image/gif", "image/tiff", "image/x-portable-anymap")
PNG = b"\x89PNG\r\n\x1a\n"
PLAIN: dict[type[Options], Any] = {Options: RouteRequest(), PredictOptions: PredictRequest()}  # nothing but defaults
PACKED = re.compile(rb"IHDR|zTXt|iTXt|iCCP")  # of a PNG's chunks: a size that counts instead of the first, packed text
SMALL = 2**14  # pixels of a picture, bytes of it or of JSON
Array = NDArray[Any]
Checked = TypeVar("Checked", bound=Options)


@dataclass(frozen=True)
class Wanted:
    """What samples must look like: the router's own shape and width, and the limits of one request."""

    shape: tuple[int, ...]
    features: int
    columns: tuple[str, ...] | None
    rows: int
    pixels: int

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3


def read_query(
    body: bytes, content_type: str, query: dict[str, str], wanted: Wanted, kind: type[Checked]
) -> tuple[str, Array, Checked]:
    """``"inputs"`` or ``"features"``, the samples [n, ...], and the options."""
    sort = content_type.partition(";")[0].strip().lower()
    try:
        if sort == "application/json":
            return _read_json(body, wanted, kind)
        if sort in IMAGES:
            return "inputs", _picture(body, wanted), kind.model_validate(_listed(query))
        if sort == "application/octet-stream":
            own = {name: query[name] for name in RawOptions.model_fields if name in query}
            rest = {name: value for name, value in query.items() if name not in own}
            raw, options = RawOptions.model_validate(own), kind.model_validate(_listed(rest))
            return raw.kind, _bytes(body, raw, wanted), options
    except ValidationError as error:
        raise FeddrmError(explain(error)) from error
    raise WrongKind(
        f"content type '{sort[:64]}' is not read here: send application/json, a picture ({', '.join(IMAGES)}) "
        f"or application/octet-stream"
    )


def takes_long(body: bytes, content_type: str) -> bool:
    """Whether reading it would hold up the requests behind it: all but bytes, little JSON and small PNG files.

    Made to be wrong on one side only: what cannot be told by a glance takes long.
    """
    if content_type.startswith("application/octet-stream"):
        return False
    if len(body) > SMALL:
        return True
    if content_type.startswith("application/json"):
        return b'"image"' in body or b"\\" in body  # the name can be written with escapes, and they begin so
    if not (body.startswith(PNG) and body[12:16] == b"IHDR" and len(body) >= 24) or PACKED.search(body, 16):
        return True
    width, height = struct.unpack(">II", body[16:24])
    return bool(width * height > SMALL)


class WrongKind(FeddrmError):
    """A body of a kind that is not read."""


def check(kind: str, x: Array, wanted: Wanted) -> Array:
    """Samples of the right shape, not too many, all finite."""
    shape = wanted.shape if kind == "inputs" else (wanted.features,)
    if x.shape[1:] != shape:
        raise FeddrmError(f"{kind} of shape {list(x.shape)}: give [n, {', '.join(map(str, shape))}]")
    if not 1 <= len(x) <= wanted.rows:
        raise FeddrmError(f"{len(x)} samples: give 1 to {wanted.rows} in one request")
    if x.dtype == np.uint8:
        if not (kind == "inputs" and wanted.is_image):
            raise FeddrmError(f"{kind} of type uint8: give float32")
    elif not np.isfinite(x).all():
        raise FeddrmError(f"{kind} hold a number that is not finite, or too large for float32")
    return x


def _listed(query: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = dict(query)
    if "without" in found:
        found["without"] = [name for name in found["without"].split(",") if name]
    return found


def _read_json(body: bytes, wanted: Wanted, kind: type[Checked]) -> tuple[str, Array, Checked]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FeddrmError(f"the body is no JSON ({error}): check it") from error
    if not isinstance(found, dict):
        raise FeddrmError('the body is JSON, but no object: give one such as {"features": [[...]]}')
    plain = PLAIN[kind]
    features = found.pop("features", None)  # numbers enough to be worth checking as one array
    request = type(plain).model_validate(found) if found else plain
    if features is None:
        return (*_samples(request, wanted), request)
    _one_way([*_given(request), "features"])
    return "features", check("features", numbers(features, np.dtype("float32"), "features"), wanted), request


def _given(request: Samples) -> list[str]:
    return [name for name in ("image", "inputs", "rows") if getattr(request, name) is not None]


def _one_way(given: Sequence[str]) -> None:
    if len(given) != 1:
        raise FeddrmError(f"give one of image, inputs, rows, features, not {' and '.join(given) or 'none'}")


def _samples(request: Samples, wanted: Wanted) -> tuple[str, Array]:
    _one_way(_given(request))
    if request.image is not None:
        try:
            return "inputs", _picture(base64.b64decode(request.image, validate=True), wanted)
        except (binascii.Error, ValueError) as error:
            raise FeddrmError("image is not base64") from error
    if request.rows is not None:
        return "inputs", check("inputs", _table(request.rows, wanted), wanted)
    datatype = request.datatype or ("uint8" if wanted.is_image else "float32")
    return "inputs", check("inputs", numbers(request.inputs, np.dtype(datatype), "inputs"), wanted)


def _bytes(body: bytes, raw: RawOptions, wanted: Wanted) -> Array:
    shape = wanted.shape if raw.kind == "inputs" else (wanted.features,)
    kind = np.dtype(raw.datatype).newbyteorder("<")
    size = int(np.prod(shape)) * kind.itemsize
    if not body or len(body) % size:
        raise FeddrmError(f"{len(body)} bytes: one sample of {raw.kind} in {raw.datatype} has {size}")
    return check(raw.kind, np.frombuffer(body, kind).reshape(-1, *shape), wanted)


def _table(rows: Sequence[dict[str, float]], wanted: Wanted) -> Array:
    if wanted.columns is None:
        raise FeddrmError("this router knows no column names: give inputs")
    for row in rows:
        if other := sorted(set(row) ^ set(wanted.columns)):
            verb = "misses" if other[0] in wanted.columns else "has an unknown"
            raise FeddrmError(f"a row {verb} column '{other[0][:64]}': give {', '.join(wanted.columns)}")
    with np.errstate(over="ignore"):
        return np.array([[row[c] for c in wanted.columns] for row in rows], dtype=np.float32)


def _picture(content: bytes, wanted: Wanted) -> Array:
    if not wanted.is_image:
        raise FeddrmError(f"this router takes rows of {wanted.shape[0]} numbers, not pictures")
    channels, height, width = wanted.shape
    pixels = decode_image(io.BytesIO(content), "the picture", (height, width), limit=wanted.pixels)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None].repeat(channels, 2)
    elif channels == 1:
        raise FeddrmError("the picture has colours, the router wants shades of grey: convert it")
    return pixels.transpose(2, 0, 1)[None]
