from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("jwt", reason="pip install 'feddrm[oidc]' to run this")

from jwt.algorithms import RSAAlgorithm

from feddrm.serve.oidc import issuer_keys
from feddrm.serve.oidc.issuer_keys import IssuerKeys, parse_keys
from issuer import Issuer, serving
from refusal import refused


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with serving(Issuer()) as running:
        yield running


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the keys see; its only entry can be changed."""
    now = [1000.0]
    monkeypatch.setattr(issuer_keys, "monotonic", lambda: now[0])
    return now


async def found(keys: IssuerKeys, kid: str) -> bool:
    return await keys.find(kid) is not None


async def read_in_the_background(keys: IssuerKeys, issuer: Issuer) -> int:
    """How often the issuer was asked, after what the last request may have begun."""
    assert keys._reading is not None
    await keys._reading
    return issuer.asked


def test_keys_are_read_once_and_an_unknown_id_reads_them_again_once_per_interval(
    issuer: Issuer, clock: list[float]
) -> None:
    keys = IssuerKeys(issuer.url, refresh_seconds=300, retry_seconds=30)

    async def go() -> None:
        assert await asyncio.gather(*(found(keys, "one") for _ in range(5))) == [True] * 5
        assert issuer.asked == 1
        issuer.add("two", "ES256")  # the issuer rotates
        assert not await found(keys, "two")  # too early
        clock[0] += 31
        assert await asyncio.gather(*(found(keys, "two") for _ in range(5))) == [True] * 5
        assert issuer.asked == 2
        for _ in range(20):
            assert not await found(keys, "invented")
        assert issuer.asked == 2
        clock[0] += 31
        for _ in range(20):
            assert not await found(keys, "invented")
        assert issuer.asked == 3

    asyncio.run(go())


def test_old_keys_go_when_the_issuer_drops_them_and_nobody_waits(issuer: Issuer, clock: list[float]) -> None:
    keys = IssuerKeys(issuer.url, refresh_seconds=300, retry_seconds=30)

    async def go() -> None:
        issuer.add("two", "RS256")
        assert await found(keys, "one")
        del issuer.private["one"]
        clock[0] += 299
        assert await found(keys, "one")
        assert await read_in_the_background(keys, issuer) == 1
        clock[0] += 2
        assert await found(keys, "one")  # read in the background
        await keys.refresh()
        assert issuer.asked == 2
        assert not await found(keys, "one")
        assert await found(keys, "two")

    asyncio.run(go())


def test_an_issuer_that_is_down_leaves_the_last_keys(
    issuer: Issuer, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    states: list[bool] = []
    keys = IssuerKeys(issuer.url, 300, 30, states.append)
    good = issuer.jwks()

    async def go() -> None:
        assert await found(keys, "one")
        for status, body in ((500, b""), (302, good), (200, b"<html>"), (200, b"{}"), (200, b'{"keys": []}'),
                             (200, b" " * 2**20 + good)):  # fmt: skip
            issuer.status, issuer.body = status, body
            clock[0] += 400
            await keys.refresh()
            assert await found(keys, "one"), (status, body)
            assert states[-1] is False
            asked = issuer.asked
            assert await found(keys, "one")
            assert await read_in_the_background(keys, issuer) == asked, "not again at every request"
        issuer.status, issuer.body = 200, None
        clock[0] += 31  # sooner than after a success
        assert await found(keys, "one")
        await keys.refresh()
        assert states[-1] is True

    with caplog.at_level("INFO", "feddrm.serve"):
        asyncio.run(go())
    assert [record.message for record in caplog.records] == [
        "the old keys of the issuer stay",
        "the issuer's keys are read again",
    ]
    assert "answers 500" in caplog.records[0].fields["reason"]  # type: ignore[attr-defined]


def test_an_issuer_that_sends_byte_by_byte_is_not_waited_for(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can send the unknown id that waits, and a gateway waits when it starts."""
    keys = IssuerKeys(issuer.url, 300, 30)
    asyncio.run(keys.refresh())
    monkeypatch.setattr(issuer_keys, "TIMEOUT", 0.2)
    issuer.pause = 0.02
    asyncio.run(keys.refresh())
    assert "no answer in time" in keys.trouble
    assert len(keys) == 1


