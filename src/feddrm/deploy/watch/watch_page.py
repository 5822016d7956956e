"""The page of a training, and its metrics, on the loopback interface of the server's machine."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from feddrm.deploy.rotating_log import log
from feddrm.deploy.watch.training_metrics import training_metrics
from feddrm.deploy.watch.watch_state import watch_state
from feddrm.errors import FeddrmError
from feddrm.io.page_files import SECURITY_POLICY, content_type, page_files
from feddrm.io.text import json_line

STATIC = Path(__file__).parent / "static"
HOSTS = ("127.0.0.1", "localhost", "[::1]")
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class WatchPage(ThreadingHTTPServer):
    """Serves the page in threads of its own. It only reads the server's files; nothing can be changed through it."""

    daemon_threads = True

    def __init__(self, server: Path, port: int) -> None:
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise FeddrmError(
                f"watch: port {port} cannot be used ({error.strerror}): choose another in federation.yaml"
            ) from error
        self.folder, self.files = server, page_files(STATIC)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        log.info("the training is shown at http://127.0.0.1:%d", self.server_port)


class _Handler(BaseHTTPRequestHandler):
    server: WatchPage
    server_version = "feddrm"
    timeout = 10.0  # seconds: a caller who sends or reads nothing must not keep a thread of the server's process

    def do_GET(self) -> None:
        """Answer a page's file, the state or the metrics."""
        name = self.path.partition("?")[0].lstrip("/") or "index.html"
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in HOSTS:  # a page of another host name that a browser was told is here
            self._answer(403, "application/json", json_line({"error": "this page is for this machine only"}))
            return
        try:
            if name == "state":
                self._answer(200, "application/json", json_line(watch_state(self.server.folder)))
            elif name == "metrics":
                self._answer(200, METRICS_TYPE, training_metrics(self.server.folder))
            elif name in self.server.files:
                self._answer(200, content_type(name), self.server.files[name])
            else:
                self._answer(404, "application/json", json_line({"error": "no such page"}))
        except FeddrmError as error:  # a file that cannot be read, such as a federation.yaml that is being edited
            self._answer(500, "application/json", json_line({"error": str(error)}))

    def _answer(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store"}
        for name, value in {**headers, "Content-Security-Policy": SECURITY_POLICY}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: the page asks every second."""
