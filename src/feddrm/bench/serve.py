"""The gateway's speed over HTTP, compared with the same router in this process, and whether its memory grows.

The gateway runs in its own process, started by the command that a user would type. Every caller is a connection
that waits for its answer before it asks again; with two cores the gateway has one of them. The floor is the same
server with an application that reads the request and answers the same bytes at once, so the difference to the floor
is the gateway's own work.
"""

from __future__ import annotations

import asyncio
import datetime
import io
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from PIL import Image

from feddrm.bench.load import one_response, post_request, run_load
from feddrm.data import Federation, load
from feddrm.errors import FeddrmError
from feddrm.io.run_files import ROUTER_FOLDER
from feddrm.router import Router, load_router
from feddrm.runs import hardware, train, versions
from feddrm.serve.telemetry.trace_setup import NO_EXTRA
from feddrm.threads import without_onednn_if_small

Say = Callable[[str], None]
MANY = 256  # images in one request
TRACEPARENT = "\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # after the content type


class Workload(NamedTuple):
    """Requests of one kind, made in advance, and the number of samples in each."""

    requests: list[bytes]
    samples: int


def bench_serve(
    *, callers: Sequence[int] = (1, 8, 64), seconds: float = 5.0, requests: int = 100_000, say: Say = lambda _: None
) -> dict[str, Any]:
    """Measure everything in one run, with the digits model and a router on its trunk."""
    with tempfile.TemporaryDirectory() as temporary:
        say("training the digits model and its router")
        digits = load("digits")
        run = Path(temporary) / "run"
        train(digits, "feddrm", out=run, rounds=10).fit_router(features="embedding", heads=False)
        router = load_router(run / ROUTER_FOLDER)
        images = torch.cat([client.test.x for client in digits.clients])
        bare = _bare(router, images, seconds / 2)
        say(f"bare: {bare}")
        with _gateway(run) as (port, pid):
            workloads = _workloads(port, router, digits)
            embeddings = workloads["embedding, JSON"].requests
            asyncio.run(run_load(port, embeddings, max(callers), min(seconds, 2.0)))  # warm-up
            http: dict[str, Any] = {name: {} for name in workloads}
            for name, workload in workloads.items():
                reference = bare["images_per_second" if "image" in name else "embeddings_per_second"][MANY]
                for number in callers:
                    http[name][number] = _measure(port, pid, workload, number, seconds, reference)
                    say(f"{name}, {number} callers: {http[name][number]}")
            memory = _memory(port, pid, embeddings, requests, say)
            response = one_response(port, embeddings[0])
        with _floor(response, Path(temporary) / "floor.py") as (port, _):
            embeddings = _workloads(port, router, digits)["embedding, JSON"].requests
            floor = {number: asyncio.run(run_load(port, embeddings, number, seconds)) for number in callers}
            say(f"floor: {floor}")
    return {
        "what": "feddrm bench serve",
        "model": "digits, mlp 128-64, 8 clients, router on the embedding (64 numbers)",
        "bare": bare,
        "floor": floor,
        "http": http,
        "memory": memory,
        "load_average": round(os.getloadavg()[0], 1),  # far above two means that other processes computed as well
        **_environment(),
    }


