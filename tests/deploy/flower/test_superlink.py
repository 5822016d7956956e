"""Access to the SuperLink's control interface: only with the token, whichever way Flower asks for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from flwr.common.constant import ACCESS_TOKEN_KEY, REFRESH_TOKEN_KEY
from flwr.proto.control_pb2 import ListNodesRequest, RefreshAuthTokensRequest  # type: ignore[attr-defined]
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.superlink.servicer.control.control_account_auth_interceptor import ControlAccountAuthInterceptor
from flwr.superlink.servicer.control.control_handlers import refresh_auth_tokens

from feddrm.deploy.flower.superlink import TokenAuthPlugin, control_token

pytestmark = pytest.mark.slow

TOKEN = control_token(b"secret")


class Denied(Exception):
    """What this test's gRPC context raises when a call is refused."""


def called(metadata: list[tuple[str, str]]) -> Any:
    """The result of a call with these tokens through Flower's gRPC interceptor."""

    def abort(code: grpc.StatusCode, text: str) -> None:
        raise Denied(code, text)

    context = SimpleNamespace(invocation_metadata=lambda: metadata, abort=abort, send_initial_metadata=lambda _: None)
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: "done")
    guarded = ControlAccountAuthInterceptor(TokenAuthPlugin(TOKEN)).intercept_service(
        lambda details: handler, SimpleNamespace(method="/flwr.proto.Control/ListNodes")
    )
    return guarded.unary_unary(ListNodesRequest(), context)


def test_a_call_with_the_token_is_accepted() -> None:
    assert called([(ACCESS_TOKEN_KEY, TOKEN)]) == "done"


@pytest.mark.parametrize(
    "metadata",
    [[], [(ACCESS_TOKEN_KEY, "guess")], [(REFRESH_TOKEN_KEY, "guess")], [(REFRESH_TOKEN_KEY, TOKEN)]],
)
def test_a_call_without_the_token_is_refused_also_with_a_refresh_token(metadata: list[tuple[str, str]]) -> None:
    with pytest.raises(Denied) as caught:
        called(metadata)
    assert caught.value.args[0] is grpc.StatusCode.UNAUTHENTICATED


def test_a_refresh_gives_no_token() -> None:
    """Flower answers with its own error, not with a fault of the SuperLink."""
    with pytest.raises(FlowerError) as caught:
        refresh_auth_tokens(RefreshAuthTokensRequest(refresh_token=TOKEN), TokenAuthPlugin(TOKEN))
    assert caught.value.code == ApiErrorCode.ACCOUNT_AUTHENTICATION_FAILED
