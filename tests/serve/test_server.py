from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from commands import python_script
from feddrm.io.connection_errors import FOREIGN, HANDSHAKE, NOT_TLS, SPEAKS_TLS
from feddrm.serve import server
from feddrm.serve.auth import add_key
from feddrm.serve.gateway_client import GatewayClient
from feddrm.serve.server import address, bind, bind_grpc
from feddrm.serve.settings import HttpSettings
from refusal import refused
from serving import Launch, until, write_certificate


def test_a_taken_port_is_an_error() -> None:
    with bind(HttpSettings(port=0)) as sock:
        port = sock.getsockname()[1]
        assert address(HttpSettings(), sock) == f"http://127.0.0.1:{port}"
        with refused("cannot listen", str(port), "--port"):
            bind(HttpSettings(port=port))
        with refused("cannot listen", str(port), "--grpc-port"):
            bind_grpc(HttpSettings(grpc_port=port))
    assert bind_grpc(HttpSettings()) is None
    with bind(HttpSettings(port=0)) as sock, bind(HttpSettings(), grpc=True) as other:
        port, grpc_port = sock.getsockname()[1], other.getsockname()[1]
        assert address(HttpSettings(), sock, other) == f"http://127.0.0.1:{port}, gRPC at 127.0.0.1:{grpc_port}"


def test_without_its_packages_the_grpc_form_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "feddrm.serve.oip.grpc_server", raising=False)
    with refused("--grpc-port needs more packages", "pip install 'feddrm[grpc]'"):
        bind_grpc(HttpSettings(grpc_port=0))
    assert bind_grpc(HttpSettings()) is None


def test_a_demo_of_very_many_clients_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "read_manifest", lambda _: {"clients": [f"c{i}" for i in range(101)]})
    with refused("has 101 clients", "at most 100", "feddrm predict"), server.demo_clients(tmp_path):
        pass


@pytest.mark.slow
def test_grpc_is_imported_only_if_it_is_served() -> None:
    """The process that starts all others has imported gateway and server."""
    names = ["feddrm.serve.server", "grpc", "google.protobuf"]
    script = f"import sys; print([name in sys.modules for name in {names}])"
    assert python_script(script).stdout.strip() == "[True, False, False]"


@pytest.mark.slow
def test_a_gateway_waits_for_no_statistics() -> None:
    """SciPy's would take a quarter of the time of its start."""
    names = ["feddrm.router", "feddrm.drm", "scipy.stats", "scipy.optimize"]
    script = f"import feddrm.serve.app, sys; print([name for name in {names} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['feddrm.router']"


@pytest.mark.slow
def test_in_a_demo_the_gateway_needs_a_key_and_its_clients_do_not(run: Path, launch: Launch, tmp_path: Path) -> None:
    headers = {"X-API-Key": add_key(tmp_path / "keys.yaml", "lab", ["predict"])}
    process = launch("serve", run, "--demo", "--port", 0, "--audit", tmp_path / "a.sqlite",
                     FEDDRM_SERVE_KEYS=str(tmp_path / "keys.yaml"), FEDDRM_SERVE_HOST="0.0.0.0")  # fmt: skip
    url, until = process.wait_ready(), time.monotonic() + 60
    body = {"features": [[0.0] * 16], "consult": 3}
    assert httpx.post(f"{url}/v1/predict", json=body).status_code == 401
    while (answer := httpx.post(f"{url}/v1/predict", json=body, headers=headers)).status_code != 200:
        assert "401" not in answer.text
        assert time.monotonic() < until, answer.text
        time.sleep(0.1)


@pytest.mark.slow
def test_clients_of_a_demo_answer_though_torch_may_use_several_threads(run: Path, tmp_path: Path) -> None:
    """Other tests start commands with one thread. The gateway reads the router before it forks its clients."""
    words = ["-m", "feddrm", "serve", str(run), "--demo", "--port", "0", "--audit", str(tmp_path / "audit.sqlite")]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            assert process.stdout is not None
            url, until = process.stdout.readline().split()[-1], time.monotonic() + 60
            while not all(client["healthy"] for client in httpx.get(f"{url}/v1/clients").json()["clients"]):
                assert time.monotonic() < until
                time.sleep(0.1)
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_gateway_serves_tls(run: Path, launch: Launch, tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    files = ["--tls-cert", cert, "--tls-key", key, "--audit", tmp_path / "a.sqlite"]
    process = launch("serve", run, "--port", 0, *files)
    url = process.url
    assert url.startswith("https://")
    with httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=str(cert)), timeout=20) as http:
        assert http.get("/v2/health/live").json() == {"live": True}
    with GatewayClient(url, ca=cert) as gateway:
        assert gateway.clients() == []
    for place, reason in ((url, FOREIGN), (url.replace("https", "http"), SPEAKS_TLS)):
        with GatewayClient(place) as gateway, refused(f"cannot reach {place}: {reason}"):
            gateway.clients()
    new, new_key = write_certificate(tmp_path / "new")
    shutil.copy(new, cert)
    shutil.copy(new_key, key)
    host, port = url.removeprefix("https://").split(":")
    until(lambda: ssl.get_server_certificate((host, int(port))) == new.read_text())
    with GatewayClient(url, ca=new) as gateway:
        assert gateway.clients() == []
    log = process.whole_log()
    assert all(HANDSHAKE[part] in log for part in ("UNKNOWN_CA", "HTTP_REQUEST"))


@pytest.mark.slow
def test_tls_files_that_cannot_be_used_are_named(run: Path, launch: Launch, tmp_path: Path) -> None:
    files = ["--tls-cert", tmp_path / "no.pem", "--tls-key", tmp_path / "no.key", "--audit", tmp_path / "a.sqlite"]
    process, until = launch("serve", run, "--port", 0, *files), time.monotonic() + 60
    while process.code() is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert process.code() == 1
    assert all(word in process.log.read_text() for word in (str(tmp_path / "no.pem"), "no.key", "--tls-cert"))


@pytest.mark.slow
def test_a_wrong_address_or_key_is_named_at_both_ends(run: Path, launch: Launch, tmp_path: Path) -> None:
    add_key(tmp_path / "keys.yaml", "lab", ["route", "admin"])
    process = launch("serve", run, "--port", 0, "--keys", tmp_path / "keys.yaml", "--audit", tmp_path / "a.sqlite")
    with GatewayClient(process.url, "") as gateway, refused("none was sent", "FEDDRM_KEY"):
        gateway.clients()
    with GatewayClient(process.url, "guess") as gateway, refused("this API key is unknown here"):
        gateway.clients()
    with GatewayClient(process.url.replace("http", "https")) as gateway, refused(NOT_TLS):
        gateway.clients()
    log = process.whole_log()
    assert '"caller":"(no key)"' in log
    assert '"caller":"(unknown key)"' in log
    assert "a caller speaks TLS to this port" in log
