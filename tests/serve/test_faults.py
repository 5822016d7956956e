"""Faults in processes of their own: slow, broken and killed clients, full disks, overload, signals."""

from __future__ import annotations

import gzip
import json
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import yaml

from serving import Launch

from .cluster import FEW, Cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def processes(run: Path, launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(run, tmp_path_factory.mktemp("cluster"), launch)
    yield made
    made.http.close()


@pytest.fixture
def cluster(processes: Cluster) -> Cluster:
    """The processes as they were at first, whatever other tests have done to them."""
    processes.restore()
    return processes


def test_a_slow_client_times_out_and_its_circuit_opens_until_it_recovers(cluster: Cluster) -> None:
    cluster.clients["fax"].send(signal.SIGSTOP)  # it accepts connections and answers nothing
    try:
        first = cluster.predict("fax").json()["answers"][0]
        assert first["client"] != "fax"
        assert first["failed"] == [{"client": "fax", "reason": "time-out"}]
        cluster.predict("fax")
        cluster.until(lambda: cluster.upstream("fax")["circuit"] == "open")
        began = time.monotonic()
        quick = cluster.predict("fax").json()["answers"][0]  # it is not asked any more
        if cluster.upstream("fax")["circuit"] == "open":
            assert time.monotonic() - began < 1.0
            assert "fax" not in {a["client"] for a in quick["answered"]}
    finally:
        cluster.clients["fax"].send(signal.SIGCONT)
    cluster.until(lambda: cluster.answers("fax"))
    assert cluster.upstream("fax")["circuit"] == "closed"


def test_failures_at_the_same_time_cause_one_pause(cluster: Cluster) -> None:
    """Eight requests run when the client stops. If each doubled the pause of 0.5 s, it would last 32 s."""
    cluster.clients["fax"].send(signal.SIGSTOP)
    with ThreadPoolExecutor(8) as callers:
        asked = [callers.submit(cluster.predict, "fax") for _ in range(8)]
        failed = [found.result().json()["answers"][0]["failed"] for found in asked]
    cluster.clients["fax"].send(signal.SIGCONT)
    assert sum(one["reason"] == "time-out" for some in failed for one in some) > 6
    cluster.until(lambda: cluster.answers("fax"), seconds=10)


class BrokenClient(BaseHTTPRequestHandler):
    """A client whose health and answers a test can set."""

    protocol_version = "HTTP/1.1"
    health, answer, packed = b"{}", b"", False

    def do_GET(self) -> None:
        self.send(BrokenClient.health)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send(BrokenClient.answer, BrokenClient.packed)

    def send(self, content: bytes, packed: bool = False) -> None:
        """Send the content; an empty one stands for a response that never ends."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) or 10**9))
        if packed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(content)
            while not content:
                self.wfile.write(b" ")
                time.sleep(0.1)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def gateway_with_broken_client(cluster: Cluster, launch: Launch, tmp_path: Path) -> Iterator[httpx.Client]:
    """A gateway with two working clients and ``BrokenClient`` in the place of the third."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BrokenClient) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        urls = {name: cluster.clients[name].url for name in ("flatbed", "negative")}
        urls["fax"] = f"http://127.0.0.1:{server.server_port}"
        entries = {name: {"url": url, "timeout": 1.0} for name, url in urls.items()}
        (tmp_path / "clients.yaml").write_text(yaml.safe_dump(entries))
        words = ["serve", cluster.run, "--clients", tmp_path / "clients.yaml", "--port", 0]
        process = launch(*words, "--audit", tmp_path / "a.sqlite", **{**FEW, "FEDDRM_SERVE_HEALTH_SECONDS": "0.1",
                         "FEDDRM_SERVE_FAILURES": "100"})  # fmt: skip
        try:
            with httpx.Client(base_url=process.wait_ready(), timeout=20) as http:
                yield http
            assert "Traceback" not in process.whole_log()
        finally:
            server.shutdown()
            thread.join()


def test_samples_of_a_broken_client_go_to_others(
    cluster: Cluster, gateway_with_broken_client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = gateway_with_broken_client
    good = json.dumps({"outputs": [{"name": "probabilities", "data": [0.1] * 10}]}).encode()
    something_else, too_much = "answered something else than probabilities", "answered too much"
    for answer, packed, reason in (
        (good, False, None),
        (good.replace(b"0.1", b"1" + b"0" * 400), False, something_else),
        (good.replace(b"0.1", b'"0.1"'), False, something_else),
        (b"[" * 200_000, False, too_much),
        (b"[" * 50_000, False, something_else),
        (gzip.compress(good + b" " * 20_000_000), True, something_else),
        (good + b" " * 20_000_000, False, too_much),
        (b"", False, "time-out"),
    ):
        monkeypatch.setattr(BrokenClient, "answer", answer)
        monkeypatch.setattr(BrokenClient, "packed", packed)
        response = http.post("/v1/predict", json={"inputs": cluster.queries["fax"][:1].tolist()})
        assert response.status_code == 200, response.text
        (found,) = response.json()["answers"]
        assert found["failed"] == ([] if reason is None else [{"client": "fax", "reason": reason}])
        assert (found["client"] == "fax") == (reason is None)

    def healthy(name: str) -> bool:
        return next(c["healthy"] for c in http.get("/v1/clients").json()["clients"] if c["client"] == name)

    monkeypatch.setattr(BrokenClient, "health", b"")
    cluster.until(lambda: not healthy("fax"))
    cluster.clients["flatbed"].send(signal.SIGSTOP)
    try:
        cluster.until(lambda: not healthy("flatbed"))
    finally:
        cluster.clients["flatbed"].send(signal.SIGCONT)
    cluster.until(lambda: healthy("flatbed"))


def test_no_request_is_lost_when_a_client_is_killed_under_load(cluster: Cluster) -> None:
    answers: list[tuple[int, str]] = []
    stop = threading.Event()

    def send_requests() -> None:
        with httpx.Client(base_url=cluster.url, timeout=20) as http:
            number = 0
            while not stop.is_set():
                image = cluster.queries["negative"][number % len(cluster.queries["negative"])]
                answer = http.post("/v1/predict", json={"inputs": image[None].tolist()})
                found = answer.json()["answers"][0]["client"] if answer.status_code == 200 else answer.text
                answers.append((answer.status_code, found))
                number += 1

    threads = [threading.Thread(target=send_requests) for _ in range(4)]
    for thread in threads:
        thread.start()
    cluster.until(lambda: len(answers) > 40)
    cluster.clients["negative"].send(signal.SIGKILL)
    cluster.clients["negative"].wait()
    killed = len(answers)
    cluster.until(lambda: len(answers) > killed + 60)
    stop.set()
    for thread in threads:
        thread.join()
    codes = Counter(code for code, _ in answers)
    assert set(codes) == {200}, [text for code, text in answers if code != 200][:3]
    assert {client for _, client in answers[:20]} == {"negative"}
    assert "negative" not in {client for _, client in answers[killed + 20 :]}
    cluster.restore()  # the client is started again, and is asked again


def test_without_any_client_the_answer_is_503_with_reasons(cluster: Cluster) -> None:
    for process in cluster.clients.values():
        process.send(signal.SIGSTOP)
    try:
        answer = cluster.predict("flatbed")
        assert answer.status_code == 503
        assert "no client answered" in answer.json()["error"]
        assert int(answer.headers["Retry-After"]) > 0
        cluster.until(lambda: bool(cluster.audited(answer)))  # the log is written in the background
        (record,) = cluster.audited(answer)
        assert record[:3] == ("predict", 1, "")
        assert record[3]  # every client with its reason
        assert cluster.http.post("/v1/route", json={"inputs": cluster.queries["fax"][:1].tolist()}).status_code == 200
    finally:
        for process in cluster.clients.values():
            process.send(signal.SIGCONT)
    cluster.until(lambda: cluster.predict("flatbed").status_code == 200)


def test_a_broken_artifact_is_not_loaded_and_a_new_one_is_without_losing_a_request(cluster: Cluster) -> None:
    folder, reloads = cluster.run / "router", cluster.reloads()
    before = cluster.http.get("/v2/health/ready").json()["artifact"]
    codes: list[int] = []
    stop = threading.Event()
    query = {"inputs": cluster.queries["fax"][:1].tolist()}

    def send_requests() -> None:
        with httpx.Client(base_url=cluster.url, timeout=20) as http:
            while not stop.is_set():
                codes.append(http.post("/v1/route", json=query).status_code)

    thread = threading.Thread(target=send_requests)
    thread.start()
    try:
        whole = {path.name: path.read_bytes() for path in folder.iterdir()}
        for name in ("router.safetensors", "trunk.safetensors", "manifest.json"):
            (folder / name).write_bytes(whole[name][:-7])
            answer = cluster.http.post("/v1/admin/reload")
            assert answer.status_code == 422
            assert "the old artifact stays" in answer.json()["error"]
            assert cluster.http.get("/v2/health/ready").json()["artifact"] == before
            (folder / name).write_bytes(whole[name])
        (folder / "manifest.json").write_bytes(whole["manifest.json"] + b"\n")
        after = cluster.http.post("/v1/admin/reload").json()["artifact"]
        assert after != before
        assert cluster.http.post("/v1/route", json=query).json()["artifact"] == after
        seen = len(codes)
        cluster.until(lambda: len(codes) > seen + 10)
    finally:
        stop.set()
        thread.join()
    assert set(codes) == {200}
    assert cluster.reloads() - reloads == Counter(failed=3, done=1)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on file sizes")
def test_the_gateway_goes_on_when_the_disk_of_the_audit_log_is_full(run: Path, tmp_path: Path, launch: Launch) -> None:
    """The process may write no file beyond 100 kB; the kernel's error looks to SQLite like a full disk."""
    words = ["serve", run, "--port", 0, "--audit", tmp_path / "audit.sqlite", "--log-level", "error"]
    process = launch(*words, largest_file=100_000)
    url = process.wait_ready()
    features = [[0.1] * 16] * 500
    with httpx.Client(base_url=url, timeout=20) as http:
        end = time.monotonic() + 20
        assert http.post("/v1/route", json={"features": features[:1]}).status_code == 200
        while 'feddrm_audit_records_total{outcome="written"} 1.0' not in http.get("/metrics").text:
            assert time.monotonic() < end
        while 'feddrm_audit_records_total{outcome="dropped"} 0.0' in http.get("/metrics").text:
            assert http.post("/v1/route", json={"features": features}).status_code == 200
            assert time.monotonic() < end
        assert "feddrm_audit_ok 0.0" in http.get("/metrics").text
        assert http.post("/v1/route", json={"features": features}).status_code == 200


def test_overload_is_a_429_at_once(run: Path, tmp_path: Path, launch: Launch) -> None:
    url = launch("serve", run, "--port", 0, "--audit", tmp_path / "a.sqlite", "--log-level", "warning",
                 FEDDRM_SERVE_MAX_IN_FLIGHT="2", FEDDRM_SERVE_MAX_WAITING_ROWS="64").wait_ready()  # fmt: skip
    codes, retry, begun = Counter[int](), set[str](), threading.Semaphore(0)

    def ask() -> None:
        begun.release()
        with httpx.Client(base_url=url, timeout=20) as http:
            for _ in range(10):
                answer = http.post("/v1/route", json={"features": [[0.1] * 16] * 1000})
                codes[answer.status_code] += 1
                if answer.status_code == 429:
                    retry.add(answer.headers["Retry-After"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
        begun.acquire()  # Python 3.11 may refuse the trace functions of coverage in threads that start at once
    for thread in threads:
        thread.join()
    assert set(codes) == {200, 429}
    assert retry == {"1"}
    assert httpx.post(f"{url}/v1/route", json={"features": [[0.1] * 16]}).status_code == 200


def test_bodies_that_never_end_get_a_408(run: Path, tmp_path: Path, launch: Launch) -> None:
    process = launch("serve", run, "--port", 0, "--audit", tmp_path / "a.sqlite",
                     FEDDRM_SERVE_MAX_IN_FLIGHT="2", FEDDRM_SERVE_BODY_SECONDS="2")  # fmt: skip
    url = process.wait_ready()
    with ExitStack() as stack:
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        slow = [stack.enter_context(socket.create_connection(place, timeout=20)) for _ in range(2)]
        for path, connection in zip(("/v1/route", "/v2/models/router/infer"), slow, strict=True):
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf"
            connection.sendall(head.encode())
        for connection in slow:
            answer = connection.makefile("rb").read()  # the gateway closes the connection
            assert answer.startswith(b"HTTP/1.1 408")
            assert b"took longer than 2 s" in answer
        assert httpx.post(f"{url}/v1/route", json={"features": [[0.1] * 16]}).status_code == 200


def test_requests_finish_after_sigterm(run: Path, tmp_path: Path, launch: Launch) -> None:
    """Half of the request arrives before the signal, half after it."""
    process = launch("serve", run, "--port", 0, "--audit", tmp_path / "a.sqlite")
    url = process.wait_ready()
    body = json.dumps({"features": [[0.1] * 16]}).encode()
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as connection:
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(b"POST /v1/route HTTP/1.1\r\n" + head.encode() + body[:20])
        while "feddrm_in_flight 1.0" not in httpx.get(f"{url}/metrics").text:
            time.sleep(0.02)
        process.send(signal.SIGTERM)
        time.sleep(0.5)
        connection.sendall(body[20:])
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    assert process.stop() == 0


def test_a_caller_who_leaves_during_a_request_is_no_error(run: Path, tmp_path: Path, launch: Launch) -> None:
    process = launch("serve", run, "--port", 0, "--audit", tmp_path / "a.sqlite")
    url = process.wait_ready()
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as connection:
        connection.sendall(b"POST /v1/route HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
        while "feddrm_in_flight 1.0" not in httpx.get(f"{url}/metrics").text:
            time.sleep(0.02)
    while "feddrm_in_flight 0.0" not in (page := httpx.get(f"{url}/metrics").text):
        time.sleep(0.02)
    assert 'feddrm_requests_total{path="/v1/route",status="499"} 1.0' in page
    assert "Traceback" not in process.whole_log()


def test_a_signal_before_the_start_is_not_lost(run: Path, tmp_path: Path, launch: Launch) -> None:
    """The signal is sent when the address is printed, which is before the gateway serves."""
    process = launch("serve", run, "--port", 0, "--audit", tmp_path / "a.sqlite")
    assert process.url
    process.send(signal.SIGTERM)
    assert process.wait() in (0, 143)  # handled by the server, or by the command before it
