"""Flower's SuperLink with access control: ``python -m feddrm.deploy.flower.superlink SECRET ARGS...``.

Without an account plugin, Flower 1.41 lets everybody who reaches the port register and remove nodes and start and
stop runs. This plugin requires, in every call of the control interface, a token made from the secret in the
server's folder. Besides, the SuperLink notes for its supervisor whom it refuses, and why.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import ssl
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fastapi import HTTPException, Request
from flwr.common.constant import ACCESS_TOKEN_KEY
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.error import FlowerError
from flwr.supercore.primitives.asymmetric import bytes_to_public_key
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli import flower_superlink
from flwr.superlink.routers.fleet import node_auth
from flwr.superlink.servicer.fleet import fleet_handlers

from feddrm.deploy.flower.control_token import control_token
from feddrm.deploy.flower.supervisor import note
from feddrm.deploy.server.site_keys import KEYS, read_site_keys
from feddrm.deploy.wire.key_files import fingerprint
from feddrm.errors import FeddrmError
from feddrm.io.connection_errors import HandshakeLog

Activate = Callable[[ActivateNodeRequest, LinkState], ActivateNodeResponse]
UNKNOWN_KEY = "send node.pub to the coordinator, who registers it with 'feddrm deploy add-site'"
NOT_YET = "the server has not registered this site's key yet: it is tried again; if that lasts, ask the coordinator"
REASONS = {  # by Flower's own words
    "Timestamp outside the allowed window": "its clock differs from the server's: set both by NTP",
    "Invalid signature": "its signature does not belong to its key",
    "Invalid node ID": "its key is not registered any more: it was removed, or the server's link.db is new",
}


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


def with_reason(activate_node: Activate, keys: Path) -> Activate:
    """Flower's handler of a node that connects; a node with an unregistered key is told so and noted.

    The server registers the members, whose public keys are in ``keys``, when the SuperLink has started.
    """

    def activate(request: ActivateNodeRequest, state: LinkState) -> ActivateNodeResponse:
        try:
            return activate_node(request, state)
        except FlowerError as error:
            if state.get_node_id_by_public_key(request.public_key) is None:
                short = fingerprint(bytes_to_public_key(request.public_key))
                if _is_member(short, keys):
                    error.public_details = NOT_YET
                    raise
                error.public_details = f"the server does not know this site's key ({short}): {UNKNOWN_KEY}"
                note(f"refused a node with an unregistered key ({short}): if it is a site's, use add-site")
            raise

    return activate


def _is_member(short: str, keys: Path) -> bool:
    """Whether a fingerprint is that of a key in this folder."""
    with contextlib.suppress(FeddrmError):  # a broken file is the server's complaint, and nobody's key
        return short in map(fingerprint, read_site_keys(keys).values())
    return False


def with_words(authenticate_node: Callable[[Request], None]) -> Callable[[Request], None]:
    """Flower's check of a node's signed request; the refusal says which part of it failed."""

    def authenticate(request: Request) -> None:
        try:
            authenticate_node(request)
        except HTTPException as error:
            reason = REASONS.get(str(error.__cause__), "the request is not signed as a site signs it")
            note(f"refused a node: {reason}")
            raise HTTPException(error.status_code, f"the server refuses this site: {reason}") from error

    return authenticate


class NoteHandler(logging.Handler):
    """Notes for the supervisor what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def main() -> None:
    """Run the SuperLink. The first argument is the file with the secret in the server's folder."""
    secret = Path(sys.argv.pop(1))
    token = control_token(secret.read_bytes())
    module = sys.modules[flower_superlink.__module__]
    assert hasattr(module, "load_control_authn_plugin")
    module.load_control_authn_plugin = lambda: TokenAuthPlugin(token)  # type: ignore[attr-defined]
    fleet_handlers.activate_node = with_reason(fleet_handlers.activate_node, secret.parent / KEYS)  # type: ignore[assignment]
    node_auth.authenticate_node = with_words(node_auth.authenticate_node)  # type: ignore[assignment]
    ssl.SSLContext.sslobject_class = HandshakeLog
    logging.getLogger("feddrm.tls").addHandler(NoteHandler())
    flower_superlink()


if __name__ == "__main__":
    main()
