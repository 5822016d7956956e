"""Who may read what a run leaves on disk: what belongs to one client is for its owner's eyes only."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

import feddrm


@pytest.mark.usefixtures("open_umask")
def test_private_parts_and_heads_are_their_owners(tmp_path: Path) -> None:
    """Also those that an older version left open; what the server may hold stays open."""
    out = tmp_path / "run"
    run = feddrm.train("digits", rounds=1, local_steps=2, data_settings={"clients": 3}, out=out)
    names = [path.name for path in (out / "clients").iterdir()]
    assert len(names) == 3
    old = out / "clients" / names[0] / "head.safetensors"
    old.write_bytes(b"")
    run.fit_router(features="raw")
    modes = {str(path.relative_to(out)): stat.S_IMODE(path.stat().st_mode) for path in out.rglob("*.safetensors")}
    private = {f"clients/{n}/{part}.safetensors" for n in names for part in ("private", "head")}
    private.add("checkpoint/state.safetensors")  # holds all of them
    assert {name for name, mode in modes.items() if mode == 0o600} == private
    assert modes["router/router.safetensors"] == modes["router/shared.safetensors"] == 0o666
