"""Gateway and predictor, asked by tritonclient over HTTP and gRPC: one test for all four."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("grpc_health", reason="pip install 'feddrm[grpc]' to run this")

import grpc
import httpx
import numpy as np
import torch
import tritonclient.grpc
import tritonclient.http
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.utils import InferenceServerException

from feddrm.predictor.predictor import Predictor
from feddrm.router import load_router
from feddrm.serve.auth import add_key
from feddrm.serve.oip.grpc_messages import MESSAGES, SERVICE
from serving import NAMES, Launch, Process, until, write_certificate

pytestmark = pytest.mark.slow

HTTP, GRPC = tritonclient.http, tritonclient.grpc
ALL = [(server, form) for server in ("gateway", "predictor") for form in (HTTP, GRPC)]


class Servers(NamedTuple):
    """A gateway with its clients and a predictor, each with both forms, and the key to both."""

    gateway: Process
    predictor: Process
    headers: dict[str, str]
    audit: Path


class Asker:
    """tritonclient, connected to one form of one server."""

    def __init__(self, servers: Servers, server: str, form: Any) -> None:
        process, self.form, self.headers = getattr(servers, server), form, servers.headers
        self.model = "federation" if server == "gateway" else "fax"
        address = process.url.partition("://")[2] if form is HTTP else process.grpc_address
        self.client = form.InferenceServerClient(address)

    def tensor(self, x: np.ndarray, name: str = "input", datatype: str = "", **options: Any) -> Any:
        kind = datatype or {"uint8": "UINT8", "float32": "FP32", "float64": "FP64", "int64": "INT64"}[x.dtype.name]
        tensor = self.form.InferInput(name, x.shape, kind)
        return tensor.set_data_from_numpy(x, **options)

    def infer(self, tensor: Any, model: str = "", **options: Any) -> Any:
        headers = dict(options.pop("headers", self.headers))  # tritonclient adds its own to the dictionary
        return self.client.infer(model or self.model, [tensor], headers=headers, **options)

    def error(self, tensor: Any, model: str = "", **options: Any) -> tuple[str, str]:
        """Status and text of the error."""
        with pytest.raises(InferenceServerException) as error:
            self.infer(tensor, model, **options)
        return error.value.status(), error.value.message()


@pytest.fixture(scope="module")
def servers(run: Path, launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Servers:
    folder = tmp_path_factory.mktemp("servers")
    keys = folder / "keys.yaml"
    headers = {"x-api-key": add_key(keys, "lab", ["route", "predict", "admin"])}
    ports = ["--port", 0, "--grpc-port", 0, "--keys", keys]
    predictor = launch("serve-client", run / "clients" / "fax", *ports, FEDDRM_SERVE_MAX_ROWS="100")
    gateway = launch("serve", run, "--demo", *ports, "--audit", folder / "audit.sqlite", FEDDRM_SERVE_MAX_ROWS="100")
    predictor.wait_ready()
    url = gateway.wait_ready()
    until(lambda: all(c["healthy"] for c in httpx.get(f"{url}/v1/clients", headers=headers).json()["clients"]), 60)
    return Servers(gateway, predictor, headers, folder / "audit.sqlite")


@pytest.fixture(params=ALL, ids=lambda pair: f"{pair[0]}-{pair[1].__name__.rpartition('.')[2]}")
def asker(servers: Servers, request: pytest.FixtureRequest) -> Iterator[Asker]:
    asker = Asker(servers, *request.param)
    yield asker
    asker.client.close()


def test_health_and_metadata(asker: Asker) -> None:
    client, as_json = asker.client, {} if asker.form is HTTP else {"as_json": True}
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(asker.model)
    about = client.get_server_metadata(**as_json)
    assert (about["name"], about["extensions"]) == ("feddrm", ["binary_tensor_data"])
    model = client.get_model_metadata(asker.model, **as_json)
    assert (model["name"], model["platform"], len(model["versions"])) == (asker.model, "feddrm", 1)
    tensors = {tensor["name"]: (tensor["datatype"], list(map(int, tensor["shape"]))) for tensor in model["inputs"]}
    assert tensors == {"input": ("UINT8", [-1, 1, 8, 8]), "features": ("FP32", [-1, 16])}
    outputs = {tensor["name"]: tensor["datatype"] for tensor in model["outputs"]}
    assert (outputs["probabilities"], outputs["label"]) == ("FP32", "BYTES")
    with pytest.raises(InferenceServerException, match="no model 'nobody'"):
        client.get_model_metadata("nobody")


def test_the_router_answers_as_in_one_process(servers: Servers, run: Path, images: torch.Tensor) -> None:
    """Pixels and features, as bytes and as JSON, over both forms."""
    router = load_router(run / "router")
    expected, features = router.route(images), router.features(images).numpy()
    for form in (HTTP, GRPC):
        asker = Asker(servers, "gateway", form)
        ways = [asker.tensor(images.numpy()), asker.tensor(features, "features")]
        if form is HTTP:
            ways += [
                asker.tensor(images.numpy(), binary_data=False),
                asker.tensor(features, "features", binary_data=False),
            ]
        ways.append(asker.tensor(features.astype(np.float64), "features"))
        for tensor in ways:
            answer = asker.infer(tensor, "router", request_id="7")
            response = answer.get_response() if form is HTTP else answer.get_response(as_json=True)
            assert (response["id"], response["model_name"]) == ("7", "router")
            assert np.allclose(answer.as_numpy("probabilities"), expected.probabilities, atol=1e-5)
            clients = [NAMES[number].encode() for number in expected.client]
            assert answer.as_numpy("client").tolist() == clients
            assert answer.as_numpy("abstain").dtype == bool
        asker.client.close()


def test_answers_are_the_clients_and_several_outputs_can_be_wanted(
    asker: Asker, run: Path, images: torch.Tensor
) -> None:
    (expected,) = Predictor.load(run / "clients" / "fax")([("inputs", images.numpy())])
    wanted = ["label", "probabilities"]
    # The gateway is left one client to ask, so that its answer is this client's.
    only = {} if asker.model == "fax" else {"parameters": {"without": "flatbed,negative", "max_away": 1.0}}
    kinds = [{}, {"binary_data": False}] if asker.form is HTTP else [{}]
    for kind in kinds:
        outputs = [asker.form.InferRequestedOutput(name, **kind) for name in wanted]
        answer = asker.infer(asker.tensor(images.numpy()), outputs=outputs, **only)
        response = answer.get_response() if asker.form is HTTP else answer.get_response(as_json=True)
        assert [output["name"] for output in response["outputs"]] == wanted
        assert np.allclose(answer.as_numpy("probabilities"), expected, atol=1e-5)
        labels = [str(label) for label in expected.argmax(1)]
        texts = [text.decode() if isinstance(text, bytes) else text for text in answer.as_numpy("label")]
        assert texts == labels
    names = [output["name"] for output in asker.client.get_model_metadata(asker.model, **(
        {} if asker.form is HTTP else {"as_json": True}))["outputs"]]  # fmt: skip
    every = [asker.form.InferRequestedOutput(name) for name in names]
    answer = asker.infer(asker.tensor(images.numpy()), outputs=every, parameters={"label_miss": 0.1})
    assert all(answer.as_numpy(name) is not None for name in names)


def test_every_wrong_request_is_one_clear_error(asker: Asker, images: torch.Tensor) -> None:
    x, invalid = images.numpy(), "422" if asker.form is HTTP else "StatusCode.INVALID_ARGUMENT"
    missing = "404" if asker.form is HTTP else "StatusCode.NOT_FOUND"
    output = asker.form.InferRequestedOutput("colour")
    for status, text, found in (
        (missing, "no model 'nobody'", asker.error(asker.tensor(x), "nobody")),
        (missing, "version '3'", asker.error(asker.tensor(x), model_version="3")),
        (invalid, "named 'input' or 'features'", asker.error(asker.tensor(x, "pixels"))),
        (invalid, "give [n, 1, 8, 8]", asker.error(asker.tensor(x[:, :, :4]))),
        (invalid, "datatype", asker.error(asker.tensor(x.astype(np.int64)))),
        (invalid, "give 1 to 100 in one request", asker.error(asker.tensor(np.repeat(x[:1], 101, 0)))),
        (invalid, "no output 'colour'", asker.error(asker.tensor(x), outputs=[output])),
        (invalid, "label_miss", asker.error(asker.tensor(x), parameters={"label_miss": 2.0})),
        (invalid, "did you mean 'label_miss'", asker.error(asker.tensor(x), parameters={"label_mis": 0.1})),
    ):
        assert found[0] == status, found
        assert text in found[1]
        assert "\n" not in found[1]
    if asker.form is HTTP:
        status, text = asker.error(asker.tensor(x), request_compression_algorithm="gzip")
        assert (status, "Content-Encoding" in text) == ("415", True)
    else:
        assert asker.infer(asker.tensor(x), compression_algorithm="gzip") is not None


def test_keys_are_sent_as_headers(asker: Asker, images: torch.Tensor) -> None:
    status = "401" if asker.form is HTTP else "StatusCode.UNAUTHENTICATED"
    for headers in ({}, {"x-api-key": "guess"}):
        assert asker.error(asker.tensor(images.numpy()), headers=headers)[0] == status
    bearer = {"authorization": f"Bearer {asker.headers['x-api-key']}"}
    assert asker.infer(asker.tensor(images.numpy()), headers=bearer) is not None


def test_a_call_is_counted_and_recorded_like_a_request(servers: Servers, images: torch.Tensor) -> None:
    asker = Asker(servers, "gateway", GRPC)
    url, counted = servers.gateway.url, 'feddrm_requests_total{path="/v2/models/{model}/infer",status="200"}'

    def count() -> float:
        lines = httpx.get(f"{url}/metrics", headers=servers.headers).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(counted))

    before = count()
    asker.infer(asker.tensor(images[:1].numpy()), headers={**servers.headers, "x-request-id": "by-grpc"})
    assert count() == before + 1

    def recorded() -> list[tuple[str, str]]:
        with sqlite3.connect(servers.audit) as audit:
            return audit.execute("SELECT caller, action FROM decisions WHERE request_id = 'by-grpc'").fetchall()

    until(lambda: bool(recorded()))
    assert recorded() == [("lab", "predict")]
    asker.client.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_tls_has_the_certificate_of_the_http_form(
    run: Path, launch: Launch, tmp_path: Path, images: torch.Tensor
) -> None:
    cert, key = write_certificate(tmp_path)
    files = ["--tls-cert", cert, "--tls-key", key, "--audit", tmp_path / "a.sqlite"]
    process = launch("serve", run, "--port", 0, "--grpc-port", 0, *files)
    client = GRPC.InferenceServerClient(process.grpc_address, ssl=True, root_certificates=str(cert))
    until(lambda: httpx.get(f"{process.url}/v2/health/ready", verify=False).status_code == 200)
    until(client.is_server_ready)
    plain = GRPC.InferenceServerClient(process.grpc_address)
    with pytest.raises(InferenceServerException):
        plain.is_server_live(client_timeout=5)
    new, new_key = write_certificate(tmp_path / "new")
    shutil.copy(new, cert)
    shutil.copy(new_key, key)
    host, port = process.grpc_address.split(":")
    until(lambda: ssl.get_server_certificate((host, int(port))) == new.read_text())
    for connected in (client, plain):
        connected.close()
    for line in process.whole_log().splitlines():
        json.loads(line)


def test_behind_a_proxy_the_rate_is_that_of_the_forwarded_address(
    run: Path, launch: Launch, tmp_path: Path, images: torch.Tensor
) -> None:
    words = ["--port", 0, "--grpc-port", 0, "--proxy", "127.0.0.1", "--rate", 0.01, "--audit", tmp_path / "a.sqlite"]
    process = launch("serve", run, *words)
    process.wait_ready()
    asker = Asker(Servers(process, process, {}, tmp_path), "gateway", GRPC)
    for address in ("10.0.0.1", "10.0.0.2"):
        assert asker.infer(asker.tensor(images.numpy()), "router", headers={"x-forwarded-for": address}) is not None
    status, text = asker.error(asker.tensor(images.numpy()), "router", headers={"x-forwarded-for": "10.0.0.2"})
    assert (status, "requests a second" in text) == ("StatusCode.RESOURCE_EXHAUSTED", True)
    asker.client.close()


class SlowClient(BaseHTTPRequestHandler):
    """A client that is healthy, and answers nothing before it may."""

    asked, may_answer = threading.Event(), threading.Event()

    def do_GET(self) -> None:
        self._answer(200, b"{}")

    def do_POST(self) -> None:
        self.asked.set()
        self.may_answer.wait(60)
        self._answer(500, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_call_that_runs_is_answered_before_the_end(run: Path, launch: Launch, tmp_path: Path) -> None:
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), SlowClient)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    entry = {"url": f"http://127.0.0.1:{upstream.server_port}", "timeout": 60.0}
    (tmp_path / "clients.yaml").write_text(yaml.safe_dump(dict.fromkeys(NAMES, entry)))
    audit = tmp_path / "a.sqlite"
    words = ["--clients", tmp_path / "clients.yaml", "--port", 0, "--grpc-port", 0, "--audit", audit]
    process = launch("serve", run, *words, FEDDRM_SERVE_GRACE_SECONDS="60", FEDDRM_SERVE_DEADLINE_SECONDS="60")
    url = process.wait_ready()
    until(lambda: all(c["healthy"] for c in httpx.get(f"{url}/v1/clients").json()["clients"]))
    request = MESSAGES["ModelInferRequest"](model_name="federation")
    request.inputs.add(name="features", datatype="FP32", shape=[1, 16]).contents.fp32_contents.extend([0.0] * 16)
    with grpc.insecure_channel(process.grpc_address) as channel, ThreadPoolExecutor() as threads:
        health = health_pb2_grpc.HealthStub(channel)
        status = health.Check(health_pb2.HealthCheckRequest(service=SERVICE.full_name)).status
        assert status == health_pb2.HealthCheckResponse.SERVING
        ask = channel.unary_unary(f"/{SERVICE.full_name}/ModelInfer")
        running = threads.submit(ask, request.SerializeToString(), timeout=60)
        assert SlowClient.asked.wait(60)
        process.send(signal.SIGTERM)

        def refuses() -> bool:
            with grpc.insecure_channel(process.grpc_address) as other:
                try:
                    other.unary_unary(f"/{SERVICE.full_name}/ServerLive")(b"", timeout=5)
                except grpc.RpcError as error:
                    return error.code() == grpc.StatusCode.UNAVAILABLE
            return False

        until(refuses)
        assert not running.done()
        SlowClient.may_answer.set()
        answer = MESSAGES["ModelInferResponse"].FromString(running.result(60))
    names = [output.name for output in answer.outputs]
    assert b"best client away" in answer.raw_output_contents[names.index("reason")]
    assert process.wait() == 0
    assert '"method":"ModelInfer"' in process.log.read_text()
    upstream.shutdown()
    upstream.server_close()
    with sqlite3.connect(audit) as records:
        assert records.execute("SELECT count(*) FROM decisions").fetchone() == (1,)
