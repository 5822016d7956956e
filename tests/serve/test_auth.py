from __future__ import annotations

import json
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from feddrm.errors import FeddrmError
from feddrm.serve import auth
from feddrm.serve.auth import ApiKeys, Caller, add_key, key_digest, sendable_key
from refusal import refused

STRANGE_NAMES = (
    ("l\0b", "printed"),
    ("l\udcffb", "printed"),  # argv has half of a surrogate pair for a byte that is no UTF-8
    ("l\nb", "printed"),
    ("\x1b[31m", "printed"),
    ("", "at least one letter"),
    ("n" * 129, "at most 128 letters"),
    ("oidc:alice", "those of tokens"),
)


def test_the_file_holds_only_hashes_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    key, other = add_key(path, "lab", ["route"]), add_key(path, "boss", ["admin", "predict"])
    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    keys = ApiKeys(path)
    lab, boss = keys.find(key), keys.find(other)
    assert lab is not None
    assert boss is not None
    assert (lab.name, lab.scopes) == ("lab", {"route"})
    assert (boss.name, boss.scopes) == ("boss", {"admin", "predict"})
    assert keys.find(key + "x") is None
    assert keys.find("") is None


def test_a_changed_file_is_read_again_and_a_broken_one_leaves_the_old_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.yaml"
    key = add_key(path, "lab", ["route"])
    keys = ApiKeys(path)
    new = add_key(path, "new", ["route"])
    with caplog.at_level("INFO", "feddrm.serve"):
        assert keys.find(new) is not None
        assert keys.find(new) is not None, "once for every change"
    assert [(record.message, record.__dict__["fields"]) for record in caplog.records] == [
        ("keys read again", {"keys": 2})
    ]
    whole = path.read_text()
    for broken in (b"lab: secret", b"{", b"\xff"):
        path.write_bytes(broken)
        assert keys.find(key) is not None
    path.unlink()
    assert keys.find(key) is not None
    path.write_text(whole.partition("new:")[2].join(("new:", "")))
    assert keys.find(key) is None
    assert keys.find(new) is not None
    path.write_text(f"new: {{sha256: {key_digest(new).upper()}, scopes: [route]}}\n")
    assert keys.find(new) is not None, "as some programs write a digest"
    path.write_text("{}")
    assert keys.find(new) is None


@pytest.mark.parametrize("left", ["", "\n", "# keys of the lab\n\n"])
def test_the_last_key_is_revoked_as_any_other(tmp_path: Path, left: str) -> None:
    path = tmp_path / "keys.yaml"
    key = add_key(path, "lab", ["route"])
    keys = ApiKeys(path)
    path.write_text(left)
    assert keys.find(key) is None
    new = add_key(path, "new", ["route"])
    assert keys.find(new) is not None


def test_bad_files_names_and_scopes_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    add_key(path, "lab", ["route"])
    with refused("lab", "already"):
        add_key(path, "lab", ["route"])
    with refused("rout", "did you mean 'route'"):
        add_key(path, "new", ["rout"])
    with refused("opens nothing"):
        add_key(path, "new", [])
    before = path.read_text()
    for name, part in STRANGE_NAMES:
        with refused("name", f"{name[:64]!a}", part):
            add_key(path, name, ["route"])
    assert path.read_text() == before
    with refused("missing.yaml", "serve-key"):
        ApiKeys(tmp_path / "missing.yaml")
    (tmp_path / "list.yaml").write_text("- a\n")
    with refused("expected a mapping", "serve-key"):
        ApiKeys(tmp_path / "list.yaml")
    (tmp_path / "plain.yaml").write_text("lab: secret\n")
    with refused("plain.yaml", "'lab'", "sha256"):
        ApiKeys(tmp_path / "plain.yaml")


def test_strange_names_in_a_file_are_refused_and_leave_the_old_keys(tmp_path: Path) -> None:
    """The file may be written by hand. A name goes into logs, tables and messages."""
    path = tmp_path / "keys.yaml"
    key = add_key(path, "lab", ["route"])
    keys, lines = ApiKeys(path), path.read_text()
    for name, part in STRANGE_NAMES:
        path.write_text(f"{lines}{json.dumps(name)}: {{sha256: {'f' * 64}, scopes: [route]}}\n")
        with refused("keys.yaml", f"{name[:64]!a}", part):
            ApiKeys(path)
        assert keys.find(key) == Caller("lab", frozenset(["route"]))


def test_a_key_is_sent_without_the_line_break_of_its_file_and_never_shown() -> None:
    assert sendable_key(" abc-1\n", "FEDDRM_KEY") == "abc-1"
    assert sendable_key("", "FEDDRM_KEY") == ""
    for key in ("secret\nline", "secret\u00fc", "secret\x00"):
        with pytest.raises(FeddrmError, match="FEDDRM_KEY") as caught:
            sendable_key(key, "FEDDRM_KEY")
        assert "secret" not in str(caught.value)


def test_keys_that_are_added_at_once_all_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, path = auth.write_atomically, tmp_path / "keys.yaml"

    def slow(*arguments: Any, **named: Any) -> None:
        time.sleep(0.02)  # long enough for the others to read the old keys
        write(*arguments, **named)

    monkeypatch.setattr(auth, "write_atomically", slow)
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda name: add_key(path, name, ["route"]), "abcd"))
    keys = ApiKeys(path)
    assert [caller.name for key in made if (caller := keys.find(key))] == list("abcd")
