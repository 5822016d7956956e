"""The gateway's speed over HTTP against the same router in this process, and whether its memory grows.

The gateway is a process of its own, started by the command a user would type; callers are connections
that each wait for their answer before they ask again. With two cores the gateway has one of them.
"""

from __future__ import annotations

import asyncio
import datetime
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from feddrm.data import Federation, load
from feddrm.errors import FeddrmError
from feddrm.router import Router, load_router
from feddrm.runs import train
from feddrm.runs.run import hardware, versions

Say = Callable[[str], None]
MANY = 256  # images in one request, as many as the gateway computes at once


def bench_serve(
    *, callers: Sequence[int] = (1, 8, 64), seconds: float = 5.0, requests: int = 100_000, say: Say = lambda _: None
) -> dict[str, Any]:
    """Everything, in one run, with the digits model and a router on its trunk."""
    with tempfile.TemporaryDirectory() as place:
        say("training the digits model and its router")
        digits = load("digits")
        run = Path(place) / "run"
        train(digits, "feddrm", out=run, rounds=10).fit_router(features="embedding", heads=False)
        router = load_router(run / "router")
        images = torch.cat([client.test.x for client in digits.clients])
        bare = _bare(router, images, seconds / 2)
        say(f"bare: {bare['images_per_second']:.0f} images/s, {bare['embeddings_per_second']:.0f} embeddings/s")
        with _gateway(run) as (port, pid):
            ways = _ways(port, router, digits)
            found: dict[str, Any] = {name: {} for name in ways}
            asyncio.run(_load(port, ways["embedding, JSON"][0], max(callers), 2.0))  # warm-up
            for name, (bodies, rows) in ways.items():
                for number in callers:
                    used = _cpu_seconds(pid)
                    figures = asyncio.run(_load(port, bodies, number, seconds))
                    used = _cpu_seconds(pid) - used
                    figures["gateway_cpu_ms_per_request"] = round(1e3 * used / figures["requests"], 4)
                    figures["samples_per_second"] = round(rows * figures["requests_per_second"], 1)
                    key = "images_per_second" if "image" in name else "embeddings_per_second"
                    figures["of_bare"] = round(figures["samples_per_second"] / bare[key], 4)
                    found[name][number] = figures
                    say(f"{name}, {number} callers: {figures}")
            memory = _memory(port, pid, ways["embedding, JSON"][0], requests, say)
    return {
        "what": "feddrm bench serve",
        "model": "digits, mlp 128-64, 8 clients, router on the embedding (64 numbers)",
        "bare": bare,
        "http": found,
        "memory": memory,
        "cores": os.cpu_count(),
        "load_average": round(
            os.getloadavg()[0], 1
        ),  # of the last minute: far above two means that others computed, too
        "hardware": hardware("cpu"),
        "versions": versions(),
        "date": datetime.date.today().isoformat(),
    }


