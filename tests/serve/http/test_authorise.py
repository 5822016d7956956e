from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path

import httpx
import pytest

from feddrm.serve.auth import add_key, key_digest
from serving import Launch, until

pytestmark = pytest.mark.slow


def test_every_path_needs_a_key_with_its_scope_and_changes_of_the_file_count(
    run: Path, launch: Launch, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    lab, boss = add_key(keys, "lab", ["route"]), add_key(keys, "boss", ["admin"])
    process = launch("serve", run, "--port", 0, "--keys", keys, "--audit", tmp_path / "a.sqlite", "--rate", 20,
                     FEDDRM_SERVE_MAX_IN_FLIGHT="1000")  # fmt: skip
    url = process.wait_ready()
    body = {"features": [[0.0] * 16]}

    def post(path: str, **headers: str) -> int:
        while (answer := httpx.post(url + path, json=body, headers=headers)).status_code == 429:
            time.sleep(float(answer.headers["Retry-After"]) / 4)
        return answer.status_code

    assert post("/v1/route") == 401
    assert post("/v1/route", Authorization="Bearer nonsense") == 401
    assert post("/v1/route", Authorization=f"Bearer {lab}") == 200
    assert post("/v1/route", **{"X-API-Key": lab, "Host": "gateway.example", "Origin": "https://lab.example"}) == 200
    assert post("/v1/route", **{"X-API-Key": boss}) == 403
    assert post("/v1/predict", **{"X-API-Key": lab}) == 403
    assert post("/v1/admin/reload", **{"X-API-Key": lab}) == 403
    assert post("/v1/admin/reload", **{"X-API-Key": boss}) == 200
    for path in ("/metrics", "/v1/clients", "/v1/federation", "/v1/traffic", "/v1/samples/fax/0"):
        assert httpx.get(url + path).status_code == 401, path
        assert httpx.get(url + path, headers={"X-API-Key": boss}).status_code == 200, path
    later = add_key(keys, "later", ["route"])
    assert post("/v1/route", **{"X-API-Key": later}) == 200
    keys.write_text("\n".join(line for line in keys.read_text().split("\n") if key_digest(lab) not in line))
    assert post("/v1/route", **{"X-API-Key": lab}) == 200  # half a key: a broken file leaves the old keys
    keys.write_text(keys.read_text().replace("lab:\n", f"lab:\n  sha256: {key_digest('another')}\n"))
    assert post("/v1/route", **{"X-API-Key": lab}) == 401
    assert post("/v1/route", **{"X-API-Key": later}) == 200
    assert lab not in process.whole_log()


def test_tokens_of_an_issuer_open_a_gateway_also_while_the_issuer_is_down(
    run: Path, launch: Launch, tmp_path: Path
) -> None:
    pytest.importorskip("jwt", reason="pip install 'feddrm[oidc]' to run this")
    from issuer import AUDIENCE, ISSUER, Issuer, serving

    key = add_key(tmp_path / "keys.yaml", "lab", ["admin"])
    with serving(Issuer()) as issuer:
        words = ["--oidc-issuer", ISSUER, "--oidc-audience", AUDIENCE, "--oidc-jwks", issuer.url]
        process = launch("serve", run, "--port", 0, "--host", "0.0.0.0", "--keys", tmp_path / "keys.yaml", *words,
                         "--audit", tmp_path / "a.sqlite", FEDDRM_SERVE_OIDC_RETRY_SECONDS="0.2",
                         FEDDRM_SERVE_OIDC_REFRESH_SECONDS="0.2")  # fmt: skip
        with httpx.Client(base_url=process.wait_ready(), timeout=20) as http:

            def post(token: str, path: str = "/v1/route") -> httpx.Response:
                body = {"features": [[0.0] * 16]}
                return http.post(path, json=body, headers={"Authorization": f"Bearer {token}"})

            assert post(issuer.token()).status_code == 200
            assert post(issuer.token(), "/v1/admin/reload").status_code == 403
            assert post(key, "/v1/admin/reload").status_code == 200
            answer = post(issuer.token(exp=1))
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer error="invalid_token"')
            assert answer.json()["error"] == "no valid token: it has expired: get a new one from its issuer"
            issuer.add("two", "RS256")  # it rotates
            until(lambda: post(issuer.token("two")).status_code == 200)
            issuer.status = 500

            def ok() -> str:
                assert post(issuer.token("two")).status_code == 200
                text = http.get("/metrics", headers={"X-API-Key": key}).text
                return next(line for line in text.splitlines() if line.startswith("feddrm_oidc_keys_ok"))

            until(lambda: ok() == "feddrm_oidc_keys_ok 0.0")
            issuer.status = 200
            until(lambda: ok() == "feddrm_oidc_keys_ok 1.0")
        log = process.whole_log()
    assert '"message":"the old keys of the issuer stay"' in log
    assert '"caller":"oidc:ada"' in log
    assert issuer.token("two")[:20] not in log  # no part of a token
    with contextlib.closing(sqlite3.connect(tmp_path / "a.sqlite")) as database:
        assert ("oidc:ada",) in set(database.execute("SELECT caller FROM decisions"))
