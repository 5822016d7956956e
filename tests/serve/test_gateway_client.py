from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

import feddrm
from feddrm.errors import FeddrmError
from feddrm.router import load_router
from feddrm.serve import gateway_client
from refusal import refused
from serving import NAMES


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
    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with feddrm.GatewayClient(f"http://127.0.0.1:{server.server_port}") as gateway:
                assert gateway.route(features=[[1.0]]) == []
        finally:
            server.shutdown()
            thread.join()
    assert not statuses
    assert 0 <= waited[0] <= 5


def test_the_former_name_still_works() -> None:
    assert feddrm.Client is feddrm.GatewayClient is gateway_client.Client


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
    words = [sys.executable, "-m", "feddrm", "query", demo, str(path), "--predict", "--json"]
    shell = json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)
    assert shell[0]["client"] == found["client"]
    with pytest.raises(FeddrmError, match="is it running"):
        feddrm.GatewayClient("http://127.0.0.1:9").route(path)
