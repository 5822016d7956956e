"""The HTTP server: it runs an application on a socket, and all clients of a run on one machine for a demo."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
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
from typing import TYPE_CHECKING, Any

import torch
import uvicorn
from starlette.types import ASGIApp

from feddrm.errors import FeddrmError
from feddrm.io.connection_errors import HandshakeLog
from feddrm.io.run_files import RunFiles
from feddrm.io.shards import SHARD_SIZE
from feddrm.io.text import yaml_bytes
from feddrm.predictor.predictor import Predictor
from feddrm.router import read_manifest
from feddrm.serve.http.certificate_files import certificate_files
from feddrm.serve.http.connection import connection_class
from feddrm.serve.predictor.predictor_app import build_predictor
from feddrm.serve.settings import HttpSettings, PredictorSettings
from feddrm.serve.telemetry.logs import json_logging

if TYPE_CHECKING:
    from feddrm.serve.oip.grpc_server import GrpcServer

TICKS_A_SECOND = 10  # of uvicorn


def bind(settings: HttpSettings, *, grpc: bool = False) -> socket.socket:
    """A listening socket. It is opened before anything is loaded, so that a taken port is an early error."""
    port, option = (settings.grpc_port or 0, "--grpc-port") if grpc else (settings.port, "--port")
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise FeddrmError(
            f"cannot listen on {settings.host} port {port} ({reason}): choose another {option}"
        ) from error
    return sock


def bind_grpc(settings: HttpSettings) -> socket.socket | None:
    """The socket that holds the port of the gRPC form until its server takes the port; None without one."""
    if settings.grpc_port is None:
        return None
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it writes to standard error, and not as JSON lines
    try:
        import feddrm.serve.oip.grpc_server  # noqa: F401 - its packages are an extra of their own
    except ImportError as error:
        raise FeddrmError(f"--grpc-port needs more packages ({error}): pip install 'feddrm[grpc]'") from error
    return bind(settings, grpc=True)


def address(settings: HttpSettings, sock: socket.socket, grpc_sock: socket.socket | None = None) -> str:
    """The URL of the socket, and the address of the gRPC form if there is one."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"{'http' if settings.tls_cert is None else 'https'}://{host}:{sock.getsockname()[1]}"
    return url if grpc_sock is None else f"{url}, gRPC at {host}:{grpc_sock.getsockname()[1]}"


class BothForms(uvicorn.Server):
    """uvicorn and, if there is a socket for it, the gRPC form: both start and end together, in one event loop."""

    def __init__(self, config: uvicorn.Config, settings: HttpSettings, grpc_sock: socket.socket | None) -> None:
        super().__init__(config)
        self.settings, self.grpc_sock = settings, grpc_sock
        self.grpc: GrpcServer | None = None
        self.tls = certificate_files(settings)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.grpc_sock is not None:
            from feddrm.serve.oip.grpc_server import GrpcServer

            port = self.grpc_sock.getsockname()[1]
            self.grpc_sock.close()
            self.grpc = GrpcServer(self.config.loaded_app, self.settings, port, self.server_state.tasks)
        await super().startup(sockets)
        if self.grpc is not None and self.started:
            await self.grpc.start()

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_A_SECOND == 0 and self.tls is not None and self.config.ssl is not None:
            self.tls.renew(self.config.ssl)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.grpc is not None:  # uvicorn waits for this task before it ends the application
            stopping = asyncio.create_task(self.grpc.stop())
            self.server_state.tasks.add(stopping)
            stopping.add_done_callback(self.server_state.tasks.discard)
        await super().shutdown(sockets)


