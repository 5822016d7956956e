"""Requests that a fuzzer makes from the OpenAPI document: valid, almost valid and absurd ones."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from serving import Launch, Process

pytestmark = pytest.mark.slow

pytest.importorskip("schemathesis", reason="pip install 'feddrm[dev]' to run this")
SENDERS = 4


def fuzz(url: str, examples: int, folder: Path) -> int:
    """Let schemathesis send requests; returns their number. No response may be a 5xx or differ from the document.

    The requests are written to ``folder/requests.har``.
    """
    checks = "not_a_server_error,status_code_conformance,response_schema_conformance,content_type_conformance"
    words = [f"{url}/openapi.json", "--phases", "coverage,fuzzing", "--max-examples", str(examples), "--checks", checks,
             "--seed", "1", "--no-shrink", "--continue-on-failure", "--generation-database", "none",
             "--exclude-path", "/v1/admin/reload", "--warnings", "off",
             "--report", "har", "--report-har-path", "requests.har"]  # fmt: skip
    script = "from schemathesis.cli import schemathesis; schemathesis()"
    done = subprocess.run(
        [sys.executable, "-c", script, "run", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    numbers = re.findall(r"(\d+) generated", done.stdout)
    assert numbers, done.stdout[-3000:]
    return int(numbers[-1])


class Request(NamedTuple):
    """One request, sent as it is."""

    method: str
    path: str
    kind: str
    body: bytes


def recorded_requests(folder: Path) -> list[Request]:
    """The fuzzer's requests that have a body."""
    found = []
    for entry in json.loads((folder / "requests.har").read_text())["log"]["entries"]:
        asked = entry["request"]
        if (given := asked.get("postData")) is not None:
            text = given.get("text") or ""
            body = base64.b64decode(text) if given.get("encoding") == "base64" else text.encode(errors="replace")
            url = httpx.URL(asked["url"])
            found.append(Request(asked["method"], url.raw_path.decode(), given.get("mimeType", ""), body))
    return found


ODD: list[Any] = [None, True, -1, 0, 1e308, 2**63, 0.5, "", "a", "\x00", "ü" * 300, [], {}, [[]], [[0.0] * 16],
                  [[[[7] * 8] * 8]], {"name": "input"}, "density", "uint8"]  # fmt: skip
KINDS = ["application/json", "application/octet-stream", "image/png", "image/gif", "text/plain", "", "a" * 5000]
QUERIES = ["", "?kind=inputs&datatype=uint8", "?without=,&coverage=", "?%"]
PATHS = ["/v1/route", "/v1/predict", "/v2/models/router/infer", "/v2/models/federation/infer"]


def valid_requests() -> list[Request]:
    """Requests that are answered with 200. With one change they get further than arbitrary ones."""
    features = [[0.1] * 16] * 2
    tensor = {"name": "features", "datatype": "FP32", "shape": [2, 16], "data": features}
    options = {"rule": "posterior", "coverage": 0.9, "without": ["fax"]}
    bodies: dict[str, list[Any]] = {
        "/v1": [{"features": features, **options}, {"inputs": [[[[7] * 8] * 8]], "datatype": "uint8"}],
        "/v2": [{"id": "7", "inputs": [tensor], "outputs": [{"name": "client", "parameters": {"binary_data": True}}]}],
    }
    found = [
        Request("POST", path, "application/json", json.dumps(body).encode())
        for path in PATHS
        for body in bodies[path[:3]]
    ]
    return [*found, Request("POST", "/v1/route?kind=features", "application/octet-stream", bytes(128))]


def mutated(request: Request, chance: random.Random) -> Request:
    """The request with one change: in its bytes, a value of its JSON, its content type or its path."""
    method, path, kind, body = request
    match chance.randrange(6):
        case 0 if body:
            place = chance.randrange(len(body))
            body = body[:place] + bytes([chance.randrange(256)]) + body[place + 1 :]
        case 1 if body:
            body = body[: chance.randrange(len(body))]
        case 2:
            kind = chance.choice(KINDS)
        case 3:
            path = chance.choice(PATHS) + chance.choice(QUERIES)
        case _:
            try:
                body = json.dumps(_replaced(json.loads(body), chance)).encode()
            except (ValueError, RecursionError):
                body = json.dumps({chance.choice(["features", "inputs", "image", "rows"]): chance.choice(ODD)}).encode()
    return Request(method, path, kind, body)


