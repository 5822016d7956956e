"""The token for the SuperLink's control interface, made from the secret in the server's folder."""

from __future__ import annotations

import hmac

import httpx
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext


def control_token(secret: bytes) -> str:
    """The token for the control interface. The secret itself is never sent."""
    return hmac.digest(secret, b"feddrm control", "sha256").hex()


class TokenInterceptor:
    """Adds the token to every call of a control client."""

    def __init__(self, token: str) -> None:
        self.token = token

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers["Authorization"] = f"Bearer {self.token}"
        return call_next(context)
