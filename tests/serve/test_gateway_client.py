from __future__ import annotations

import doctest
import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

import feddrm
from commands import feddrm_command
from feddrm.errors import FeddrmError, TableError
from feddrm.router import load_router
from feddrm.serve import gateway_client
from feddrm.serve.http.http_session import HttpReply, HttpSession
from refusal import refused
from serving import NAMES, Launch


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server in a thread."""
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("pause", ["0", "Wed, 21 Oct 2015 07:28:00 GMT", "-1", "nan", "9" * 5000])
def test_a_busy_gateway_is_asked_again_whatever_retry_after_says(pause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy may write the header in its own way."""
    statuses = [429, 200]

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(statuses.pop(0))
            self.send_header("Retry-After", pause)
            self.end_headers()
            self.wfile.write(b'{"decisions": []}')

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    waited: list[float] = []
    monkeypatch.setattr(gateway_client.time, "sleep", waited.append)
    with listening(Busy) as url, feddrm.GatewayClient(url) as gateway:
        assert gateway.route(features=[[1.0]]) == []
    assert not statuses
    assert 0 <= waited[0] <= 5


@pytest.mark.parametrize(
    "reply",
    [
        {"ok": True}, [], {"fields": [1]}, {"fields": 5}, {"fields": [{"row": 1}]},
        {"request_id": "a", "decisions": [1], "answers": [1], "clients": 3, "stored": "1", "inputs": [1], "schema": 1},
        {"request_id": 1, "decisions": {}, "answers": [{}], "clients": [{}], "schema": None, "artifact": None},
    ],
)  # fmt: skip
def test_a_service_that_is_no_gateway_is_one_clear_line(reply: object, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = HttpReply(200, HTTPMessage(), json.dumps(reply).encode())
    monkeypatch.setattr(HttpSession, "call", lambda *_: answer)
    gateway = feddrm.GatewayClient("http://127.0.0.1:9")
    for call in (
        lambda: gateway.route([[1.0]]), lambda: gateway.predict([[1.0]]), lambda: gateway.report_outcome("a", "1"),
        gateway.clients, gateway.schema, gateway.reload, gateway.promote, gateway.rollback,
    ):  # fmt: skip
        with refused("http://127.0.0.1:9 answered 200, and not as a gateway does: check the address"):
            call()


def test_outcomes_of_another_callers_answers_name_it() -> None:
    asked: list[str] = []

    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"stored": 1}')

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with listening(Gateway) as url, feddrm.GatewayClient(url) as gateway:
        assert gateway.report_outcome("a", "1")
        assert gateway.report_outcome("a", "1", caller="lab & ward")
    assert asked == ["/v1/outcomes", "/v1/outcomes?caller=lab+%26+ward"]