def _replaced(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(sorted(value))
        return {**value, key: _replaced(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [*value[:place], _replaced(value[place], chance), *value[place + 1 :]]
    return chance.choice(ODD)


def send_all(url: str, requests: Iterator[Request]) -> Counter[int]:
    """Send all requests; returns the statuses. Every error must be one line of JSON without internals.

    By the standard library: httpx takes as long for a request as the gateway.
    """

    def send(part: list[Request]) -> Counter[int]:
        codes: Counter[int] = Counter()
        with closing(HTTPConnection(httpx.URL(url).netloc.decode(), timeout=30)) as http:
            for method, path, kind, body in part:
                http.request(method, path, body, {"Content-Type": kind})
                answer = http.getresponse()
                content = answer.read()
                codes[answer.status] += 1
                assert answer.status != 500, (method, path, kind, body[:500])
                if answer.status >= 400:
                    error = json.loads(content)["error"]
                    assert error
                    assert "\n" not in error
                    assert not any(word in error for word in ("Traceback", "Input should", "not permitted")), error
                    assert len(error) < 1000, error[:200]
        return codes

    listed = list(requests)
    with ThreadPoolExecutor(SENDERS) as pool:
        return sum(pool.map(send, [listed[i::SENDERS] for i in range(SENDERS)]), Counter())


def resident_mib(process: Process) -> float:
    page = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in page.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


@pytest.fixture
def gateway(run: Path, launch: Launch, tmp_path: Path) -> Iterator[Process]:
    """A gateway with clients, of its own because its memory is measured."""
    process = launch("serve", run, "--demo", "--port", 0, "--audit", tmp_path / "a.sqlite", "--log-level", "error")
    process.wait_ready()
    yield process
    assert 'status="500"' not in httpx.get(f"{process.url}/metrics").text
    assert "Traceback" not in process.whole_log()


def test_ten_thousand_fuzzed_and_mutated_requests_leave_memory_flat(gateway: Process, tmp_path: Path) -> None:
    """A few hundred requests by the fuzzer, then thousands of mutations of them and of valid ones."""
    made = fuzz(gateway.url, 5, tmp_path)
    recorded, chance = recorded_requests(tmp_path), random.Random(1)
    assert len(recorded) > 100
    assert set(send_all(gateway.url, iter(valid_requests()))) == {200}
    known = recorded + valid_requests() * (len(recorded) // len(valid_requests()))  # half and half
    codes = send_all(gateway.url, (mutated(chance.choice(known), chance) for _ in range(2000)))
    before = resident_mib(gateway)
    codes += send_all(gateway.url, (mutated(chance.choice(known), chance) for _ in range(10_000 - made - 2000)))
    after = resident_mib(gateway)
    print(f"{made + codes.total()} requests: {dict(codes)}; {before:.1f} MiB, then {after:.1f} MiB")
    assert made + codes.total() >= 10_000
    assert {200, 415, 422} <= set(codes)
    assert after < 1.05 * before


def test_a_predictor_answers_as_its_document_says(run: Path, launch: Launch, tmp_path: Path) -> None:
    """One without scores for label sets, which it answers with 409."""
    copy = Path(shutil.copytree(run, tmp_path / "run")) / "clients" / "fax"
    (copy / "temperature.json").unlink()
    process = launch("serve-client", copy, "--port", 0, "--log-level", "error")
    assert fuzz(process.wait_ready(), 5, tmp_path) > 50
    tensor = {"name": "features", "datatype": "FP32", "shape": [1, 16], "data": [[0.1] * 16]}
    body = {"inputs": [tensor], "parameters": {"label_miss": 0.1}}
    answer = httpx.post(f"{process.url}/v2/models/fax/infer", json=body)
    document = httpx.get(f"{process.url}/openapi.json").json()["paths"]["/v2/models/{model}/infer"]["post"]
    assert (answer.status_code, "409" in document["responses"]) == (409, True)


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("FEDDRM_LONG"), reason="set FEDDRM_LONG=1: it takes minutes")
def test_ten_thousand_fuzzed_requests_leave_memory_flat(gateway: Process, tmp_path: Path) -> None:
    made = fuzz(gateway.url, 50, tmp_path)
    before = resident_mib(gateway)
    while made < 10_000:
        made += fuzz(gateway.url, 300, tmp_path)
    after = resident_mib(gateway)
    print(f"{made} requests, {before:.1f} MiB then {after:.1f} MiB")
    assert after < 1.1 * before
