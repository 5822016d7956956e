from __future__ import annotations

import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from feddrm.errors import FeddrmError
from feddrm.serve import auth
from feddrm.serve.auth import ApiKeys, add_key, sendable_key
from refusal import refused


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


def test_a_changed_file_is_read_again_and_a_broken_one_leaves_the_old_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    key = add_key(path, "lab", ["route"])
    keys = ApiKeys(path)
    new = add_key(path, "new", ["route"])
    assert keys.find(new) is not None
    whole = path.read_text()
    for broken in (b"lab: secret", b"{", b"\xff"):
        path.write_bytes(broken)
        assert keys.find(key) is not None
    path.unlink()
    assert keys.find(key) is not None
    path.write_text(whole.partition("new:")[2].join(("new:", "")))
    assert keys.find(key) is None
    assert keys.find(new) is not None
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
    for name in ("l\0b", "l\udcffb", "l\nb"):  # argv has half of a surrogate pair for a byte that is no UTF-8
        with refused(f"the key's name {name!a}", "choose another name"):
            add_key(path, name, ["route"])
    with refused("missing.yaml", "serve-key"):
        ApiKeys(tmp_path / "missing.yaml")
    (tmp_path / "list.yaml").write_text("- a\n")
    with refused("expected a mapping", "serve-key"):
        ApiKeys(tmp_path / "list.yaml")
    (tmp_path / "plain.yaml").write_text("lab: secret\n")
    with refused("plain.yaml", "'lab'", "sha256"):
        ApiKeys(tmp_path / "plain.yaml")


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
