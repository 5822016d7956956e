"""Who commands the SuperLink: whoever has the token, by every way that Flower asks for it."""

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

from feddrm.deploy.flower.superlink import KnowsTheSecret, control_token

TOKEN = control_token(b"secret")


class Denied(Exception):
    """What a gRPC context raises when a call is broken off."""


def called(metadata: list[tuple[str, str]]) -> Any:
    """What Flower's gRPC interceptor makes of a call with these tokens."""

    def abort(code: grpc.StatusCode, text: str) -> None:
        raise Denied(code, text)

    context = SimpleNamespace(invocation_metadata=lambda: metadata, abort=abort, send_initial_metadata=lambda _: None)
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: "done")
    guarded = ControlAccountAuthInterceptor(KnowsTheSecret(TOKEN)).intercept_service(
        lambda details: handler, SimpleNamespace(method="/flwr.proto.Control/ListNodes")
    )
    return guarded.unary_unary(ListNodesRequest(), context)


def test_the_token_opens() -> None:
    assert called([(ACCESS_TOKEN_KEY, TOKEN)]) == "done"


@pytest.mark.parametrize(
    "metadata",
    [[], [(ACCESS_TOKEN_KEY, "guess")], [(REFRESH_TOKEN_KEY, "guess")], [(REFRESH_TOKEN_KEY, TOKEN)]],
)
def test_nobody_else_comes_in_by_a_refresh(metadata: list[tuple[str, str]]) -> None:
    with pytest.raises(Denied) as caught:
        called(metadata)
    assert caught.value.args[0] is grpc.StatusCode.UNAUTHENTICATED


def test_no_token_is_made_from_another() -> None:
    """By the call that is there for it, in Flower's own words: no fault of the SuperLink."""
    with pytest.raises(FlowerError) as caught:
        refresh_auth_tokens(RefreshAuthTokensRequest(refresh_token=TOKEN), KnowsTheSecret(TOKEN))
    assert caught.value.code == ApiErrorCode.ACCOUNT_AUTHENTICATION_FAILED