def test_an_issuer_that_was_never_there_has_no_keys_and_is_tried_again(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(Issuer()) as gone:
        url = gone.url
    keys = IssuerKeys(url, 300, 30)
    asyncio.run(keys.refresh())
    assert (len(keys), "cannot reach" in keys.trouble) == (0, True)
    assert caplog.records[0].message == "the issuer's keys cannot be read"


def test_a_file_is_read_when_it_changes_and_a_broken_one_leaves_the_old_keys(tmp_path: Path) -> None:
    issuer, path = Issuer(), tmp_path / "jwks.json"
    path.write_bytes(issuer.jwks())
    states: list[bool] = []
    keys = IssuerKeys(str(path), 300, 30, states.append)
    assert asyncio.run(found(keys, "one"))
    issuer.add("two", "EdDSA")
    path.write_bytes(issuer.jwks())
    assert asyncio.run(found(keys, "two"))
    for broken in (b"", b"[]"):
        path.write_bytes(broken)
        assert asyncio.run(found(keys, "two"))
        assert "jwks.json is no JWKS" in keys.trouble
    path.unlink()
    assert asyncio.run(found(keys, "one"))
    assert "No such file" in keys.trouble
    assert states == [True, True, False, False, False]
    with refused("jwks.json", "No such file", "JWKS"):
        IssuerKeys(str(path), 300, 30)
    path.write_bytes(b"{}")
    with refused("jwks.json is no JWKS"):
        IssuerKeys(str(path), 300, 30)


@pytest.mark.parametrize("slash", ["", "/"])
def test_an_issuer_says_where_its_keys_are(issuer: Issuer, clock: list[float], slash: str) -> None:
    named = issuer.address + slash
    issuer.about = json.dumps({"issuer": named, "jwks_uri": issuer.url}).encode()
    keys = IssuerKeys(None, 300, 30, issuer=named)

    async def go() -> None:
        assert await found(keys, "one")
        issuer.add("two", "ES256")
        issuer.url = issuer.url.replace("/jwks", "/moved")
        issuer.about = json.dumps({"issuer": named, "jwks_uri": issuer.url}).encode()
        clock[0] += 31
        assert await found(keys, "two")  # it is asked again each time: keys may move
        assert issuer.asked == 2

    asyncio.run(go())


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (b"[]", ["names no issuer and jwks_uri", "--oidc-jwks"]),
        (b"<html>", ["names no issuer and jwks_uri", "--oidc-issuer"]),
        (
            b'{"issuer": "https://other.example", "jwks_uri": "https://other.example/jwks"}',
            ["is of the issuer 'https://other.example'"],
        ),
        (b'{"issuer": "ITSELF", "jwks_uri": "http://far.example/jwks"}', ["far.example/jwks", "no https:// URL"]),
        (b'{"issuer": "ITSELF", "jwks_uri": 7}', ["keys at '7'", "no https:// URL"]),
        (b'{"issuer": "ITSELF", "jwks_uri": "file:///etc/passwd"}', ["no https:// URL"]),
    ],
)
def test_an_issuer_that_says_something_else_is_refused(issuer: Issuer, about: bytes, words: list[str]) -> None:
    issuer.about = about.replace(b"ITSELF", issuer.address.encode())
    with refused("/realm/.well-known/openid-configuration", *words):
        issuer_keys.discover(issuer.address)
    assert issuer.asked == 0


def test_only_public_keys_for_signatures_are_taken() -> None:
    issuer = Issuer()
    good = issuer.jwk("one")
    secret = {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"}
    others = [
        secret, "text", {**good, "kid": 7}, {**good, "kid": "enc", "use": "enc"}, {**good, "kid": "d", "d": "AQAB"},
        {**json.loads(RSAAlgorithm.to_jwk(issuer.private["one"][1])), "kid": "private"},  # everybody can sign with it
        {**good, "kid": "alg", "alg": "RSA-OAEP"}, {"kty": "EC", "kid": "curve", "crv": "P-999", "x": "", "y": ""},
        {"kty": "RSA", "kid": "half", "n": "AQAB"}, {**good, "kid": "list", "kty": ["RSA"]},
    ]  # fmt: skip
    content = json.dumps({"keys": [*others, good]}).encode()
    assert list(parse_keys(content, "x")) == ["one"]
    with refused("x has no key that can be used"):
        parse_keys(json.dumps({"keys": [secret]}).encode(), "x")
    (stated,) = parse_keys(json.dumps({"keys": [issuer.jwk("one", alg="PS256")]}).encode(), "x").values()
    assert stated.algorithms == ("PS256",)
