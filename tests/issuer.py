"""An issuer of tokens on this machine, for tests: real keys, and a server of its JWKS."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = "https://login.example", "feddrm"


def private_key(algorithm: str, bits: int = 2048) -> Any:
    match algorithm[:2]:
        case "ES":
            return ec.generate_private_key(ec.SECP256R1())
        case "Ed":
            return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65537, bits)


class Issuer:
    """Keys by id. ``status`` and ``body`` are what the server of its JWKS answers; ``asked`` counts its requests.

    ``pause`` are the seconds between any two bytes of the body.
    """

    def __init__(self) -> None:
        self.private: dict[str, tuple[str, Any]] = {}
        self.status, self.asked, self.url, self.pause = 200, 0, "", 0.0
        self.body: bytes | None = None
        self.address, self.about = "", b""  # itself, and what it says of itself
        self.add("one", "RS256")

    def add(self, kid: str, algorithm: str, bits: int = 2048) -> None:
        self.private[kid] = algorithm, private_key(algorithm, bits)

    def public(self, kid: str) -> Any:
        return self.private[kid][1].public_key()

    def jwk(self, kid: str, **more: Any) -> dict[str, Any]:
        """One public key as the JWKS has it."""
        kinds: dict[str, Any] = {"ES": ECAlgorithm, "Ed": OKPAlgorithm}
        kind = kinds.get(self.private[kid][0][:2], RSAAlgorithm)
        return {"kid": kid, "use": "sig", **json.loads(kind.to_jwk(self.public(kid))), **more}

    def jwks(self) -> bytes:
        return json.dumps({"keys": [self.jwk(kid) for kid in self.private]}).encode()

    def token(self, kid: str = "one", headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token that is valid for a minute; claims of value None are left out."""
        now = int(time.time())
        given = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 60, "scope": "route predict"}
        content = {name: value for name, value in (given | claims).items() if value is not None}
        algorithm, key = self.private[kid]
        return jwt.encode(content, key, algorithm, headers={"kid": kid, **(headers or {})})


@contextmanager
def serving(issuer: Issuer) -> Iterator[Issuer]:
    """Serve the issuer's JWKS, and where it is, on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/realm/.well-known/openid-configuration":
                body = issuer.about
            else:
                issuer.asked += 1
                body = issuer.jwks() if issuer.body is None else issuer.body
            self.send_response(issuer.status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Location", issuer.url)
            self.end_headers()
            with suppress(OSError):  # the other end may have left
                for part in (bytes([value]) for value in body) if issuer.pause else [body]:
                    time.sleep(issuer.pause)
                    self.wfile.write(part)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    issuer.url, issuer.address = f"{address}/jwks", f"{address}/realm"
    issuer.about = json.dumps({"issuer": issuer.address, "jwks_uri": issuer.url}).encode()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
