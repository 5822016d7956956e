"""``feddrm bench deploy``: the cost of the network. Rounds over Flower against the same rounds in one process."""

from __future__ import annotations

import datetime
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from feddrm.data import load
from feddrm.deploy import local_cluster
from feddrm.deploy.flower.daemon import free_port
from feddrm.deploy.provision.project import make_project
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.training import ServerState
from feddrm.engine import RoundSchedule, cpu_kernels, federate, first_state, functional
from feddrm.errors import FeddrmError, SettingError
from feddrm.runs import hardware, versions
from feddrm.runs.config import resolve

NAMES = ("oslo", "lima", "pune")
SECONDS = 240.0  # the longest time for all rounds over Flower


def bench_deploy(
    rounds: int = 6,
    say: Callable[[str], None] = lambda _: None,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Seconds per round, and bytes per round and site, of FedDRM on the digits with three sites.

    ``keep`` is called with the results so far after each of the two measurements.
    """
    if rounds < 2:
        raise SettingError(f"rounds={rounds}: give at least 2, because the first one is not measured")
    say(f"in one process: {rounds} rounds")
    results: dict[str, Any] = {
        "sites": len(NAMES),
        "one_process": _in_one_process(rounds),
        "hardware": hardware("cpu"),
        "versions": {**versions(), "flwr": metadata.version("flwr")},
        "date": datetime.date.today().isoformat(),
    }
    keep(results)
    say(f"over Flower: {rounds} rounds")
    deployed = _deployed(rounds)
    deployed["overhead_seconds"] = deployed["round_seconds"] - results["one_process"]["round_seconds"]
    results["resident"] = deployed
    keep(results)
    return results


def _in_one_process(rounds: int) -> dict[str, Any]:
    federation = load("digits", clients=len(NAMES))
    config = resolve(federation, method="feddrm", rounds=rounds)
    net = config.model.build(federation.shape, len(federation.classes), len(NAMES), config.plan.seed)
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    state = first_state(config.method, leaves, len(NAMES))
    seconds, began = [], time.perf_counter()
    schedule = RoundSchedule(config.method, config.plan, len(NAMES))
    with cpu_kernels(net, config.plan.batch_size):
        for _ in federate(schedule, functional(net), federation, state):
            seconds.append(time.perf_counter() - began)
            began = time.perf_counter()
    return {"rounds": rounds, "round_seconds": statistics.median(seconds[1:]), "first_round_seconds": seconds[0]}


def _deployed(rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="feddrm-") as place:
        folder = Path(place) / "federation"
        training = {"method": "feddrm", "rounds": rounds}
        settings = FederationSettings(clients=NAMES, training=training, router=False, port=free_port())
        make_project(folder, settings, data={"dataset": "digits"})
        began = time.perf_counter()
        try:
            local_cluster.up(folder)
            local_cluster.begin(folder)
            history = _history(folder, rounds)
        finally:
            local_cluster.down(folder)
        seconds = time.perf_counter() - began
    later = history[1:]  # in the first round, sites prepare the run
    return {
        "rounds": rounds,
        "round_seconds": statistics.median(entry["seconds"] for entry in later),
        "slowest_round_seconds": max(entry["seconds"] for entry in later),
        "first_round_seconds": history[0]["seconds"],
        "all_seconds": seconds,
        "bytes_to_a_site": max(max(entry["bytes_sent"].values()) for entry in later),
        "bytes_from_a_site": max(max(entry["bytes_received"].values()) for entry in later),
    }


def _history(folder: Path, rounds: int) -> Sequence[Mapping[str, Any]]:
    """Wait for the end of the rounds; returns the server's metrics of each."""
    path = folder / "server" / "runs" / "first" / "checkpoint.safetensors"
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if path.exists() and len(history := ServerState.load(path).history) >= rounds:
            return history
        time.sleep(0.5)
    raise FeddrmError(f"{rounds} rounds were not over after {SECONDS:g} s: see whether other programs use the machine")
