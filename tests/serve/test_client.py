from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

import feddrm
from feddrm.serve import gateway_client


@pytest.mark.parametrize("pause", ["0", "Wed, 21 Oct 2015 07:28:00 GMT", "-1", "nan", "9" * 5000])
def test_a_busy_gateway_is_asked_again_whatever_it_says_of_the_pause(
    pause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy before it may say it in its own way."""
    said = [429, 200]

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(said.pop(0))
            self.send_header("Retry-After", pause)
            self.end_headers()
            self.wfile.write(b'{"decisions": []}')

        def log_message(self, *_: object) -> None:
            """To nobody."""

    waited: list[float] = []
    monkeypatch.setattr(gateway_client.time, "sleep", waited.append)
    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with feddrm.Client(f"http://127.0.0.1:{server.server_port}") as gateway:
                assert gateway.route(features=[[1.0]]) == []
        finally:
            server.shutdown()
            thread.join()
    assert not said
    assert 0 <= waited[0] <= 5
