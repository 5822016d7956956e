from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jwt", reason="pip install 'feddrm[oidc]' to run this")

import jwt
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from feddrm.serve.auth import Caller, IssuerDown, TokenRefused
from feddrm.serve.oidc.tokens import TokenVerifier
from feddrm.serve.settings import HttpSettings
from issuer import AUDIENCE, ISSUER, Issuer, serving
from letters import LETTERS


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    issuer = Issuer()
    for kid, algorithm in (("ec", "ES256"), ("ed", "EdDSA"), ("pss", "PS256")):
        issuer.add(kid, algorithm)
    issuer.add("short", "RS256", bits=1024)
    return issuer


@pytest.fixture(scope="module")
def kept(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> TokenVerifier:
    """One verifier for many tokens."""
    path = tmp_path_factory.mktemp("kept") / "jwks.json"
    path.write_bytes(issuer.jwks())
    return verifier(str(path))


@pytest.fixture
def verify(issuer: Issuer, tmp_path: Path) -> Any:
    (tmp_path / "jwks.json").write_bytes(issuer.jwks())

    def check(token: str, **settings: Any) -> Caller:
        return asyncio.run(verifier(str(tmp_path / "jwks.json"), **settings).verify(token))

    return check


def verifier(jwks: str, **settings: Any) -> TokenVerifier:
    return TokenVerifier(HttpSettings(oidc_issuer=ISSUER, oidc_audience=AUDIENCE, oidc_jwks=jwks, **settings))


def segment(content: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize(("kid", "algorithms"), [("one", "RS256"), ("ec", "ES256"), ("ed", "EdDSA"), ("pss", "PS256")])
def test_a_good_token_names_its_caller_and_scopes(verify: Any, issuer: Issuer, kid: str, algorithms: str) -> None:
    caller = verify(issuer.token(kid), oidc_algorithms=algorithms)
    assert caller == Caller("oidc:ada", frozenset({"route", "predict"}))


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": time.time() - 31}, "it has expired"),
        ({"exp": "soon"}, "it is malformed"),
        ({"exp": None}, "it lacks the claim 'exp'"),
        ({"nbf": time.time() + 86_400}, "it is not valid yet"),
        ({"iat": time.time() + 86_400}, "it is not valid yet"),
        ({"aud": "others"}, "it is for another audience"),
        ({"aud": ["others", "more"]}, "it is for another audience"),
        ({"aud": None}, "it lacks the claim 'aud'"),
        ({"iss": "https://login.example/"}, "it is of another issuer"),
        ({"iss": None}, "it lacks the claim 'iss'"),
        ({"sub": None}, "it lacks the claim 'sub'"),
        ({"sub": ""}, "its claim 'sub' is no name"),
        ({"sub": "a\nb"}, "its claim 'sub' is no name"),
        ({"sub": "a" * 129}, "its claim 'sub' is no name"),
    ],
)
def test_bad_claims_are_named(verify: Any, issuer: Issuer, claims: dict[str, Any], reason: str) -> None:
    with pytest.raises(TokenRefused) as caught:
        verify(issuer.token(**claims))
    assert str(caught.value) == reason
    assert verify(issuer.token()).name == "oidc:ada"


def test_clocks_may_differ_by_the_leeway(verify: Any, issuer: Issuer) -> None:
    now = time.time()
    assert verify(issuer.token(exp=now - 20, nbf=now + 20)).name == "oidc:ada"
    with pytest.raises(TokenRefused, match="expired"):
        verify(issuer.token(exp=now - 20), oidc_leeway_seconds=5)


def test_further_claims_can_be_required(verify: Any, issuer: Issuer) -> None:
    required = {"oidc_required_claims": "jti, tenant"}
    assert verify(issuer.token(jti="7", tenant="ward"), **required).name == "oidc:ada"
    with pytest.raises(TokenRefused, match="lacks the claim 'tenant'"):
        verify(issuer.token(jti="7"), **required)


def test_one_of_several_audiences_is_enough(verify: Any, issuer: Issuer) -> None:
    assert verify(issuer.token(aud=["others", AUDIENCE])).name == "oidc:ada"


@pytest.mark.parametrize(
    ("settings", "claims", "scopes"),
    [
        ({}, {"scope": "admin openid email"}, {"admin"}),
        ({}, {"scope": "metrics"}, {"metrics"}),
        ({}, {"scope": ["route", 7]}, {"route"}),
        ({}, {"scope": None}, set()),
        ({}, {"scope": {"route": True}}, set()),
        ({}, {"scope": "routes prerouted"}, set()),
        ({"oidc_scope_claim": "realm_access.roles"}, {"realm_access": {"roles": ["predict"]}}, {"predict"}),
        ({"oidc_scope_claim": "realm_access.roles"}, {"realm_access": "predict"}, set()),
        ({"oidc_scope_claim": "https://x.example/roles"}, {"https://x.example/roles": ["admin"]}, {"admin"}),
        ({"oidc_scope_prefix": "feddrm:"}, {"scope": "route feddrm:predict"}, {"predict"}),
    ],
)
def test_scopes_come_from_a_claim(
    verify: Any, issuer: Issuer, settings: dict[str, str], claims: dict[str, Any], scopes: set[str]
) -> None:
    assert verify(issuer.token(**claims), **settings).scopes == scopes


