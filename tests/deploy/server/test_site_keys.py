"""The members of a federation, by the files of their keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from feddrm.deploy.provision.certificates import write_key_pair
from feddrm.deploy.server import site_keys as module
from feddrm.deploy.server.site_keys import REMOVED, read_site_keys, site_keys
from refusal import refused


def test_the_members_are_the_public_keys_but_the_servers_and_removed_ones(tmp_path: Path) -> None:
    (tmp_path / REMOVED).mkdir()
    for name in ("server.pub", "server.key", "oslo.pub", "lima.pub", "notes.txt", f"{REMOVED}/pune-1234.pub"):
        (tmp_path / name).touch()
    assert site_keys(tmp_path) == {"lima": tmp_path / "lima.pub", "oslo": tmp_path / "oslo.pub"}


def test_a_key_that_is_removed_at_this_moment_is_left_out_and_a_broken_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_key_pair(tmp_path, "oslo")
    listed = {**site_keys(tmp_path), "lima": tmp_path / "lima.pub"}
    monkeypatch.setattr(module, "site_keys", lambda keys: listed)
    assert list(read_site_keys(tmp_path)) == ["oslo"]
    (tmp_path / "lima.pub").write_text("nonsense")
    with refused("cannot read the public key", "lima.pub"):
        read_site_keys(tmp_path)
