"""Running an application: its socket, its log, its end; and a whole federation on one machine for a demo."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import uvicorn
import yaml
from starlette.types import ASGIApp

from feddrm.errors import FeddrmError
from feddrm.io.run_files import CLIENTS_FOLDER, ROUTER_FOLDER
from feddrm.router import read_manifest
from feddrm.serve.http.connection import connection
from feddrm.serve.predictor.predictor import Predictor
from feddrm.serve.predictor.predictor_app import build_predictor
from feddrm.serve.settings import PredictorSettings, ServerSettings
from feddrm.serve.telemetry.logs import logging_json


def bind(settings: ServerSettings) -> socket.socket:
    """A listening socket, so that a port that is taken is known before anything is loaded."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
        found.listen(2048)
    except OSError as error:
        found.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise FeddrmError(
            f"cannot listen on {settings.host} port {settings.port} ({reason}): choose another --port"
        ) from error
    return found


def address(settings: ServerSettings, sock: socket.socket) -> str:
    """Where it can be reached."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'http' if settings.tls_cert is None else 'https'}://{host}:{sock.getsockname()[1]}"


def run_app(app: ASGIApp, settings: ServerSettings, sock: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C; requests under way are answered first, for ``grace_seconds``."""
    torch.set_num_threads(1)  # queries are small, and the other cores have clients, callers and the log to serve
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        http=connection(settings),
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=settings.grace_seconds,
        timeout_keep_alive=75,
        proxy_headers=bool(settings.proxy),
        forwarded_allow_ips=settings.proxy or None,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    server = uvicorn.Server(config)
    # For signals that come before uvicorn listens to them, and when it raises them again at its end: a service
    # that was told to stop has not failed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    try:
        config.load()
    except (OSError, ValueError) as error:
        raise FeddrmError(f"cannot use the TLS files ({error}): check --tls-cert and --tls-key") from error
    # What has been loaded stays: looking through all of it for garbage again and again is what long pauses are made of.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    with logging_json(settings.log_level):
        server.run(sockets=[sock])


@contextlib.contextmanager
def demo_clients(run: Path) -> Iterator[Path]:
    """A predictor for every client of a run, each in a process of its own on this machine; yields clients.yaml."""
    names = read_manifest(run / ROUTER_FOLDER)["clients"]  # some clients of the training may have left the router
    folders = sorted(path for path in (run / CLIENTS_FOLDER).glob("*") if path.is_dir() and path.name in names)
    if not folders:
        raise FeddrmError(
            f"{run} has no clients to start: train it with 'feddrm train'; those of a deployed federation are started "
            "on their sites with 'feddrm serve-client', and named here by --clients"
        )
    # Of the environment's settings only the limits are theirs: address, keys and TLS are the gateway's own.
    own: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "rate": 0, "open": False, "log_level": "warning"}
    own |= dict.fromkeys(("keys", "tls_cert", "tls_key"))
    settings = PredictorSettings(**own)
    fork, processes, entries = multiprocessing.get_context("fork"), [], {}
    alive, keep = os.pipe()  # nobody writes: its end tells the clients that the gateway has gone
    for folder in folders:
        sock = bind(settings)
        process = fork.Process(target=_demo_client, args=(folder, settings, sock, alive, keep), daemon=True)
        process.start()
        processes.append(process)
        entries[folder.name] = {"url": address(settings, sock)}
        sock.close()
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "clients.yaml"
        path.write_text(yaml.safe_dump(entries))
        try:
            yield path
        finally:
            os.close(keep)
            for process in processes:
                process.terminate()
            for process in processes:
                process.join(settings.grace_seconds)


def _demo_client(folder: Path, settings: PredictorSettings, sock: socket.socket, alive: int, keep: int) -> None:
    os.close(keep)

    def follow() -> None:
        os.read(alive, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    try:
        run_app(build_predictor(Predictor.load(folder), settings), settings, sock)
    except FeddrmError as error:
        print(f"feddrm: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
