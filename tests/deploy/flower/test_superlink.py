"""Access to the SuperLink's control interface: only with the token, whichever way Flower asks for it."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fastapi import HTTPException
from flwr.common.constant import ACCESS_TOKEN_KEY, REFRESH_TOKEN_KEY
from flwr.proto.control_pb2 import ListNodesRequest, RefreshAuthTokensRequest  # type: ignore[attr-defined]
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.routers.fleet import node_auth, router
from flwr.superlink.servicer.control.control_account_auth_interceptor import ControlAccountAuthInterceptor
from flwr.superlink.servicer.control.control_handlers import refresh_auth_tokens

from feddrm.deploy.flower.control_token import control_token
from feddrm.deploy.flower.superlink import NOT_YET, REASONS, TokenAuthPlugin, with_reason, with_words
from feddrm.deploy.provision.certificates import new_key
from feddrm.deploy.wire.key_files import fingerprint

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


@pytest.mark.parametrize("known", [True, False])
def test_a_node_with_an_unregistered_key_is_told_so_and_noted(
    known: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One that is registered, but still counted as connected, is not."""

    def refuse(request: Any, state: Any) -> Any:
        raise FlowerError(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED, "no")

    key = new_key().public_key()
    state = SimpleNamespace(get_node_id_by_public_key=lambda key: 7 if known else None)
    request = SimpleNamespace(public_key=public_key_to_bytes(key))
    with pytest.raises(FlowerError) as caught:
        with_reason(refuse, tmp_path)(request=request, state=state)  # type: ignore[call-arg]
    if known:
        assert (caught.value.public_details, capsys.readouterr().out) == (None, "")
    else:
        assert fingerprint(key) in str(caught.value.public_details)
        assert "add-site" in str(caught.value.public_details)
        assert fingerprint(key) in capsys.readouterr().out


def test_a_member_that_comes_before_it_is_registered_is_no_stranger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the first start sites may be faster than the server, which registers them."""

    def refuse(request: Any, state: Any) -> Any:
        raise FlowerError(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED, "no")

    key = new_key().public_key()
    (tmp_path / "oslo.pub").write_bytes(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    with pytest.raises(FlowerError) as caught:
        with_reason(refuse, tmp_path)(
            request=SimpleNamespace(public_key=public_key_to_bytes(key)),  # type: ignore[call-arg]
            state=SimpleNamespace(get_node_id_by_public_key=lambda key: None),
        )
    assert (caught.value.public_details, capsys.readouterr().out) == (NOT_YET, "")


def test_a_refused_signature_says_which_part_failed(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(request: Any) -> None:
        raise HTTPException(401, "Invalid SuperNode authentication") from ValueError(
            "Timestamp outside the allowed window"
        )

    with pytest.raises(HTTPException) as caught:
        with_words(refuse)(None)  # type: ignore[arg-type]
    assert "its clock differs from the server's" in caught.value.detail
    assert "its clock differs" in capsys.readouterr().out


def test_flower_calls_what_is_replaced_through_its_modules() -> None:
    assert "fleet_handlers.activate_node(request=request, state=state)" in inspect.getsource(router)
    source = inspect.getsource(node_auth)
    assert "run_in_threadpool(authenticate_node, request)" in source
    for reason in REASONS:
        assert f'"{reason}"' in source