def bench_feedback(
    *, callers: int = 8, seconds: float = 1.0, repeats: int = 20, say: Say = lambda _: None
) -> dict[str, Any]:
    """What a use log, recorded features and the watch on drift cost: gateways side by side, measured in turn.

    The second gateway is as the first: its difference is the machine's noise, in which a smaller cost cannot be seen.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        use_log = ["--use-log", str(folder / "uses")]
        features = ["--use-log", str(folder / "features"), "--record-features", "10000"]
        ways = {
            "without": [],
            "without, once more": [],
            "use log": use_log,
            "drift": ["--drift"],
            "use log with features, drift": [*features, "--drift"],
        }
        return {"what": "feddrm bench serve --feedback", **_compare(folder, ways, callers, seconds, repeats, say)}


def bench_trace(
    *, callers: int = 8, seconds: float = 1.0, repeats: int = 20, say: Say = lambda _: None
) -> dict[str, Any]:
    """What recording traces costs: gateways side by side, measured in turn; all callers send a trace context.

    One gateway records nothing, one at most as many requests per second as it does by default, one every request. The
    receiver of the traces is a process that reads them and keeps none.
    """
    if find_spec("opentelemetry") is None:
        raise FeddrmError(NO_EXTRA)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "receiver.py").write_text(RECEIVER)
        with _server([str(folder / "receiver.py")], {}, subprocess.DEVNULL) as (port, _):
            recorded = ["--trace-endpoint", f"http://127.0.0.1:{port}"]
            ways = {"without": [], "traced": recorded, "every request traced": [*recorded, "--trace-rate", "0"]}
            figures = _compare(folder, ways, callers, seconds, repeats, say, headers=TRACEPARENT)
    ratios = {path: round(1 - ways["traced"]["fewer_requests_per_second"], 4) for path, ways in figures["cost"].items()}
    return {"what": "feddrm bench serve --trace", "traced_to_untraced": ratios, **figures}


def _compare(
    folder: Path,
    ways: Mapping[str, Sequence[str]],
    callers: int,
    seconds: float,
    repeats: int,
    say: Say,
    headers: str = "",
) -> dict[str, Any]:
    """Requests/s of gateways with these options, each with its clients on this machine, measured in turn.

    The figures are medians over the repeats; the first round is the warm-up. The first way is what the others are
    compared with. Many short repeats are better than a few long ones: the speed of a shared machine changes within
    seconds, and a pair measured one after the other sees nearly the same machine. Every second round goes backwards.
    """
    say("training the digits model and its router")
    digits = load("digits", clients=3)
    train(digits, "feddrm", out=folder / "run", rounds=10).fit_router(features="embedding", heads=False)
    bodies = _feature_bodies(load_router(folder / "run" / ROUTER_FOLDER), digits)
    first, servers = next(iter(ways)), {}
    measured: dict[str, dict[str, list[dict[str, float]]]] = {}
    with ExitStack() as stack:
        for way, options in ways.items():
            audit = ["--audit", str(folder / f"{way}.sqlite")]
            servers[way] = stack.enter_context(_gateway(folder / "run", "--demo", *audit, *options))
        for number, path, place in product(range(repeats + 1), ("/v1/predict", "/v1/route"), range(len(ways))):
            way, (port, pid) = list(servers.items())[-1 - place if number % 2 else place]
            requests = [post_request(port, path, f"application/json{headers}", body) for body in bodies]
            used = _cpu_seconds(pid)
            figures = asyncio.run(run_load(port, requests, callers, seconds))
            cpu = 1e3 * (_cpu_seconds(pid) - used) / figures["requests"]
            one = {"requests_per_second": figures["requests_per_second"], "gateway_cpu_ms_per_request": cpu}
            measured.setdefault(path, {}).setdefault(way, []).append(one)
            say(f"{path}, {way}: {one}")
    table = {path: {way: _medians(rows[1:]) for way, rows in of.items()} for path, of in measured.items()}
    cost = {path: {way: _cost(of[first][1:], rows[1:]) for way, rows in of.items()} for path, of in measured.items()}
    about = {"callers": callers, "repeats": repeats, "load_average": round(os.getloadavg()[0], 1)}
    return {"http": table, "cost": cost, **about, **_environment()}


def _medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(row[name] for row in rows), 4) for name in rows[0]}


def _cost(plain: Sequence[Mapping[str, float]], rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Shares lost or added: medians over the repeats, each compared with the plain gateway of the same repeat."""
    ratios = [{name: row[name] / (base[name] or 1.0) for name in row} for base, row in zip(plain, rows, strict=True)]
    middle = _medians(ratios)
    fewer, more = 1 - middle["requests_per_second"], middle["gateway_cpu_ms_per_request"] - 1
    spread = statistics.stdev(row["requests_per_second"] for row in ratios) if len(ratios) > 1 else 0.0
    error = spread / math.sqrt(len(ratios))
    return {
        "fewer_requests_per_second": round(fewer, 4),
        "standard_error": round(error, 4),
        "more_gateway_cpu": round(more, 4),
    }


def _feature_bodies(router: Router, digits: Federation) -> list[bytes]:
    features = router.features(torch.cat([client.test.x for client in digits.clients]))
    return [json.dumps({"features": [row.tolist()]}).encode() for row in features]


def _environment() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "hardware": hardware("cpu"),
        "versions": versions() | {name: version(name) for name in ("uvicorn", "uvloop", "httptools", "orjson")},
        "date": datetime.date.today().isoformat(),
    }