def test_the_name_can_come_from_another_claim(verify: Any, issuer: Issuer) -> None:
    assert verify(issuer.token(email="a@b.example"), oidc_name_claim="email").name == "oidc:a@b.example"


def test_tokens_without_a_signature_or_signed_by_the_public_key_as_a_secret_are_refused(
    verify: Any, issuer: Issuer
) -> None:
    good = issuer.token()
    claims = jwt.decode(good, options={"verify_signature": False})
    header, payload, signature = good.split(".")
    for algorithm in ("none", "None", "NONE"):
        for end in ("", signature):
            with pytest.raises(TokenRefused, match=r"its algorithm is not allowed|it is malformed"):
                verify(f"{segment({'alg': algorithm, 'kid': 'one'})}.{payload}.{end}")
    # HS256 with the public key as the shared secret: as PEM, which PyJWT itself refuses to sign with, so by hand.
    pem = issuer.public("one").public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    begun = f"{segment({'alg': 'HS256', 'typ': 'JWT', 'kid': 'one'})}.{segment(claims)}"
    digest = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(begun.encode(), pem)
    forged = f"{begun}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
    with pytest.raises(TokenRefused, match="its algorithm is not allowed"):
        verify(forged)
    for wrong in (
        f"{header}.{payload}.{'A' * len(signature)}",
        f"{header}.{segment({**claims, 'sub': 'eve'})}.{signature}",
    ):
        with pytest.raises(TokenRefused, match="its signature is wrong"):
            verify(wrong)


def test_the_key_decides_on_the_algorithm(verify: Any, issuer: Issuer) -> None:
    both = {"oidc_algorithms": "RS256,ES256,PS256"}
    claims = jwt.decode(issuer.token(), options={"verify_signature": False})
    ours = jwt.encode(claims, issuer.private["ec"][1], "ES256", headers={"kid": "one"})
    with pytest.raises(TokenRefused, match="its algorithm is not allowed"):
        verify(ours, **both)
    with pytest.raises(TokenRefused, match="its algorithm is not allowed"):
        verify(issuer.token("pss"))  # not in the list
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        short = issuer.token("short")  # 1,024 bits
    with pytest.raises(TokenRefused, match="its key cannot be used"):
        verify(short)


def test_unknown_and_missing_key_ids_are_refused(verify: Any, issuer: Issuer) -> None:
    with pytest.raises(TokenRefused, match="no key of this name"):
        verify(issuer.token(headers={"kid": "other"}))
    with pytest.raises(TokenRefused, match="does not name its key"):
        verify(jwt.encode({"sub": "ada"}, issuer.private["one"][1], "RS256"))
    with pytest.raises(TokenRefused, match="malformed"):
        verify(issuer.token(headers={"crit": ["exp"], "exp": 1}))
    with pytest.raises(TokenRefused, match="too long"):
        verify("a" * 20_000)


@given(
    st.one_of(st.text(LETTERS, max_size=60), st.lists(st.text("abcABC-_=.{}0", max_size=12), max_size=4).map(".".join))
)
def test_whatever_is_sent_is_refused_in_one_line(kept: TokenVerifier, text: str) -> None:
    with pytest.raises(TokenRefused) as caught:
        asyncio.run(kept.verify(text))
    assert "\n" not in str(caught.value)


def test_a_header_of_any_json_is_refused(kept: TokenVerifier) -> None:
    for header in (
        [],
        7,
        None,
        {"alg": 7},
        {"alg": ["RS256"]},
        {"alg": "RS256", "kid": {}},
        {"alg": "RS256", "kid": 1},
    ):
        with pytest.raises(TokenRefused):
            asyncio.run(kept.verify(f"{segment(header)}.{segment({})}.AAAA"))


def test_a_rotated_key_is_accepted_and_an_issuer_that_is_down_is_no_fault_of_the_token() -> None:
    with serving(Issuer()) as issuer:
        rotating = verifier(issuer.url, oidc_retry_seconds=1e-9)

        async def go() -> None:
            assert (await rotating.verify(issuer.token())).name == "oidc:ada"
            old = issuer.token()
            issuer.private.clear()
            issuer.add("two", "RS256")
            assert (await rotating.verify(issuer.token("two"))).name == "oidc:ada"
            with pytest.raises(TokenRefused, match="no key of this name"):
                await rotating.verify(old)
            issuer.status = 500
            with pytest.raises(TokenRefused, match="no key of this name"):
                await rotating.verify(old)
            assert (await rotating.verify(issuer.token("two"))).name == "oidc:ada"
            with pytest.raises(IssuerDown, match="try again"):
                await verifier(issuer.url).verify(issuer.token("two"))

        asyncio.run(go())
