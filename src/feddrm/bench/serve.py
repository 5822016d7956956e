"""The gateway's speed over HTTP against the same router in this process, and whether its memory grows.

The gateway is a process of its own, started by the command a user would type; callers are connections
that each wait for their answer before they ask again. With two cores the gateway has one of them. The
floor is the same server with an application that reads the request and answers the same bytes at once:
what is above it is the gateway's own.
"""

from __future__ import annotations

import asyncio
import datetime
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import torch
from PIL import Image

from feddrm.bench.load import ask_all, one_answer, post
from feddrm.data import Federation, load
from feddrm.errors import FeddrmError
from feddrm.io.run_files import ROUTER_FOLDER
from feddrm.router import Router, load_router
from feddrm.runs import hardware, train, versions
from feddrm.threads import without_onednn_if_small

Say = Callable[[str], None]
MANY = 256  # images in one request


def bench_serve(
    *, callers: Sequence[int] = (1, 8, 64), seconds: float = 5.0, requests: int = 100_000, say: Say = lambda _: None
) -> dict[str, Any]:
    """Everything, in one run, with the digits model and a router on its trunk."""
    with tempfile.TemporaryDirectory() as place:
        say("training the digits model and its router")
        digits = load("digits")
        run = Path(place) / "run"
        train(digits, "feddrm", out=run, rounds=10).fit_router(features="embedding", heads=False)
        router = load_router(run / ROUTER_FOLDER)
        images = torch.cat([client.test.x for client in digits.clients])
        bare = _bare(router, images, seconds / 2)
        say(f"bare: {bare}")
        with _gateway(run) as (port, pid):
            ways = _ways(port, router, digits)
            found: dict[str, Any] = {name: {} for name in ways}
            asyncio.run(ask_all(port, ways["embedding, JSON"][0], max(callers), 2.0))  # warm-up
            for name, (bodies, rows) in ways.items():
                for number in callers:
                    used = _cpu_seconds(pid)
                    figures = asyncio.run(ask_all(port, bodies, number, seconds))
                    used = _cpu_seconds(pid) - used
                    figures["gateway_cpu_ms_per_request"] = round(1e3 * used / figures["requests"], 4)
                    figures["samples_per_second"] = round(rows * figures["requests_per_second"], 1)
                    key = "images_per_second" if "image" in name else "embeddings_per_second"
                    figures["of_bare"] = round(figures["samples_per_second"] / bare[key][MANY], 4)
                    found[name][number] = figures
                    say(f"{name}, {number} callers: {figures}")
            memory = _memory(port, pid, ways["embedding, JSON"][0], requests, say)
            answer = one_answer(port, ways["embedding, JSON"][0][0])
        with _floor(answer, Path(place) / "floor.py") as (port, pid):
            bodies, _ = _ways(port, router, digits)["embedding, JSON"]
            floor = {number: asyncio.run(ask_all(port, bodies, number, seconds)) for number in callers}
            say(f"floor: {floor}")
    return {
        "what": "feddrm bench serve",
        "model": "digits, mlp 128-64, 8 clients, router on the embedding (64 numbers)",
        "bare": bare,
        "floor": floor,
        "http": found,
        "memory": memory,
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),  # far above two means that others computed, too
        "hardware": hardware("cpu"),
        "versions": versions() | {name: version(name) for name in ("uvicorn", "uvloop", "httptools", "orjson")},
        "date": datetime.date.today().isoformat(),
    }


