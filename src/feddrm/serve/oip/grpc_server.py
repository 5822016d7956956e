"""The gRPC form of the Open Inference Protocol, version 2, beside the HTTP form.

Every call becomes a request to the ASGI application, in this process and event loop, and its response becomes the
call's answer. So both forms have the same keys, limits, checks, answers, metrics, log lines and audit records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

import grpc
import orjson
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from starlette.types import ASGIApp, Message, Scope

from feddrm.errors import FeddrmError
from feddrm.serve.http.certificate_files import CertificateFiles, certificate_files
from feddrm.serve.http.decode import SMALL_JSON, in_decoder
from feddrm.serve.oip.codec import LENGTH_HEADER
from feddrm.serve.oip.grpc_messages import MESSAGES, SERVICE, infer_head, infer_response, infer_tail
from feddrm.serve.settings import HttpSettings

# The gRPC status of every HTTP status of an error.
STATUS_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
}
# The path of a call, or what follows the model's name in it.
SERVER_PATHS = {"ServerLive": "/v2/health/live", "ServerReady": "/v2/health/ready", "ServerMetadata": "/v2"}
MODEL_PATHS = {"ModelReady": "/ready", "ModelMetadata": "", "ModelInfer": "/infer"}
# The metadata that count; others, such as the length of a body, are the translation's own.
HEADERS = frozenset(
    {"authorization", "x-api-key", "x-request-id", "traceparent", "tracestate", "origin"}
    | {"x-forwarded-for", "x-forwarded-proto"}
)
MAX_ERROR_CHARACTERS = 2000  # an error travels in a header, and clients refuse long ones
CONNECTION_SECONDS = 600  # after which a connection is replaced, so that a caller who reads nothing cannot keep it
IDLE_SECONDS = 75


class HttpAnswer(NamedTuple):
    """What the application answered."""

    status: int
    headers: dict[str, str]
    content: bytes


class GrpcServer:
    """Serves gRPC on a port. ``requests`` are tasks that the HTTP server waits for before it ends the application."""

    def __init__(self, app: ASGIApp, settings: HttpSettings, port: int, requests: set[asyncio.Task[Any]]) -> None:
        self.app, self.settings, self._requests = app, settings, requests
        self._calls: set[asyncio.Task[Any]] = set()
        self._server = grpc.aio.server(options=_options(settings), maximum_concurrent_rpcs=settings.max_connections)
        # On the wire a call with one message and a stream of one message are the same. A stream's handler is called
        # before the message has arrived, so the time for it can be limited.
        handlers = {
            method.name: grpc.stream_unary_rpc_method_handler(partial(self._call, method)) for method in SERVICE.methods
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))
        self._health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        _listen(self._server, settings, port)

    async def start(self) -> None:
        await self._health.set(SERVICE.full_name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def stop(self) -> None:
        """Take no more calls and give running ones ``grace_seconds`` to finish; streams of health checks just end."""
        await self._health.enter_graceful_shutdown()
        stopping = asyncio.create_task(self._server.stop(self.settings.grace_seconds))
        if self._calls:
            await asyncio.wait(self._calls, timeout=self.settings.grace_seconds)
        await self._server.stop(None)
        await stopping

    async def _call(self, method: Any, _: object, context: Any) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        # The request goes on when the caller leaves, as over HTTP: the audit log must have what clients were asked.
        # The message has no name here: gRPC keeps the frames of an aborted call until the garbage is collected.
        request = asyncio.create_task(self._request(method.name, await self._read(method, context), context))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        answer = await asyncio.shield(request)
        metadata = tuple(
            (name, value) for name, value in answer.headers.items() if name in ("x-request-id", "retry-after")
        )
        if answer.status == 503 and method.name.endswith("Ready"):
            answer = HttpAnswer(200, answer.headers, b'{"ready":false}')
        if answer.status != 200:
            code = STATUS_CODES.get(answer.status, grpc.StatusCode.UNKNOWN)
            await context.abort(code, _error_text(answer)[:MAX_ERROR_CHARACTERS], metadata)
        context.set_trailing_metadata(metadata)
        return _response(method, answer).SerializeToString()  # type: ignore[no-any-return]

    async def _read(self, method: Any, context: Any) -> Any:
        seconds = self.settings.body_seconds
        try:
            async with asyncio.timeout(seconds):
                return MESSAGES[method.input_type.name].FromString(await context.read())
        except TimeoutError:
            await context.abort(STATUS_CODES[408], f"the message took longer than {seconds:g} s: send less at a time")
        except (DecodeError, TypeError):  # TypeError: the stream ended without a message
            await context.abort(STATUS_CODES[400], f"this is no {method.input_type.name}: check the .proto file")

    async def _request(self, name: str, message: Any, context: Any) -> HttpAnswer:
        """The application's answer to a call."""
        headers = [(key.encode(), value.encode()) for key, value in context.invocation_metadata() if key in HEADERS]
        path = SERVER_PATHS.get(name) or _model_path(name, message)
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "2", "method": "GET", "path": path,
            "scheme": "http" if self.settings.tls_cert is None else "https", "raw_path": path.encode(),
            "root_path": "", "query_string": b"", "headers": headers, "client": _peer(context.peer()),
            "server": None, "state": {"rpc": name},
        }  # fmt: skip
        if name != "ModelInfer":
            return await _send(self.app, scope)
        head = infer_head(message)
        headers.append((LENGTH_HEADER.lower().encode(), str(len(head)).encode()))
        return await _send(self.app, scope | {"method": "POST"}, head, partial(_tail, message))


