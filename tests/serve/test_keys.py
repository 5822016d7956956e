from __future__ import annotations

import stat
from pathlib import Path

import pytest

from feddrm.serve.auth import Keys, add_key
from feddrm.serve.settings import GatewaySettings, make
from refusal import refused


def test_only_the_hash_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    key, other = add_key(path, "lab", ["route"]), add_key(path, "boss", ["admin", "predict"])
    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    keys = Keys(path)
    lab, boss = keys.find(key), keys.find(other)
    assert lab is not None
    assert boss is not None
    assert (lab.name, lab.scopes) == ("lab", {"route"})
    assert (boss.name, boss.scopes) == ("boss", {"admin", "predict"})
    assert keys.find(key + "x") is None
    assert keys.find("") is None


def test_the_file_counts_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    key = add_key(path, "lab", ["route"])
    keys = Keys(path)
    new = add_key(path, "new", ["route"])
    assert keys.find(new) is not None
    whole = path.read_text()
    for broken in (b"", b"lab: secret", b"{", b"\xff"):
        path.write_bytes(broken)
        assert keys.find(key) is not None
    path.unlink()
    assert keys.find(key) is not None
    path.write_text(whole.partition("new:")[2].join(("new:", "")))
    assert keys.find(key) is None
    assert keys.find(new) is not None
    path.write_text("{}")
    assert keys.find(new) is None


def test_bad_files_and_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    add_key(path, "lab", ["route"])
    with refused("lab", "already"):
        add_key(path, "lab", ["route"])
    with refused("rout", "did you mean 'route'"):
        add_key(path, "new", ["rout"])
    with refused("opens nothing"):
        add_key(path, "new", [])
    with refused("missing.yaml", "serve-key"):
        Keys(tmp_path / "missing.yaml")
    (tmp_path / "list.yaml").write_text("- a\n")
    with refused("holds no keys"):
        Keys(tmp_path / "list.yaml")
    (tmp_path / "plain.yaml").write_text("lab: secret\n")
    with refused("plain.yaml", "'lab'", "sha256"):
        Keys(tmp_path / "plain.yaml")


def test_other_machines_need_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("0.0.0.0", "--keys"):
        make(GatewaySettings, host="0.0.0.0")
    assert make(GatewaySettings, host="0.0.0.0", open=True).host == "0.0.0.0"
    assert make(GatewaySettings, host="::1").host == "::1"
    with refused("port"):
        make(GatewaySettings, port=70000)
    with refused("--tls-key"):
        make(GatewaySettings, tls_cert="cert.pem")
    monkeypatch.setenv("FEDDRM_SERVE_CORS", "http://x")
    with refused("cors", """FEDDRM_SERVE_CORS='["https://"""):
        make(GatewaySettings)
