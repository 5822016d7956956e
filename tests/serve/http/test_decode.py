from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import threading
import zlib

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.types import Message

from feddrm.errors import FeddrmError
from feddrm.serve.http.decode import (
    DECODERS,
    SMALL_JSON,
    SMALL_PNG,
    InputSpec,
    decode_samples,
    in_decoder,
    needs_thread,
    options_in,
    read_body,
)
from feddrm.serve.http.error_responses import ApiError
from feddrm.serve.schemas import Options, PredictOptions, PredictorOptions
from feddrm.serve.settings import HttpSettings
from feddrm.tables.column_kinds import CategoryColumn, NumberColumn
from feddrm.tables.table_schema import TableSchema
from refusal import refused

GREY = InputSpec((1, 4, 4), 3, None, max_rows=8, max_pixels=10_000)
TABLE = InputSpec((2,), 3, ("age", "dose"), max_rows=8, max_pixels=10_000)
JSON = "application/json"


def png(*size: int, mode: str = "L") -> bytes:
    out = io.BytesIO()
    Image.new(mode, size or (4, 4), 7 if mode == "L" else (1, 2, 3)).save(out, "PNG")
    return out.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def decode(body: object, spec: InputSpec = GREY, options: type[Options] = Options) -> tuple[str, np.ndarray, Options]:
    return decode_samples(json.dumps(body).encode(), JSON, {}, spec, options)


def test_every_way_to_give_a_sample() -> None:
    pixels = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)
    found = decode({"inputs": pixels.tolist()})[1]
    assert found.dtype == np.uint8
    assert np.array_equal(found, pixels)
    kind, x, _ = decode({"inputs": pixels.astype(float).tolist(), "datatype": "float32"})
    assert (kind, x.dtype) == ("inputs", np.float32)
    kind, x, options = decode({"features": [[1, 2, 3.5]], "rule": "posterior"})
    assert (kind, x.tolist(), options.rule) == ("features", [[1, 2, 3.5]], "posterior")
    assert decode({"rows": [{"dose": 2, "age": 1}]}, TABLE)[1].tolist() == [[1, 2]]
    assert decode({"image": base64.b64encode(png()).decode()})[1].tolist() == [[[[7] * 4] * 4]]
    kind, x, options = decode_samples(png(9, 9), "image/png", {"without": "a,b", "consult": "2"}, GREY, PredictOptions)
    assert (x.shape, options.without, options.consult) == ((1, 1, 4, 4), ("a", "b"), 2)
    raw = np.array([[1, 2, 3], [4, 5, 6]], "<f4").tobytes()
    assert decode_samples(raw, "application/octet-stream", {}, GREY, Options)[1].tolist() == [[1, 2, 3], [4, 5, 6]]
    given = {"kind": "inputs", "datatype": "uint8"}
    assert decode_samples(bytes(32), "application/octet-stream", given, GREY, Options)[1].shape == (2, 1, 4, 4)


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
        ({"inputs": []}, "inputs of shape [0]: give [n, "),
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
        ({"features": [[1, 2, 3]], "coverage": 0}, "coverage is 0: give more than 0"),
        ({"features": [[1, 2, 3]], "rule": "best"}, "rule is 'best': give 'density'"),
        (
            {"features": [[1, 2, 3]], "coverge": 0},
            "unknown option 'coverge'; did you mean 'coverage'? (there are: image, ",
        ),
        ({"rows": [{"age": [1]}]}, "row 0: column 'age' is a list: give a number, a text, true, false or null"),
        ({"rows": [{"age": 1}, 5]}, "rows.1 is 5: give an object"),
    ],
)
def test_json_that_does_not_fit_is_an_error(body: object, part: str) -> None:
    with refused(part):
        decode(body)


@pytest.mark.parametrize(
    "body",
    [
        {"rows": [5] * 10_000},
        {"rows": [{"a": []}] * 10_000},
        {"rows": [{str(i): [] for i in range(10_000)}]},
        {"features": [[1, 2, 3]], "without": [5] * 10_000},
        {str(i): 5 for i in range(10_000)},
    ],
    ids=["rows", "cells", "columns", "without", "options"],
)
def test_the_first_of_many_mistakes_is_the_only_error(body: object) -> None:
    """pydantic's errors of millions take gigabytes, and hold up all other requests."""
    with refused() as caught:
        decode(body)
    cause = caught.value.__cause__
    assert cause is None or (isinstance(cause, ValidationError) and cause.error_count() == 1)