def _bare(router: Router, images: torch.Tensor, seconds: float) -> dict[str, float]:
    """The same work without a network in between, in the best of some batch sizes, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rates: dict[str, dict[int, float]] = {"images": {}, "embeddings": {}}
    features = router.features(images)
    try:
        for onednn in (True, False):  # the gateway runs without; the better of both is what it is compared with
            torch.backends.mkldnn.set_flags(onednn)  # type: ignore[no-untyped-call]
            for rows in (64, MANY):
                for name, route, x in (
                    ("images", router.route, images[:rows]),
                    ("embeddings", router.route_features, features[:rows]),
                ):
                    route(x)
                    began, done = time.perf_counter(), 0
                    while time.perf_counter() - began < seconds / 4:
                        route(x)
                        done += rows
                    rate = done / (time.perf_counter() - began)
                    rates[name][rows] = max(rate, rates[name].get(rows, 0.0))
    finally:
        torch.set_num_threads(before)
        torch.backends.mkldnn.set_flags(True)  # type: ignore[no-untyped-call]
    return {f"{name}_per_second": round(max(by_rows.values()), 1) for name, by_rows in rates.items()}


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
                _post(port, "/v1/route", "application/json", json.dumps({"features": [f.tolist()]}).encode())
                for f in features
            ],
            1,
        ),
        "embedding, bytes": ([_post(port, "/v1/route", raw, f.numpy().astype("<f4").tobytes()) for f in features], 1),
        "image, PNG": ([_post(port, "/v1/route", "image/png", pictures(image)) for image in images], 1),
        f"images, {MANY} in a request": (
            [_post(port, *infer)],
            MANY,
        ),
    }


def _post(port: int, path: str, kind: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def _gateway(run: Path) -> Iterator[tuple[int, int]]:
    """Port and process number of a gateway with its defaults; its log goes nowhere."""
    process = subprocess.Popen(
        [sys.executable, "-m", "feddrm", "serve", str(run), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # 64 callers with 256 images each are more than the default lets wait: they would be told to come back.
        env={**os.environ, "FEDDRM_SERVE_MAX_WAITING_ROWS": "65536"},
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


class _Caller(asyncio.Protocol):
    """Asks, waits for the whole answer, asks again; as little work as can be, to leave the core to the gateway."""

    def __init__(
        self, bodies: Sequence[bytes], first: int, until: Callable[[], bool], done: asyncio.Future[None]
    ) -> None:
        self.bodies, self.place, self.until, self.done = bodies, first, until, done
        self.latencies: list[float] = []
        self.buffer, self.missing, self.began = b"", 0, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._ask()

    def _ask(self) -> None:
        self.began = time.perf_counter()
        self.transport.write(self.bodies[self.place % len(self.bodies)])
        self.place += 1

    def data_received(self, data: bytes) -> None:
        if self.missing:
            self.missing -= len(data)
        else:
            self.buffer += data
            head, found, body = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self.done.set_exception(FeddrmError(f"the gateway answered {head[:40]!r}"))
                return
            at = head.lower().index(b"\r\ncontent-length: ") + 18
            self.missing = int(head[at:].partition(b"\r\n")[0]) - len(body)
            self.buffer = b""
        if self.missing == 0:
            self.latencies.append(time.perf_counter() - self.began)
            if self.until():
                self.transport.close()
                self.done.set_result(None)
            else:
                self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(FeddrmError(f"the gateway closed a connection ({exc})"))


async def _load(port: int, bodies: Sequence[bytes], callers: int, seconds: float, requests: int = 0) -> dict[str, Any]:
    """Callers side by side for some seconds, or for a number of requests."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    made: list[_Caller] = []

    def until() -> bool:
        if requests:
            return sum(len(caller.latencies) for caller in made) >= requests
        return time.perf_counter() - began >= seconds

    ends = [loop.create_future() for _ in range(callers)]
    for number, end in enumerate(ends):
        _, caller = await loop.create_connection(
            lambda number=number, end=end: _Caller(bodies, 7 * number, until, end),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        made.append(caller)
    await asyncio.gather(*ends)
    took = time.perf_counter() - began
    latencies = np.array([latency for caller in made for latency in caller.latencies])
    return {
        "requests": len(latencies),
        "requests_per_second": round(len(latencies) / took, 1),
        "p50_ms": round(1e3 * float(np.percentile(latencies, 50)), 3),
        "p99_ms": round(1e3 * float(np.percentile(latencies, 99)), 3),
    }


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
        asyncio.run(_load(port, bodies, 64, 0, requests=requests // steps))
        line = next(line for line in path.read_text().splitlines() if line.startswith("VmRSS"))
        mib.append(round(int(line.split()[1]) / 1024, 1))
        say(f"memory after {len(mib) * requests // steps} requests: {mib[-1]} MiB")
    return {"requests": requests, "mib": mib, "growth_mib_after_the_first_tenth": round(mib[-1] - mib[0], 1)}