def _measure(port: int, pid: int, workload: Workload, callers: int, seconds: float, reference: float) -> dict[str, Any]:
    """Speed and processor time of one workload; ``reference`` is the rate without HTTP, in samples per second."""
    used = _cpu_seconds(pid)
    figures = asyncio.run(run_load(port, workload.requests, callers, seconds))
    used = _cpu_seconds(pid) - used
    figures["gateway_cpu_ms_per_request"] = round(1e3 * used / figures["requests"], 4)
    figures["samples_per_second"] = round(workload.samples * figures["requests_per_second"], 1)
    figures["of_bare"] = round(figures["samples_per_second"] / reference, 4)
    return figures


def _bare(router: Router, images: torch.Tensor, seconds: float) -> dict[str, dict[int, float]]:
    """The rates of the same work without HTTP, on one thread, by the number of samples at once.

    Each is the better one with and without oneDNN, which suits some processors and batch sizes but not others.
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
                        rate = _rate(route, x, seconds / 6)
                        rates[name][rows] = max(rate, rates[name].get(rows, 0.0))
    finally:
        torch.set_num_threads(before)
    return rates


def _rate(route: Callable[[torch.Tensor], object], x: torch.Tensor, seconds: float) -> float:
    """Samples per second."""
    route(x)  # warm-up
    started, samples = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        route(x)
        samples += len(x)
    return round(samples / (time.perf_counter() - started), 1)


def _workloads(port: int, router: Router, digits: Federation) -> dict[str, Workload]:
    images = torch.cat([client.test.x for client in digits.clients])
    features = router.features(images)
    raw = "application/octet-stream"

    def png(image: torch.Tensor) -> bytes:
        out = io.BytesIO()
        Image.fromarray(image[0].numpy()).save(out, "PNG")
        return out.getvalue()

    def route_requests(content_type: str, bodies: Sequence[bytes]) -> Workload:
        return Workload([post_request(port, "/v1/route", content_type, body) for body in bodies], 1)

    many = images.repeat(2, 1, 1, 1)[:MANY].numpy().tobytes()
    tensor: dict[str, Any] = {"name": "input", "shape": [MANY, *router.shape], "datatype": "UINT8"}
    tensor["parameters"] = {"binary_data_size": len(many)}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = f"{raw}\r\nInference-Header-Content-Length: {len(head)}"
    infer = post_request(port, "/v2/models/router/infer", headers, head + many)
    return {
        "embedding, JSON": route_requests("application/json", _feature_bodies(router, digits)),
        "embedding, bytes": route_requests(raw, [row.numpy().astype("<f4").tobytes() for row in features]),
        "image, PNG": route_requests("image/png", [png(image) for image in images]),
        f"images, {MANY} in a request": Workload([infer], MANY),
    }


@contextmanager
def _gateway(run: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Port and process number of a gateway with its defaults; its log goes to a file, as a service's does."""
    with (run.parent / "log").open("ab") as log:
        # 64 callers with 256 images each exceed the default queue, and some would be rejected.
        arguments = ["-m", "feddrm", "serve", str(run), "--port", "0", *options]
        with _server(arguments, {"FEDDRM_SERVE_MAX_WAITING_ROWS": "65536"}, log) as server:
            yield server


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


RECEIVER = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"receiver at http://127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
"""


@contextmanager
def _floor(response: bytes, script: Path) -> Iterator[tuple[int, int]]:
    """Port and process number of a server that only answers these bytes."""
    script.write_text(FLOOR)
    script.with_suffix(".response").write_bytes(response)
    with _server([str(script), str(script.with_suffix(".response"))], {}, subprocess.DEVNULL) as server:
        yield server


@contextmanager
def _server(
    arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes] | int
) -> Iterator[tuple[int, int]]:
    """Port and process number of a Python process that prints its address and serves."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **environment}
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
    """Processor time of a process so far: the figure that other processes on the machine change least."""
    path = Path(f"/proc/{pid}/stat")
    if not path.exists():
        return 0.0
    fields = path.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(port: int, pid: int, bodies: Sequence[bytes], total: int, say: Say) -> dict[str, Any]:
    """Resident memory of the gateway after every tenth of ``total`` requests: it should not grow."""
    steps, path = 10, Path(f"/proc/{pid}/status")
    if not total or not path.exists():
        return {"requests": 0, "mib": []}
    mib = []
    for _ in range(steps):
        asyncio.run(run_load(port, bodies, 64, 0, total=total // steps))
        line = next(line for line in path.read_text().splitlines() if line.startswith("VmRSS"))
        mib.append(round(int(line.split()[1]) / 1024, 1))
        say(f"memory after {len(mib) * total // steps} requests: {mib[-1]} MiB")
    return {"requests": total, "mib": mib, "growth_mib_after_the_first_tenth": round(mib[-1] - mib[0], 1)}
