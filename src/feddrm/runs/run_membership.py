"""Clients leave or join a run's fitted router: a new artifact, with nothing trained again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from feddrm.data import Client, Split, View
from feddrm.errors import FeddrmError
from feddrm.evaluation import pooled_queries
from feddrm.predictor.query_files import read_queries
from feddrm.router import (
    Router,
    RouterSettings,
    join_client,
    leave,
    load_heads,
    load_router,
    read_manifest,
    save_router,
)
from feddrm.router.artifact import TRAINED_CLIENTS, trained_clients
from feddrm.router.router import ONE_SCALE
from feddrm.runs.folder import RunFolder
from feddrm.runs.run_router import load_run_federation


def leave_run_router(folder: RunFolder, clients: Sequence[str], out: Path | None = None) -> Router:
    """Write the run's router without some clients into the folder ``out``, or into the run itself."""
    with _target(folder, out) as target:
        return _write_without(folder.router, clients, target)


def join_run_router(
    folder: RunFolder,
    saved: Mapping[str, Any],
    name: str,
    files: Sequence[Path],
    out: Path | None = None,
    data_dir: str | None = None,
) -> Router:
    """Write the run's router with one more client into the folder ``out``, or into the run itself.

    ``files`` are the new client's samples, without labels: files that :func:`feddrm.predictor.query_files.read_queries`
    takes, or folders of them. ``saved`` is the content of the run's ``config.yaml``: the other clients' samples are
    loaded again by it.
    """
    with _target(folder, out) as target:  # before anything is read: another client may be leaving
        manifest, router = read_manifest(folder.router), load_router(folder.router)
        if name in router.names:
            raise FeddrmError(f"the router knows a client '{name}' already: choose another name")
        if router.own_scales:
            raise FeddrmError(f"the clients of {folder.path} scale samples each in its own way: {ONE_SCALE}")
        federation = load_run_federation(folder, saved, data_dir)
        folder.refuse_other_data(federation, "give the data that it was trained on")
        if unknown := [known for known in router.names if known not in federation.names]:
            raise FeddrmError(
                f"the run has no samples of '{unknown[0]}', which joined its router: let it leave, then join both with "
                "the router of a new run"
            )
        paths = [path for given in files for path in (sorted(given.iterdir()) if given.is_dir() else [given])]
        if not paths:
            raise FeddrmError(f"{', '.join(map(str, files))}: no files of samples: give at least one")
        x, _ = read_queries(router, paths)
        samples = Split(x, torch.zeros(len(x), dtype=torch.int64))
        newcomer = Client(name, samples, samples, View(mean=router.input_mean, std=router.input_std))
        members = [federation.clients[federation.names.index(known)] for known in router.names]
        together = replace(federation, clients=(*members, newcomer), gallery=None)
        chosen = manifest["notes"]["chosen"]
        settings = RouterSettings(views=chosen.get("views", 1))
        # The newcomer brings no test samples: calibration then takes those of its samples that a fit held out.
        others = range(len(members))
        test = pooled_queries(together, crop=False, seed=0, round=0, views=settings.views, clients=others)
        joined = join_client(router, together, chosen["router"]["ridge"], settings, test)
        heads = {key: value for key, value in load_heads(folder.router).items() if key != "joint"}
        # The joint model and the stacks that use it know nothing of the new client.
        stacks = {key: weights for key, weights in manifest["notes"]["stacks"].items() if "joint" not in weights}
        notes = {**manifest["notes"], "stacks": stacks, TRAINED_CLIENTS: trained_clients(manifest)}
        save_router(target, joined, model=manifest["model"], classes=manifest["classes"], heads=heads, notes=notes)
        return joined


@contextmanager
def _target(folder: RunFolder, out: Path | None) -> Iterator[Path]:
    """The folder to write the new router into: an empty one, or the run's own, which is then locked."""
    if out is None:
        with folder.exclusive():
            yield folder.router
        return
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise FeddrmError(f"{out} is not an empty folder: choose another --out, or change the run with --in-place")
    yield out


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