def _bare(router: Router, images: torch.Tensor, seconds: float) -> dict[str, dict[int, float]]:
    """The same work without a network in between, on one thread, by the number of samples at once.

    With and without oneDNN, the better of both: it suits some processors and batches, not others.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rates: dict[str, dict[int, float]] = {"images_per_second": {}, "embeddings_per_second": {}}
    images = images.repeat(2, 1, 1, 1)
    features = router.features(images)
    try:
        for largest in (0, math.inf):
            with without_onednn_if_small(largest):
                for rows in (64, MANY, 4 * MANY):
                    for name, route, x in (
                        ("images_per_second", router.route, images[:rows]),
                        ("embeddings_per_second", router.route_features, features[:rows]),
                    ):
                        route(x)
                        began, done = time.perf_counter(), 0
                        while time.perf_counter() - began < seconds / 6:
                            route(x)
                            done += rows
                        rate = round(done / (time.perf_counter() - began), 1)
                        rates[name][rows] = max(rate, rates[name].get(rows, 0.0))
    finally:
        torch.set_num_threads(before)
    return rates


def _ways(port: int, router: Router, digits: Federation) -> dict[str, tuple[list[bytes], int]]:
    """Ready-made requests, and how many samples each holds: making them must cost the callers nothing."""
    images = torch.cat([client.test.x for client in digits.clients])
    features = router.features(images)
    raw = "application/octet-stream"

    def pictures(image: torch.Tensor) -> bytes:
        out = io.BytesIO()
        Image.fromarray(image[0].numpy()).save(out, "PNG")
        return out.getvalue()

    many = images.repeat(2, 1, 1, 1)[:MANY].numpy().tobytes()
    tensor: dict[str, Any] = {"name": "input", "shape": [MANY, *router.shape], "datatype": "UINT8"}
    tensor["parameters"] = {"binary_data_size": len(many)}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    infer = ("/v2/models/router/infer", f"{raw}\r\nInference-Header-Content-Length: {len(head)}", head + many)
    return {
        "embedding, JSON": (
            [
                post(port, "/v1/route", "application/json", json.dumps({"features": [f.tolist()]}).encode())
                for f in features
            ],
            1,
        ),
        "embedding, bytes": ([post(port, "/v1/route", raw, f.numpy().astype("<f4").tobytes()) for f in features], 1),
        "image, PNG": ([post(port, "/v1/route", "image/png", pictures(image)) for image in images], 1),
        f"images, {MANY} in a request": (
            [post(port, *infer)],
            MANY,
        ),
    }


@contextmanager
def _gateway(run: Path) -> Iterator[tuple[int, int]]:
    """Port and process number of a gateway with its defaults; its log goes to a file, as a service's does."""
    with (run.parent / "log").open("wb") as log:
        # 64 callers with 256 images each are more than the default lets wait: they would be told to come back.
        words = ["-m", "feddrm", "serve", str(run), "--port", "0"]
        with _server(words, {"FEDDRM_SERVE_MAX_WAITING_ROWS": "65536"}, log) as found:
            yield found


FLOOR = """
import sys, uvicorn
from pathlib import Path
head, _, body = Path(sys.argv[1]).read_bytes().partition(b"\\r\\n\\r\\n")
lines = (line.partition(b": ") for line in head.split(b"\\r\\n")[1:])
start = {"type": "http.response.start", "status": 200, "headers": [(name, value) for name, _, value in lines]}
async def app(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send(start)
    await send({"type": "http.response.body", "body": body})
config = uvicorn.Config(app, port=0, log_config=None, access_log=False, lifespan="off", ws="none",
                        server_header=False, date_header=False)
sock = config.bind_socket()
print(f"floor at http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
uvicorn.Server(config).run(sockets=[sock])
"""


@contextmanager
def _floor(answer: bytes, script: Path) -> Iterator[tuple[int, int]]:
    """Port and process number of a server that does nothing but answer these bytes."""
    script.write_text(FLOOR)
    script.with_suffix(".answer").write_bytes(answer)
    with _server([str(script), str(script.with_suffix(".answer"))], {}, subprocess.DEVNULL) as found:
        yield found


@contextmanager
def _server(words: Sequence[str], environment: Mapping[str, str], log: IO[bytes] | int) -> Iterator[tuple[int, int]]:
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **environment}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if " at http" not in line:
            raise FeddrmError("the gateway did not start: try 'feddrm serve' by itself to see why")
        yield int(line.rpartition(":")[2]), process.pid
    finally:
        process.terminate()
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()


def _cpu_seconds(pid: int) -> float:
    """Processor time of a process so far: what is left of a figure on a machine that others use, too."""
    path = Path(f"/proc/{pid}/stat")
    if not path.exists():
        return 0.0
    fields = path.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(port: int, pid: int, bodies: Sequence[bytes], requests: int, say: Say) -> dict[str, Any]:
    """Resident memory of the gateway while it answers: flat means that a tenth more requests add nothing."""
    steps, path = 10, Path(f"/proc/{pid}/status")
    if not requests or not path.exists():
        return {"requests": 0, "mib": []}
    mib = []
    for _ in range(steps):
        asyncio.run(ask_all(port, bodies, 64, 0, requests=requests // steps))
        line = next(line for line in path.read_text().splitlines() if line.startswith("VmRSS"))
        mib.append(round(int(line.split()[1]) / 1024, 1))
        say(f"memory after {len(mib) * requests // steps} requests: {mib[-1]} MiB")
    return {"requests": requests, "mib": mib, "growth_mib_after_the_first_tenth": round(mib[-1] - mib[0], 1)}