@pytest.mark.slow
def test_all_forms_of_a_sample_can_be_sent_from_python_and_the_shell(
    demo: str, run: Path, images: torch.Tensor, png_file: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "scan.png"
    path.write_bytes(png_file)
    with feddrm.GatewayClient(demo) as gateway:
        found = gateway.route(path)[0]
        assert gateway.route(images[:1])[0]["client"] == found["client"]
        assert gateway.route(np.asarray(load_router(run / "router").inputs(images[:1])))[0]["client"] == found["client"]
        features = load_router(run / "router").features(images[:1])
        assert gateway.predict(features=features, consult=2)[0]["route"]["client"] == found["client"]
        assert {c["client"] for c in gateway.clients()} == set(NAMES)
        pixels = np.asarray(load_router(run / "router").inputs(images[:2]))
        assert gateway.route(list(pixels)) == gateway.route(pixels)
        assert gateway.route(list(images[:2]))[0]["client"] == found["client"]
        zeros = gateway.route(features=[[0.0] * 16])
        assert gateway.route(features=[[np.float32(0), np.int64(0), *[0.0] * 14]]) == zeros
        for way in ({"x": path}, {"features": features}):
            assert gateway.route(**way, without="fax") == gateway.route(**way, without=["fax"])
        for bad in ([[math.nan] * 16], [[np.float32("inf")] * 16], [[object()] * 16], np.full((1, 16), np.nan)):
            with refused("cannot be sent", "finite numbers"):
                gateway.route(features=bad)
        with refused("says", "no column names"):
            gateway.route([{"age": np.float32(3)}])
        with refused("says", "unknown client"):
            gateway.route(path, without=["rio"])
        with refused("one of them"):
            gateway.route()
    shell = json.loads(feddrm_command("query", demo, path, "--predict", "--json").stdout)
    assert shell[0]["client"] == found["client"]
    options = {"rule": "posterior", "coverage": 0.2, "without": ["fax", "flatbed"]}
    with feddrm.GatewayClient(demo) as gateway:
        wanted = gateway.route(path, **options)[0]
    words = ("--rule", "posterior", "--coverage", "0.2", "--without", "fax", "--without", "flatbed")
    answer = json.loads(feddrm_command("query", demo, path, *words, "--json").stdout)[0]
    assert {key: answer[key] for key in wanted} == wanted
    assert {away["client"] for away in wanted["away"]} == {"fax", "flatbed"}
    with pytest.raises(FeddrmError, match="is it running"):
        feddrm.GatewayClient("http://127.0.0.1:9").route(path)


@pytest.mark.slow
def test_the_example_in_the_docstring_runs(
    demo: str, png_file: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scan.png").write_bytes(png_file)
    source = str(feddrm.GatewayClient.__doc__).replace("http://127.0.0.1:8000", demo)
    example = doctest.DocTestParser().get_doctest(source, {"feddrm": feddrm}, "GatewayClient", None, None)
    assert len(example.examples) == 2
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.slow
def test_a_table_of_patients_is_asked_about_row_by_row(table_run: Path, launch: Launch, tmp_path: Path) -> None:
    url = launch("serve", table_run, "--port", 0, "--audit", tmp_path / "a.sqlite").wait_ready()
    with feddrm.GatewayClient(url) as gateway:
        assert gateway.route({"age": 68, "sex": "male", "cp": "unknown", "chol": None})[0]["client"] == "oslo"
        with pytest.raises(TableError) as caught:
            gateway.route([{"age": "x", "sex": 1, "cp": 1, "chol": 1}])
        assert [(problem.row, problem.column) for problem in caught.value.problems] == [(0, "age")]
        assert str(caught.value) == f"{url} says: row 0: column 'age' is 'x': give a number (0..120 years)"

    patients = tmp_path / "patients.csv"
    rows = ["p1,68,male,,240", *(f"p{i},30,0,typical,200" for i in range(300)), "p9,300,1,2,?"]
    patients.write_text("\n".join(["id,age,sex,cp,chol", *rows]) + "\n")
    found = feddrm_command("query", url, patients, "--ignore", "id", "--json")
    assert found.returncode == 0, found.stderr
    answers = json.loads(found.stdout)
    assert [answers[i]["client"] for i in (0, 1, 300)] == ["oslo", "lima", "lima"]
    assert [answers[i]["query"] for i in (0, 301)] == [f"{patients}, row 2", f"{patients}, row 303"]
    assert answers[301]["flags"] == [{"column": "age", "value": 300, "problem": "outside 0..120 years"}]
    lines = feddrm_command("query", url, patients, "--ignore", "id", "--csv").stdout.splitlines()
    assert lines[0] == "query,client,client probability,abstains because,away"
    assert lines[-1].endswith(",a value cannot be (age 300: outside 0..120 years),")
    assert len(lines) == 303

    refusal = feddrm_command("query", url, patients)
    assert (refusal.returncode, refusal.stdout) == (1, "")
    assert "has a column 'id' that the router does not know" in refusal.stderr
    patients.write_text("age,sex,cp,chol\n50,0,1,200\n50,0,9,200\n")
    refusal = feddrm_command("query", url, patients)
    assert f"{patients}, row 3: column 'cp' is '9': give one of 1 (typical)" in refusal.stderr
    assert refusal.stderr.count("\n") == 1
    encoded = load_router(table_run / "router").schema.encode_named(  # type: ignore[union-attr]
        [{"age": 68, "sex": 1, "cp": 1, "chol": 240}]
    )
    header = ",".join(load_router(table_run / "router").columns or ())
    patients.write_text(f"{header}\n{','.join(map(str, encoded[0].tolist()))}\n")
    assert "oslo" in feddrm_command("query", url, patients).stdout
