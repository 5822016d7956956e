from __future__ import annotations

import asyncio
import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jwt", reason="pip install 'feddrm[oidc]' to run this")

from feddrm.serve.access import Access, AccessRefused, credentials
from feddrm.serve.auth import SCOPES, add_key, key_digest
from feddrm.serve.settings import GatewaySettings, HttpSettings, make_settings
from issuer import AUDIENCE, ISSUER, Issuer, serving
from refusal import refused


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def oidc(issuer: Issuer, tmp_path: Path) -> dict[str, Any]:
    """Settings of an issuer whose keys are in a file."""
    (tmp_path / "jwks.json").write_bytes(issuer.jwks())
    return {"oidc_issuer": ISSUER, "oidc_audience": AUDIENCE, "oidc_jwks": str(tmp_path / "jwks.json")}


def ask(access: Access, scheme: str, token: str, scope: str = "route") -> str:
    return asyncio.run(access.authorise(scheme, token, scope))


def test_anybody_may_ask_without_keys_and_issuer() -> None:
    assert ask(Access(HttpSettings()), "", "") == ""


def test_keys_and_tokens_are_accepted_beside_each_other(issuer: Issuer, oidc: dict[str, Any], tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.yaml", "lab", ["route"])
    both = Access(HttpSettings(keys=tmp_path / "keys.yaml", **oidc))
    assert ask(both, "bearer", key) == ask(both, "x-api-key", key) == "lab"
    assert ask(both, "bearer", issuer.token()) == "oidc:ada"
    for scheme, token, text, caller in (
        ("bearer", "nonsense", "this API key is unknown here", "(unknown key)"),
        ("x-api-key", issuer.token(), "this API key is unknown here", "(unknown key)"),
        ("bearer", "a.b.c", "no valid token: it is malformed: get a new one from its issuer", "(refused token)"),
        ("", "", "no valid API key: none was sent", "(no key)"),
    ):
        with pytest.raises(AccessRefused) as caught:
            ask(both, scheme, token)
        assert text in str(caught.value)
        assert (caught.value.status, caught.value.caller) == (401, caller)
        assert caught.value.headers["WWW-Authenticate"].startswith("Bearer")


def test_no_key_is_no_key_even_where_the_file_has_the_digest_of_an_empty_one(tmp_path: Path) -> None:
    """As it has if somebody hashed a variable that was not set."""
    path = tmp_path / "keys.yaml"
    path.write_text(f"lab: {{sha256: {key_digest('')}, scopes: [route]}}\n")
    for scheme in ("", "bearer", "x-api-key"):
        with pytest.raises(AccessRefused, match="none was sent"):
            ask(Access(HttpSettings(keys=path)), scheme, "")


def test_a_token_without_the_scope_is_forbidden(issuer: Issuer, oidc: dict[str, Any]) -> None:
    access = Access(HttpSettings(**oidc))
    assert ask(access, "bearer", issuer.token(), "predict") == "oidc:ada"
    with pytest.raises(AccessRefused) as caught:
        ask(access, "bearer", issuer.token(), "admin")
    assert (caught.value.status, caught.value.caller) == (403, "oidc:ada")
    assert str(caught.value) == "the token of 'oidc:ada' has no scope 'admin': ask for one that has"
    for own, opened in (("metrics", {"metrics"}), ("admin", {"metrics", "admin"})):
        for scope in opened:
            assert ask(access, "bearer", issuer.token(scope=own), scope) == "oidc:ada"
        for scope in set(SCOPES) - opened:
            with pytest.raises(AccessRefused, match=f"no scope '{scope}'"):
                ask(access, "bearer", issuer.token(scope=own), scope)
    for scheme, token in (("", ""), ("x-api-key", issuer.token())):
        with pytest.raises(AccessRefused, match="no valid token: none was sent"):
            ask(access, scheme, token)


def test_an_issuer_alone_is_enough() -> None:
    with serving(Issuer()) as running:
        access = Access(HttpSettings(oidc_issuer=running.address, oidc_audience=AUDIENCE))
        asyncio.run(access.start())
        assert ask(access, "bearer", running.token(iss=running.address)) == "oidc:ada"
        with pytest.raises(AccessRefused, match="another issuer"):
            ask(access, "bearer", running.token())


def test_without_any_key_of_the_issuer_the_service_is_unavailable(issuer: Issuer) -> None:
    states: list[bool] = []
    settings = HttpSettings(oidc_issuer=ISSUER, oidc_audience=AUDIENCE, oidc_jwks="http://127.0.0.1:9/jwks")
    access = Access(settings, states.append)
    asyncio.run(access.start())
    assert states == [False]
    with pytest.raises(AccessRefused, match="try again") as caught:
        ask(access, "bearer", issuer.token())
    assert (caught.value.status, caught.value.headers) == (503, {"Retry-After": "5"})


def test_credentials_of_a_request() -> None:
    assert credentials("Bearer abc", "key") == ("bearer", "abc")
    assert credentials("bearer  abc ", "") == ("bearer", "abc")
    assert credentials("Basic abc", "key") == ("x-api-key", "key")
    assert credentials("Basic abc", "") == credentials("", "") == ("", "")


def test_bad_settings_are_errors(oidc: dict[str, Any]) -> None:
    for missing in ("oidc_issuer", "oidc_audience"):
        with refused("both --oidc-issuer and --oidc-audience"):
            make_settings(GatewaySettings, **{**oidc, missing: None})
    for url in ("http://login.example", "login.example", "https://", "http://[::1", "file:///etc"):
        with refused("oidc_issuer", "--oidc-jwks"):  # it cannot be asked where its keys are
            make_settings(GatewaySettings, oidc_issuer=url, oidc_audience=AUDIENCE)
        assert make_settings(GatewaySettings, **{**oidc, "oidc_issuer": url}).protected
    for url in ("http://login.example/jwks", "ftp://127.0.0.1.example/jwks", "file:///etc/passwd"):
        with refused("https only"):
            make_settings(GatewaySettings, **{**oidc, "oidc_jwks": url})
    for url in ("https://login.example/jwks", "http://127.0.0.1:81/jwks", "http://localhost/jwks", "http://[::1]/jwks"):
        assert make_settings(GatewaySettings, **{**oidc, "oidc_jwks": url}).oidc_jwks == url
    for name in ("none", "HS256", "", "rs256"):
        with refused("oidc_algorithms", "RS256"):
            make_settings(GatewaySettings, **oidc, oidc_algorithms=f"ES256,{name}")
    assert make_settings(GatewaySettings, host="0.0.0.0", **oidc).protected


def test_a_missing_package_is_one_line(oidc: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *words: Any, **options: Any) -> Any:
        if name == "jwt":
            raise ImportError("No module named 'jwt'")
        return real(name, *words, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    for module in ("tokens", "issuer_keys"):
        monkeypatch.delitem(sys.modules, f"feddrm.serve.oidc.{module}", raising=False)
    with refused("pip install 'feddrm[oidc]'"):
        Access(HttpSettings(**oidc))
