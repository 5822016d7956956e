"""Who may read what a deployed run leaves on disk."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import NAMES, Deployed


def open_to_others(folder: Path) -> set[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in files if stat.S_IMODE(path.stat().st_mode) != 0o600}


@pytest.mark.usefixtures("open_umask")
def test_what_is_private_is_for_the_sites_own_eyes(deployed: Callable[..., Deployed]) -> None:
    routing = {"features": "raw", "path_rounds": 1, "rounds": 1, "heads": True}
    deployment = deployed(routing=routing)
    site = deployment.folder / "sites"
    before = {name: open_to_others(site / name) for name in NAMES}
    deployment.server().go()
    public = {"config.yaml", "data.json", *(f"router/{n}" for n in ("heads.safetensors", "manifest.json"))}
    public.add("router/router.safetensors")
    for name in NAMES:
        own = {f"clients/{name}/{file}" for file in ("private.safetensors", "head.safetensors")}
        kept = {f"runs/first/{file}" for file in ("private-2.safetensors", "fit-features.safetensors")}
        there = {str(path.relative_to(site / name)) for path in (site / name).rglob("*") if path.is_file()}
        assert own | kept | {"runs/first/samples.sha256"} <= there
        more = {f"clients/{name}/shared.safetensors", f"clients/{name}/brief.yaml"}
        assert open_to_others(site / name) - before[name] == public | more
