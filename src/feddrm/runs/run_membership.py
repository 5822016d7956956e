"""Clients that leave a fitted router: a new artifact without them, with nothing fitted again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feddrm.errors import FeddrmError
from feddrm.router import Router, leave, load_heads, load_router, read_manifest, save_router
from feddrm.runs.folder import RunFolder

TRAINED_CLIENTS = "trained_clients"  # a note in the manifest


def leave_run_router(folder: RunFolder, clients: Sequence[str], out: Path | None = None) -> Router:
    """Write the run's router without some clients into the folder ``out``, or into the run itself."""
    if out is None:
        with folder.exclusive():
            return _write_without(folder.router, clients, folder.router)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise FeddrmError(f"{out} is not an empty folder: choose another --out, or change the run with --in-place")
    return _write_without(folder.router, clients, out)


def trained_clients(manifest: Mapping[str, Any]) -> list[str]:
    """All clients of the training in their order, also if some have left the router since."""
    return list(manifest["notes"].get(TRAINED_CLIENTS, manifest["clients"]))


def _write_without(source: Path, clients: Sequence[str], target: Path) -> Router:
    manifest, router, heads = read_manifest(source), load_router(source), load_heads(source)
    remaining = router
    for name in clients:
        remaining = leave(remaining, name)
    if "joint" in heads:  # one row for each pair of client and class
        rows = heads["joint"].view(router.clients, -1, heads["joint"].shape[1])
        heads["joint"] = rows[[router.names.index(name) for name in remaining.names]].flatten(0, 1)
    save_router(
        target,
        remaining,
        model=manifest["model"],
        classes=manifest["classes"],
        heads=heads,
        # A method may address clients by their number in training.
        notes={**manifest["notes"], TRAINED_CLIENTS: trained_clients(manifest)},
    )
    return remaining
