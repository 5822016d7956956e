from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from starlette.requests import Request
from starlette.types import Message

from feddrm.errors import FeddrmError
from feddrm.serve.http.decode import SMALL, Wanted, read_query, takes_long
from feddrm.serve.http.error_responses import Refusal
from feddrm.serve.http.fast_routes import read_body
from feddrm.serve.oip.codec import HEADER, numbers, read_infer, write_infer
from feddrm.serve.oip.oip_routes import Outputs, answer_infer
from feddrm.serve.schemas import Options, PredictOptions
from feddrm.serve.settings import ServerSettings
from refusal import refused

GREY = Wanted((1, 4, 4), 3, None, rows=8, pixels=10_000)
TABLE = Wanted((2,), 3, ("age", "dose"), rows=8, pixels=10_000)
JSON = "application/json"


def png(*size: int, mode: str = "L") -> bytes:
    out = io.BytesIO()
    Image.new(mode, size or (4, 4), 7 if mode == "L" else (1, 2, 3)).save(out, "PNG")
    return out.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


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
        ({"inputs": [[[[None] * 4] * 4]]}, "whole numbers"),
        ({"features": [[1, 2, {"a": 1}]]}, "give numbers only"),
        ({"features": [1, [2, "3"], []]}, "give numbers only"),
        ({"features": [1, [2, 3], []]}, "different length"),
        ({"features": "123"}, "give numbers only"),
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
        ({"shape": [2**31, 2**31, 2**31, 0], "data": []}, "no array has the shape"),
        ({"shape": [2**31, 2**31, 2**31, 0], "parameters": {"binary_data_size": 0}}, "no array has the shape"),
    ],
)
def test_tensors_that_do_not_fit_together(tensor: dict[str, object], part: str) -> None:
    with refused(part):
        read_infer(json.dumps({"inputs": [{"name": "input", "datatype": "FP32", **tensor}]}).encode(), None)


@pytest.mark.parametrize("length", ["1" * 5000, "0" * 5000 + "2", "-1", "+2", "\u00b2", "3"])
def test_lengths_of_the_json_part_that_are_none(length: str) -> None:
    with refused(HEADER, "2 bytes"):
        read_infer(b"{}", length)


@pytest.mark.parametrize("nest", [lambda words: words, lambda words: [[[word] for word in words]]])
def test_words_take_no_more_memory_than_they_did_as_text(nest: Callable[[list[str]], list[object]]) -> None:
    """One long word would make an array as wide as it of all the empty ones beside it: 64 MB of 8 kB."""
    data = nest(["x" * 4000, *[""] * 4000])
    tracemalloc.start()
    try:
        with refused("numbers only"):
            numbers(data, np.dtype("float32"), "features")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_memory_that_is_not_there_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("feddrm.serve.oip.codec.np.asarray", full)
    with refused("memory"):
        numbers([1], np.dtype("float32"), "x")


def test_what_takes_long_cannot_pretend_otherwise() -> None:
    """Pillow decodes all of these, and with as many pixels as the last header says."""
    small = png(4, 4)
    size = 1000
    large = png(size, size)
    start, first, tail = large[:8], large[8:33], large[33:]
    assert not takes_long(small, "image/png")
    assert not takes_long(b'{"features": [[1, 2, 3]]}', JSON)
    assert not takes_long(bytes(10**6), "application/octet-stream")
    pretending = start + chunk(b"tEXt", struct.pack(">II", 1, 1) + b"\0a") + first + tail
    twice = start + small[8:33] + first + tail
    wanted = Wanted((1, 4, 4), 3, None, rows=8, pixels=size * size - 1)
    for body in (large, pretending, twice):
        assert len(body) < SMALL
        assert takes_long(body, "image/png")
        with refused(f"{size} x {size}"):  # it is this picture that would be decoded
            read_query(body, "image/png", {}, wanted, Options)
    packed = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**6)))
    assert takes_long(small[:33] + packed + small[33:], "image/png")
    text = base64.b64encode(large).decode()
    for name in ('"image"', r'"im\u0061ge"'):
        body = f'{{{name}: "{text}"}}'.encode()
        assert takes_long(body, JSON)
        with refused(f"{size} x {size}"):
            read_query(body, JSON, {}, wanted, Options)


def test_a_body_in_many_pieces_is_counted_once() -> None:
    counted = 0

    class Piece(bytes):
        def __len__(self) -> int:
            nonlocal counted
            counted += 1
            return super().__len__()

    pieces = [Piece(b"ab") for _ in range(1000)]

    def body(limit: int, length: bytes = b"") -> bytes:
        left = iter(pieces)

        async def receive() -> Message:
            piece = next(left, None)
            return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

        request = Request({"type": "http", "headers": [(b"content-length", length)]}, receive)
        return asyncio.run(read_body(request, ServerSettings(max_body_bytes=limit)))

    assert body(2000) == b"ab" * 1000
    assert counted <= 2 * len(pieces)
    with pytest.raises(Refusal, match="more than 1999 bytes"):
        body(1999)
    assert body(2000, b"0" * 5000 + b"2000") == b"ab" * 1000


@pytest.mark.parametrize(("numbers_sent", "elsewhere"), [(1, False), (SMALL, True)])
def test_much_json_is_read_in_a_thread(numbers_sent: int, elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def read(*given: Any) -> Any:
        seen.append(threading.current_thread() is not threading.main_thread())
        return read_infer(*given)

    async def receive() -> Message:
        tensor = {"name": "input", "datatype": "FP32", "shape": [numbers_sent], "data": [1] * numbers_sent}
        return {"type": "http.request", "body": json.dumps({"inputs": [tensor]}).encode(), "more_body": False}

    async def work(_: str, x: np.ndarray) -> Outputs:
        return {"sum": x.sum(keepdims=True)}

    monkeypatch.setattr("feddrm.serve.oip.oip_routes.read_infer", read)
    scope = {"type": "http", "headers": [], "path_params": {"model": "m"}, "state": {"request_id": "r"}}
    answer = asyncio.run(answer_infer(Request(scope, receive), ServerSettings(), "v", work))
    assert json.loads(answer.body)["outputs"][0]["data"] == [numbers_sent]
    assert seen == [elsewhere]


def test_numbers_never_wrap() -> None:
    with refused("0 to 255"):
        numbers([-1], np.dtype("uint8"), "x")
    assert np.isinf(numbers([1e300], np.dtype("float32"), "x")[0])  # refused where finite numbers are checked
