from __future__ import annotations

import base64
import io
import json
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from feddrm.errors import FeddrmError
from feddrm.serve.inference import HEADER, numbers, read_infer, write_infer
from feddrm.serve.messages import Options, PredictOptions
from feddrm.serve.reading import Wanted, read_query
from refusal import refused

GREY = Wanted((1, 4, 4), 3, None, rows=8, pixels=10_000)
TABLE = Wanted((2,), 3, ("age", "dose"), rows=8, pixels=10_000)
JSON = "application/json"


def png(*size: int, mode: str = "L") -> bytes:
    out = io.BytesIO()
    Image.new(mode, size or (4, 4), 7 if mode == "L" else (1, 2, 3)).save(out, "PNG")
    return out.getvalue()


def ask(body: object, wanted: Wanted = GREY, kind: type[Options] = Options) -> tuple[str, np.ndarray, Options]:
    return read_query(json.dumps(body).encode(), JSON, {}, wanted, kind)


def test_every_way_to_give_a_sample() -> None:
    pixels = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)
    found = ask({"inputs": pixels.tolist()})[1]
    assert found.dtype == np.uint8
    assert np.array_equal(found, pixels)
    kind, x, _ = ask({"inputs": pixels.astype(float).tolist(), "datatype": "float32"})
    assert (kind, x.dtype) == ("inputs", np.float32)
    kind, x, options = ask({"features": [[1, 2, 3.5]], "rule": "posterior"})
    assert (kind, x.tolist(), options.rule) == ("features", [[1, 2, 3.5]], "posterior")
    assert ask({"rows": [{"dose": 2, "age": 1}]}, TABLE)[1].tolist() == [[1, 2]]
    assert ask({"image": base64.b64encode(png()).decode()})[1].tolist() == [[[[7] * 4] * 4]]
    kind, x, options = read_query(png(9, 9), "image/png", {"without": "a,b", "consult": "2"}, GREY, PredictOptions)
    assert (x.shape, options.without, options.consult) == ((1, 1, 4, 4), ("a", "b"), 2)
    raw = np.array([[1, 2, 3], [4, 5, 6]], "<f4").tobytes()
    assert read_query(raw, "application/octet-stream", {}, GREY, Options)[1].tolist() == [[1, 2, 3], [4, 5, 6]]
    given = {"kind": "inputs", "datatype": "uint8"}
    assert read_query(bytes(32), "application/octet-stream", given, GREY, Options)[1].shape == (2, 1, 4, 4)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({}, "give one of"),
        ({"image": "AAAA", "features": [[1, 2, 3]]}, "image and features"),
        ({"image": "?"}, "base64"),
        ({"image": "AAAA"}, "the picture cannot be read"),
        ({"features": [[1, 2]]}, "[n, 3]"),
        ({"features": [[1, 2, 3]] * 9}, "1 to 8"),
        ({"features": []}, "features"),
        ({"features": [[1, 2], [3]]}, "different length"),
        ({"features": [[1e39, 0, 0]]}, "not finite"),
        ({"inputs": [[[[256] * 4] * 4]]}, "0 to 255"),
        ({"inputs": [[[[0.5] * 4] * 4]]}, "whole numbers"),
        ({"inputs": [[[["a"] * 4] * 4]]}, "whole numbers"),
        ({"inputs": [[[[True] * 4] * 4]]}, "whole numbers"),
        ({"inputs": [10**400]}, "number is infinity"),
        ({"rows": [{"age": 1}]}, "no column names"),
        ({"features": [[1, 2, 3]], "coverage": 0}, "coverage"),
        ({"features": [[1, 2, 3]], "unknown": 0}, "unknown"),
    ],
)
def test_what_does_not_fit_is_refused(body: object, part: str) -> None:
    with refused(part):
        ask(body)


def test_tables_name_their_columns() -> None:
    with refused("misses", "dose"):
        ask({"rows": [{"age": 1}]}, TABLE)
    with refused("unknown", "x"):
        ask({"rows": [{"age": 1, "dose": 2, "x": 3}]}, TABLE)
    with refused("not pictures"):
        read_query(png(), "image/png", {}, TABLE, Options)
    with refused("uint8", "float32"):
        ask({"inputs": [[1, 2]], "datatype": "uint8"}, TABLE)


def test_pictures_are_read_strictly() -> None:
    with refused("101 x 100", "10000"):
        read_query(png(101, 100), "image/png", {}, GREY, Options)
    with refused("colours"):
        read_query(png(4, 4, mode="RGB"), "image/png", {}, GREY, Options)
    with refused("text/html", "application/json"):
        read_query(b"", "text/html", {}, GREY, Options)


def test_a_decompression_bomb_is_not_decoded() -> None:
    """Ten thousand million pixels that would fit into a short body."""
    side = 100_000

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")
    with refused("the picture", "shrink it"):
        read_query(bomb, "image/png", {}, GREY, Options)


@given(st.binary(max_size=300), st.sampled_from([JSON, "image/png", "image/jpeg", "application/octet-stream", "x/y"]))
def test_no_bytes_can_do_anything_but_be_refused_or_read(body: bytes, sort: str) -> None:
    try:
        kind, x, _ = read_query(body, sort, {}, GREY, Options)
    except FeddrmError:
        return
    assert np.isfinite(x).all()
    assert kind in ("inputs", "features")


@given(st.sampled_from([np.uint8, np.float32]), st.integers(1, 5))
def test_what_is_written_is_read(dtype: type, rows: int) -> None:
    x = np.linspace(0, 100, 6 * rows).reshape(rows, 2, 3).astype(dtype)
    body, headers = write_infer("input", x)
    _, tensors = read_infer(body, headers[HEADER])
    assert tensors["input"].dtype == dtype
    assert np.array_equal(tensors["input"], x)


@given(st.binary(max_size=200), st.one_of(st.none(), st.text(max_size=5), st.integers(-5, 300).map(str)))
def test_infer_bodies_of_any_bytes_are_refused(body: bytes, length: str | None) -> None:
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
    ],
)
def test_tensors_that_do_not_fit_together(tensor: dict[str, object], part: str) -> None:
    with refused(part):
        read_infer(json.dumps({"inputs": [{"name": "input", "datatype": "FP32", **tensor}]}).encode(), None)


def test_numbers_never_wrap() -> None:
    with refused("0 to 255"):
        numbers([-1], np.dtype("uint8"), "x")
    assert np.isinf(numbers([1e300], np.dtype("float32"), "x")[0])  # refused where finite numbers are checked
