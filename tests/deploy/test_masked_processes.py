"""A federation of real processes with secure aggregation, of which every kind is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
import torch

from deployment import NAMES, Deployed, in_one_process, until
from feddrm.deploy import cluster_status, local_cluster
from feddrm.deploy.flower.daemon import free_port
from feddrm.deploy.process_lock import running
from feddrm.deploy.server.status import read_status
from feddrm.deploy.server.training import ServerState
from feddrm.engine import Plan
from feddrm.router import load_router

from .test_end_to_end import DEADLINE, LONG, ROUTING, child_of, history

pytestmark = [pytest.mark.deploy, pytest.mark.slow, pytest.mark.xdist_group("members")]
ROUNDS = 14


@pytest.fixture
def project(deployed: Callable[..., Deployed]) -> Iterator[Deployed]:
    training = {"method": "feddrm", "rounds": ROUNDS}
    made = deployed(training=training, port=free_port(), deadline=DEADLINE, routing=ROUTING, secure_aggregation=True)
    try:
        yield made
    finally:
        local_cluster.down(made.folder)


def test_killed_processes_cost_a_masked_run_time_and_nothing_else(project: Deployed) -> None:
    """Three sites: a sum needs all of them, so a round waits for a site that is away, and no round is given up."""
    folder = project.folder
    for name in NAMES:
        project.change_site(name, require_secure_aggregation=True)
    local_cluster.up(folder)
    pids = cluster_status.status(folder)["processes"]
    local_cluster.begin(folder)
    until(lambda: len(history(folder)) >= 1, "a round", LONG)

    os.kill(child_of(pids["lima"]), signal.SIGKILL)  # as in a power cut: it cannot sign off
    os.kill(pids["lima"], signal.SIGKILL)
    os.kill(pids["pune"], signal.SIGKILL)  # the worker without its SuperNode: another process has another mask key
    for name in ("lima", "pune"):
        until(lambda name=name: running(folder / "sites" / name) is None, f"{name} to be gone", 10)
    before = len(history(folder))
    assert set(local_cluster.up(folder)) == {"lima", "pune"}
    until(lambda: len(history(folder)) > before + 1, "rounds with the sites that are back", LONG)

    before, link = len(history(folder)), child_of(pids["server"])
    os.kill(link, signal.SIGKILL)
    until(lambda: len(history(folder)) > before + 1, "rounds over the new SuperLink", LONG)

    assert len(history(folder)) < ROUNDS
    os.kill(pids["server"], signal.SIGKILL)
    until(lambda: running(folder / "server") is None, "the server to be gone", 10)
    assert local_cluster.up(folder) == ["server"]
    until(lambda: "step" in (read_status(folder / "server", "first") or {}), "the router's fit", LONG)
    os.kill(cluster_status.status(folder)["processes"]["server"], signal.SIGKILL)
    until(lambda: running(folder / "server") is None, "the server to be gone", 10)
    assert local_cluster.up(folder) == ["server"]
    summary = local_cluster.run(folder, lambda status: None, 240)

    assert summary["rounds"] == ROUNDS
    assert all(entry["answered"] == list(NAMES) for entry in history(folder))
    assert summary["metrics"]["own"]["accuracy"]["value"] == summary["average_accuracy"]
    assert load_router(project.run / "router").names == NAMES
    expected = in_one_process("feddrm", Plan(rounds=ROUNDS, local_steps=4, batch_size=16, lr=0.05))
    state = ServerState.load(project.run / "checkpoint.safetensors")
    for leaf, value in expected.shared.items():  # rounds differ by the rounding of float32, and training adds to it
        torch.testing.assert_close(state.shared[leaf], value, rtol=0, atol=1e-4)


def test_a_masked_round_waits_for_a_site_that_is_too_slow(deployed: Callable[..., Deployed]) -> None:
    made = deployed(training={"rounds": 6}, port=free_port(), deadline=5.0, router=False, secure_aggregation=True)
    server, pune = made.folder / "server", made.site_folder("pune")
    try:
        local_cluster.up(made.folder)
        local_cluster.begin(made.folder)
        until(lambda: len(history(made.folder)) >= 1, "a round", LONG)
        os.kill(running(pune) or 0, signal.SIGSTOP)
        waits = "the server to wait for pune"
        until(lambda: str((read_status(server, "first") or {}).get("for")).startswith("pune"), waits, LONG)
        os.kill(running(pune) or 0, signal.SIGCONT)
        summary = local_cluster.run(made.folder, lambda status: None, LONG)
    finally:
        local_cluster.down(made.folder)
    assert summary["accepted"] == dict.fromkeys(NAMES, 6)
    assert all(entry["answered"] == list(NAMES) for entry in history(made.folder))