def _error_text(answer: HttpAnswer) -> str:
    if answer.headers.get("content-type") == "application/json":
        return str(orjson.loads(answer.content)["error"])
    return str(answer.content, "utf-8", "replace")  # of an error inside FastAPI


async def _tail(message: Any) -> bytes:
    if message.raw_input_contents or message.ByteSize() <= SMALL_JSON:
        return infer_tail(message)
    return await in_decoder(infer_tail, message)


async def _send(
    app: ASGIApp, scope: Scope, head: bytes = b"", tail: Callable[[], Awaitable[bytes]] | None = None
) -> HttpAnswer:
    """The answer of an ASGI application. It is given the body when it asks: it checks key and limits before."""
    status, parts = 0, []
    headers: dict[str, str] = {}

    async def receive() -> Message:
        return {"type": "http.request", "body": head if tail is None else head + await tail()}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        headers.update((str(key, "latin-1"), str(value, "latin-1")) for key, value in message.get("headers", ()))
        parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return HttpAnswer(status, headers, b"".join(parts))


def _model_path(name: str, message: Any) -> str:
    """The HTTP form's path of a call that names a model; a slash in the name cannot lead to another path."""
    infer = name == "ModelInfer"
    model, version = (message.model_name, message.model_version) if infer else (message.name, message.version)
    parts = [model or "(none)", *(["versions", version] if version else [])]
    return "/v2/models/" + "/".join(part.replace("/", "%2F") for part in parts) + MODEL_PATHS[name]


def _response(method: Any, answer: HttpAnswer) -> Any:
    if method.name == "ModelInfer":
        return infer_response(answer.content, int(answer.headers[LENGTH_HEADER.lower()]))
    response = MESSAGES[method.output_type.name]()
    return json_format.ParseDict(orjson.loads(answer.content), response, ignore_unknown_fields=True)


def _peer(text: str) -> tuple[str, int]:
    """Address and port of a caller, from gRPC's ``ipv4:127.0.0.1:5000`` or ``ipv6:%5B::1%5D:5000``."""
    host, _, port = unquote(text.partition(":")[2]).rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


def _options(settings: HttpSettings) -> list[tuple[str, int]]:
    """The limits of gRPC that correspond to those of the HTTP form."""
    return [
        ("grpc.so_reuseport", 0),  # a second server on the same port is an error
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.server_handshake_timeout_ms", round(1e3 * settings.body_seconds)),
        ("grpc.max_connection_idle_ms", 1000 * IDLE_SECONDS),
        ("grpc.max_connection_age_ms", 1000 * CONNECTION_SECONDS),
        ("grpc.max_connection_age_grace_ms", round(1e3 * settings.send_seconds)),
    ]


def _listen(server: Any, settings: HttpSettings, port: int) -> None:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        if (files := certificate_files(settings)) is None:
            server.add_insecure_port(f"{host}:{port}")
        else:
            server.add_secure_port(f"{host}:{port}", _credentials(files))
    except (OSError, RuntimeError, ValueError) as error:
        raise FeddrmError(f"cannot serve gRPC on {host} port {port} ({error}): choose another --grpc-port") from error


def _credentials(files: CertificateFiles) -> Any:
    """The certificate of new connections; gRPC asks for it at each of them."""

    def read() -> Any:
        return grpc.ssl_server_certificate_configuration([(files.key.read_bytes(), files.certificate.read_bytes())])

    return grpc.dynamic_ssl_server_credentials(read(), lambda: read() if files.renewed() else None)