def run_app(app: ASGIApp, settings: HttpSettings, sock: socket.socket, grpc_sock: socket.socket | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C; running requests get ``grace_seconds`` to finish.

    The caller opens the log (``json_logging``) before it builds the application, which has warnings of its own.
    """
    torch.set_num_threads(1)  # queries are small, and other cores are needed by clients, callers and the log
    keep_freed_memory()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        http=connection_class(settings),
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=settings.grace_seconds,
        timeout_keep_alive=75,
        proxy_headers=bool(settings.proxy),
        forwarded_allow_ips=settings.proxy or None,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    server = BothForms(config, settings, grpc_sock)
    # For signals that arrive before uvicorn handles them, and for those that it raises again when it ends: a service
    # that was asked to stop exits with 0.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    try:
        config.load()
    except (OSError, ValueError) as error:
        files = f"{settings.tls_cert} and {settings.tls_key}"
        raise FeddrmError(f"cannot use {files} for TLS ({error}): check --tls-cert and --tls-key") from error
    if config.ssl is not None:
        config.ssl.sslobject_class = HandshakeLog
    # Loaded objects stay until the end. Searching all of them for garbage again and again would cause long pauses.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    server.run(sockets=[sock])


def keep_freed_memory() -> None:
    """Let the process keep up to 64 MiB of freed memory for the next batch.

    Otherwise the numbers of a batch over many clients come from the system as new pages every time. That takes longer
    than to compute them (docs/scale.md). Only the GNU C library can be told so.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            library.mallopt(option, 2**26)


@contextlib.contextmanager
def demo_clients(run: Path, **shared: Any) -> Iterator[Path]:
    """Start a predictor for every client of a run, each in its own process; yields their clients.yaml.

    ``shared`` are the settings that the predictors have in common with the gateway.
    """
    files = RunFiles(run)
    names = read_manifest(files.router)["clients"]  # some clients of the training may have left the router
    if len(names) > SHARD_SIZE:
        raise FeddrmError(
            f"{run} has {len(names):,} clients, and --demo starts a process for each of at most {SHARD_SIZE}: leave it "
            f"out to route queries only; 'feddrm predict {run} FILE' answers them from the run's folder"
        )
    folders = sorted(path for path in files.clients.glob("*") if path.is_dir() and path.name in names)
    if not folders:
        raise FeddrmError(
            f"{run} has no clients to start: train it with 'feddrm train'; start the clients of a deployed federation "
            "on their sites with 'feddrm serve-client', and name them here by --clients"
        )
    Predictor.load(folders[0])  # here first: a plugin that all of them lack is one line, and nothing is started
    # The predictors take the limits from the environment; address, keys and TLS there are the gateway's.
    own: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "rate": 0, "open": False, "log_level": "warning"}
    own |= dict.fromkeys(("keys", "tls_cert", "tls_key", "oidc_issuer", "oidc_audience", "oidc_jwks"))
    settings = PredictorSettings(**own, **shared)
    fork, processes, entries = multiprocessing.get_context("fork"), [], {}
    # Nobody writes to this pipe. When the gateway ends, the pipe closes, and the predictors end as well.
    read_end, write_end = os.pipe()
    for folder in folders:
        sock = bind(settings)
        process = fork.Process(target=_demo_client, args=(folder, settings, sock, read_end, write_end), daemon=True)
        process.start()
        processes.append(process)
        entries[folder.name] = {"url": address(settings, sock)}
        sock.close()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "clients.yaml"
        path.write_bytes(yaml_bytes(entries))
        try:
            yield path
        finally:
            os.close(write_end)
            for process in processes:
                process.terminate()
            for process in processes:
                process.join(settings.grace_seconds)


def _demo_client(folder: Path, settings: PredictorSettings, sock: socket.socket, read_end: int, write_end: int) -> None:
    os.close(write_end)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until run_app handles it: the command's handler is the parent's
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the gateway ends this one

    def end_with_gateway() -> None:
        os.read(read_end, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_gateway, daemon=True).start()
    try:
        with json_logging(settings.log_level):
            run_app(build_predictor(Predictor.load(folder, views=settings.views), settings), settings, sock)
    except FeddrmError as error:
        print(f"feddrm: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