@pytest.mark.parametrize("name", ["features", "inputs", "rows", "without", "unknown"])
def test_millions_of_empty_lists_are_refused_before_they_are_parsed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They fit the largest body, and took five seconds in which the gateway did nothing else."""
    monkeypatch.setattr("feddrm.serve.http.decode.orjson.loads", lambda body: pytest.fail("it was parsed"))
    body = b'{"%b":[%b]}' % (name.encode(), b",".join([b"[]"] * 2_000_000))
    with refused("the body has 2000002 lists and objects", "give fewer samples"):
        decode_samples(body, "application/json", {}, GREY, Options)


def test_options_of_json_in_the_query_string_are_an_error() -> None:
    """They would be ignored, and the answer would look like the one asked for."""
    with refused("option 'rule' is in the query string", "JSON body"):
        decode_samples(b'{"features": [[1, 2, 3]]}', JSON, {"rule": "posterior"}, GREY, Options)


def test_rows_must_have_exactly_the_columns_of_the_table() -> None:
    with refused("misses", "dose"):
        decode({"rows": [{"age": 1}]}, TABLE)
    with refused("unknown", "x"):
        decode({"rows": [{"age": 1, "dose": 2, "x": 3}]}, TABLE)
    with refused("not pictures"):
        decode_samples(png(), "image/png", {}, TABLE, Options)
    with refused("uint8", "float32"):
        decode({"inputs": [[1, 2]], "datatype": "uint8"}, TABLE)


def test_pictures_that_do_not_fit_and_unknown_content_types_are_errors() -> None:
    with refused("101 x 100", "10000"):
        decode_samples(png(101, 100), "image/png", {}, GREY, Options)
    with refused("colours"):
        decode_samples(png(4, 4, mode="RGB"), "image/png", {}, GREY, Options)
    with refused("text/html", "application/json"):
        decode_samples(b"", "text/html", {}, GREY, Options)


def test_shades_of_grey_may_be_saved_as_colours() -> None:
    out = io.BytesIO()
    Image.new("RGB", (4, 4), (7, 7, 7)).save(out, "PNG")
    _, grey, _ = decode_samples(png(4, 4), "image/png", {}, GREY, Options)
    _, saved_as_rgb, _ = decode_samples(out.getvalue(), "image/png", {}, GREY, Options)
    assert saved_as_rgb.tolist() == grey.tolist()


def test_a_decompression_bomb_is_not_decoded() -> None:
    """A short body with ten thousand million pixels."""
    side = 100_000
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")
    with refused("the picture", "shrink it"):
        decode_samples(bomb, "image/png", {}, GREY, Options)


@given(st.binary(max_size=300), st.sampled_from([JSON, "image/png", "image/jpeg", "application/octet-stream", "x/y"]))
def test_arbitrary_bytes_are_decoded_or_an_error(body: bytes, sort: str) -> None:
    try:
        kind, x, _ = decode_samples(body, sort, {}, GREY, Options)
    except FeddrmError:
        return
    assert np.isfinite(x).all()
    assert kind in ("inputs", "features")


def test_short_json_bytes_and_tiny_png_files_are_decoded_in_the_event_loop() -> None:
    assert not needs_thread(png(4, 4), "image/png")
    assert not needs_thread(b'{"features": [[1, 2, 3]]}', JSON)
    assert not needs_thread(bytes(10**6), "application/octet-stream")


def test_a_tiny_png_file_holds_less_than_half_a_megabyte_of_pixels() -> None:
    """So decoding one in the event loop takes milliseconds: deflate packs at most 1,032 bytes into one."""
    assert len(png(730, 730)) > SMALL_PNG


@pytest.mark.parametrize("content_type", ["image/png", JSON])
def test_a_picture_of_many_pixels_is_decoded_in_a_thread_however_short_its_file(content_type: str) -> None:
    side = 1000
    body, spec = png(side, side), InputSpec((1, 4, 4), 3, None, max_rows=8, max_pixels=side * side - 1)
    assert SMALL_PNG < len(body) < SMALL_JSON
    bodies = [body]
    if content_type == JSON:  # also with an escaped name
        text = base64.b64encode(body).decode()
        bodies = [f'{{{name}: "{text}"}}'.encode() for name in ('"image"', r'"im\u0061ge"')]
    for given_body in bodies:
        assert needs_thread(given_body, content_type)
        with refused(f"{side} x {side}"):  # this picture would be decoded
            decode_samples(given_body, content_type, {}, spec, Options)


def test_long_json_and_other_picture_formats_are_decoded_in_a_thread() -> None:
    assert needs_thread(b" " * (SMALL_JSON + 1), JSON)
    assert needs_thread(b"GIF89a", "image/gif")
    assert needs_thread(b"RIFF", "image/png")  # the content type may be wrong


def test_few_bodies_are_decoded_at_once_and_other_work_does_not_wait_behind_them() -> None:
    begun, release = threading.Semaphore(0), threading.Event()

    def decode() -> None:
        begun.release()
        release.wait(60)

    async def ask() -> None:
        waiting = [asyncio.create_task(in_decoder(decode)) for _ in range(3 * DECODERS)]
        for _ in range(DECODERS):
            assert await asyncio.to_thread(begun.acquire, timeout=60)
        assert not begun.acquire(timeout=0.05)  # all others wait
        release.set()
        await asyncio.gather(*waiting)

    asyncio.run(ask())


def test_the_length_of_a_body_in_many_pieces_is_counted_once() -> None:
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
        return asyncio.run(read_body(request, HttpSettings(max_body_bytes=limit)))

    assert body(2000) == b"ab" * 1000
    assert counted <= 2 * len(pieces)
    with pytest.raises(ApiError, match="more than 1999 bytes"):
        body(1999)
    assert body(2000, b"0" * 5000 + b"2000") == b"ab" * 1000


PATIENT = TableSchema(
    (NumberColumn("age", centre=50, scale=10), CategoryColumn("sex", categories={"f": "f", "m": "m"}, missing=True))
)
RAW = InputSpec((3,), 3, PATIENT.encoded, max_rows=2, max_pixels=1, schema=PATIENT)


def test_rows_with_a_schema_are_raw_unless_they_have_its_inputs() -> None:
    assert decode({"rows": [{"sex": "m", "age": "60"}, {"age": 40, "sex": None}]}, RAW)[1].tolist() == [
        [1, 1, 0],
        [-1, 0, 1],
    ]
    assert decode({"rows": [{"age": 1, "sex": -1, "sex_missing": 0}]}, RAW)[1].tolist() == [[1, -1, 0]]


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ([], "0 samples"),
        ([{"age": 1, "sex": "m"}] * 3, "3 samples: give 1 to 2"),
        ([{"age": True, "sex": "m"}], "column 'age' is True: give a number"),
        ([{"age": 1}], "column 'sex' is None: the column is not there: give one of f, m, or null"),
        ([{"age": 1, "sex": "x", "sex_missing": 0}], "column 'sex' is no number"),
        ([{"age": [1], "sex": "m"}], "row 0: column 'age' is a list"),
    ],
)
def test_rows_that_do_not_fit_a_schema_are_refused(rows: list[dict[str, object]], part: str) -> None:
    with refused(part):
        decode({"rows": rows}, RAW)


def test_text_in_rows_without_a_schema_is_refused() -> None:
    for cell in ("3", None, True):
        with refused("column 'dose' is no number"):
            decode({"rows": [{"age": 1, "dose": cell}]}, TABLE)


def test_a_compressed_body_is_refused_before_it_is_read() -> None:
    async def receive() -> Message:
        raise AssertionError

    request = Request({"type": "http", "headers": [(b"content-encoding", b"gzip")]}, receive)
    with pytest.raises(ApiError, match="Content-Encoding") as error:
        asyncio.run(read_body(request, HttpSettings()))
    assert error.value.status == 415


def test_identity_is_no_compression_in_any_case() -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"x"}

    for name in (b"identity", b"Identity"):
        request = Request({"type": "http", "headers": [(b"content-encoding", name)]}, receive)
        assert asyncio.run(read_body(request, HttpSettings())) == b"x"


@pytest.mark.parametrize("without", [["a", "b"], "a,b", "a,,b,"])
def test_parameters_of_an_infer_request_are_options(without: object) -> None:
    options = options_in({"without": without, "coverage": 0.5, "sequence_id": 7}, Options)
    assert (options.without, options.coverage) == (("a", "b"), 0.5)
    with refused("without"):
        options_in({"without": 7}, Options)


@pytest.mark.parametrize("options", [Options, PredictOptions, PredictorOptions])
def test_a_misspelt_parameter_of_an_infer_request_is_refused_and_those_of_the_protocol_are_not(
    options: type[BaseModel],
) -> None:
    defaults = options()
    sent = dict.fromkeys(("timeout", "priority", "sequence_id", "sequence_start", "sequence_end"), 1)
    assert options_in({**sent, "binary_data_output": True, "triton_final_response": True}, options) == defaults
    known = ", ".join(options.model_fields)
    for name, text in (("max_awy", "unknown option 'max_awy'"), ("x" * 999, f"unknown option '{'x' * 64}'")):
        with refused(text, f"(there are: {known})"):
            options_in({"binary_data_output": True, name: 1}, options)
    with refused("did you mean 'label_miss'" if "label_miss" in known else "label_mis'"):
        options_in({"label_mis": 0.1}, options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/v1/traffic?aftr=3", "unknown option 'aftr'; did you mean 'after'? (there are: after)"),
        ("/v1/clients?client=fax", "unknown option 'client': there are none here, leave it out"),
        ("/metrics?name[]=up&x", "unknown option 'name[]': there are none here, leave it out"),
        ("/v1/traffic?after=3", None),
        ("/v1/traffic?", None),
        ("/?utm_source=mail", None),
    ],
)
def test_what_a_query_string_cannot_have_is_refused(http: httpx.Client, path: str, error: str | None) -> None:
    answer = http.get(path)
    assert answer.status_code == (200 if error is None else 422)
    assert error is None or answer.json()["error"] == error
