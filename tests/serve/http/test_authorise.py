from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from feddrm.serve.auth import add_key, key_digest
from serving import Launch

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
