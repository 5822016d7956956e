"""Flower's SuperLink with access control: ``python -m feddrm.deploy.flower.superlink SECRET ARGS...``.

Without an account plugin, Flower 1.41 lets everybody who reaches the port register and remove nodes and start and
stop runs. This plugin requires, in every call of the control interface, a token made from the secret in the
server's folder.
"""

from __future__ import annotations

import hmac
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
from flwr.common.constant import ACCESS_TOKEN_KEY
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli import flower_superlink


def control_token(secret: bytes) -> str:
    """The token for the control interface. The secret itself is never sent."""
    return hmac.digest(secret, b"feddrm control", "sha256").hex()


class TokenAuthPlugin(NoOpControlAuthnPlugin):
    """Accepts calls that bring the token, as one account."""

    def __init__(self, token: str) -> None:
        self.token = token

    def validate_tokens_in_metadata(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[bool, AccountInfo | None]:
        given = dict(metadata).get(ACCESS_TOKEN_KEY, b"")
        given = given.encode() if isinstance(given, str) else given
        if not hmac.compare_digest(given, self.token.encode()):
            return False, None
        return super().validate_tokens_in_metadata(metadata)

    def refresh_tokens(
        self,
        metadata: Sequence[tuple[str, str | bytes]],  # noqa: ARG002
    ) -> tuple[Sequence[tuple[str, str | bytes]] | None, AccountInfo | None]:
        """Refuse everybody. Flower's gRPC interface calls this after a refusal; the inherited method accepts all."""
        return None, None


class TokenInterceptor:
    """Adds the token to every call of a control client."""

    def __init__(self, token: str) -> None:
        self.token = token

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers["Authorization"] = f"Bearer {self.token}"
        return call_next(context)


def main() -> None:
    """Run the SuperLink. The first argument is the file with the secret."""
    token = control_token(Path(sys.argv.pop(1)).read_bytes())
    module = sys.modules[flower_superlink.__module__]
    assert hasattr(module, "load_control_authn_plugin")
    module.load_control_authn_plugin = lambda: TokenAuthPlugin(token)  # type: ignore[attr-defined]
    flower_superlink()


if __name__ == "__main__":
    main()
