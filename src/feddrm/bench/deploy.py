"""What the network costs: rounds over Flower against the same rounds in one process, digits, three sites."""

from __future__ import annotations

import datetime
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from feddrm.data import load
from feddrm.deploy import local_cluster
from feddrm.deploy.flower.daemon import free_port
from feddrm.deploy.provision.project import make_project
from feddrm.deploy.server.federation_settings import ServerSettings
from feddrm.deploy.server.training import Progress
from feddrm.engine import RoundSchedule, cpu_kernels, federate, first_state, functional
from feddrm.errors import FeddrmError, SettingError
from feddrm.runs import hardware, versions
from feddrm.runs.config import resolve

NAMES = ("oslo", "lima", "pune")
SECONDS = 240.0  # the most that either way over Flower may take
PER_MESSAGE_ROUNDS = 2  # each takes half a minute


def bench_deploy(
    rounds: int = 6,
    per_message: bool = True,
    say: Callable[[str], None] = lambda _: None,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Seconds per round, bytes per round and site: in one process, over Flower, and Flower's own way.

    ``keep`` is given what is known after each of them.
    """
    if rounds < 2:
        raise SettingError(f"rounds={rounds}: give at least 2, the first is not like the others")
    say(f"in one process: {rounds} rounds")
    today = datetime.date.today().isoformat()
    found: dict[str, Any] = {
        "sites": len(NAMES),
        "one_process": _in_one_process(rounds),
        "hardware": hardware("cpu"),
        "versions": {**versions(), "flwr": metadata.version("flwr")},
        "date": today,
    }
    keep(found)
    for name, resident in (("resident", True), ("process_per_message", False)):
        if resident or per_message:
            number = rounds if resident else min(rounds, PER_MESSAGE_ROUNDS)
            say(f"{name.replace('_', ' ')}: {number} rounds")
            found[name] = _deployed(number, resident)
            found[name]["overhead_seconds"] = found[name]["round_seconds"] - found["one_process"]["round_seconds"]
            keep(found)
    return found


def _in_one_process(rounds: int) -> dict[str, Any]:
    federation = load("digits", clients=len(NAMES))
    config = resolve(federation, method="feddrm", rounds=rounds)
    net = config.model.build(federation.shape, len(federation.classes), len(NAMES), config.plan.seed)
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    state = first_state(config.method, leaves, len(NAMES))
    took, began = [], time.perf_counter()
    with cpu_kernels(net, config.plan.batch_size):
        for _ in federate(RoundSchedule(config.method, config.plan, len(NAMES)), functional(net), federation, state):
            took.append(time.perf_counter() - began)
            began = time.perf_counter()
    return {"rounds": rounds, "round_seconds": statistics.median(took[1:]), "first_round_seconds": took[0]}


def _deployed(rounds: int, resident: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="feddrm-") as place:
        folder = Path(place) / "federation"
        training = {"method": "feddrm", "rounds": rounds}
        settings = ServerSettings(clients=NAMES, training=training, router=False, port=free_port())
        make_project(folder, settings, data={"dataset": "digits"})
        for name in NAMES if not resident else ():
            path = folder / "sites" / name / "site.yaml"
            path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "resident": False}))
        began = time.perf_counter()
        try:
            local_cluster.up(folder)
            local_cluster.begin(folder)
            history = _history(folder, rounds)
        finally:
            local_cluster.down(folder)
        took = time.perf_counter() - began
    later = history[1:]  # in the first, sites read their data
    return {
        "rounds": rounds,
        "round_seconds": statistics.median(entry["seconds"] for entry in later),
        "slowest_round_seconds": max(entry["seconds"] for entry in later),
        "first_round_seconds": history[0]["seconds"],
        "all_seconds": took,
        "bytes_to_a_site": max(max(entry["bytes_sent"].values()) for entry in later),
        "bytes_from_a_site": max(max(entry["bytes_received"].values()) for entry in later),
    }


def _history(folder: Path, rounds: int) -> Sequence[Mapping[str, Any]]:
    """What the server wrote down of the rounds, once they are over."""
    path = folder / "server" / "runs" / "first" / "checkpoint.safetensors"
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if path.exists() and len(history := Progress.load(path).history) >= rounds:
            return history
        time.sleep(0.5)
    raise FeddrmError(f"{rounds} rounds were not over after {SECONDS:g} s: see whether other programs use the machine")
