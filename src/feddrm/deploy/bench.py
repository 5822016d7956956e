"""What the network costs: rounds over Flower against the same rounds in one process, digits, three sites."""

from __future__ import annotations

import datetime
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from feddrm.data import load
from feddrm.deploy import together
from feddrm.deploy.project import make_project
from feddrm.deploy.rounds import Progress
from feddrm.deploy.settings import ServerSettings
from feddrm.engine import federate, first_state, functional
from feddrm.runs.config import resolve
from feddrm.runs.run import hardware, versions

NAMES = ("oslo", "lima", "pune")
SECONDS = 500.0


def bench_deploy(
    rounds: int = 6, per_message: bool = True, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Seconds per round, bytes per round and site: in one process, over Flower, and Flower's own way."""
    training = {"method": "feddrm", "rounds": rounds}
    say("in one process")
    found: dict[str, Any] = {"rounds": rounds, "sites": len(NAMES), "one_process_seconds": _in_one_process(training)}
    for name, resident in (("resident", True), ("process_per_message", False)):
        if resident or per_message:
            say(name.replace("_", " "))
            found[name] = _deployed(training, resident)
            found[name]["overhead_seconds"] = found[name]["round_seconds"] - found["one_process_seconds"]
    today = datetime.date.today().isoformat()
    return {**found, "hardware": hardware("cpu"), "versions": versions(), "date": today}


def _in_one_process(training: dict[str, Any]) -> float:
    federation = load("digits", clients=len(NAMES))
    config = resolve(federation, **training)
    net = config.model.build(federation.shape, len(federation.classes), len(NAMES), config.plan.seed)
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    state = first_state(config.method, leaves, len(NAMES))
    took, began = [], time.perf_counter()
    for _ in federate(config.method, functional(net), federation, config.plan, state):
        took.append(time.perf_counter() - began)
        began = time.perf_counter()
    return statistics.median(took)


def _deployed(training: dict[str, Any], resident: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="feddrm-") as place, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
        probe.close()
        folder = Path(place) / "federation"
        settings = ServerSettings(clients=NAMES, training=training, router=False, port=port)
        make_project(folder, settings, data={"dataset": "digits"})
        for name in NAMES if not resident else ():
            path = folder / "sites" / name / "site.yaml"
            path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "resident": False}))
        began = time.perf_counter()
        try:
            together.up(folder)
            started = time.perf_counter() - began
            together.run(folder, lambda _: None, SECONDS)
        finally:
            together.down(folder)
        history = Progress.load(folder / "server" / "runs" / "first" / "checkpoint.safetensors").history
    later = history[1:] or history  # in the first, sites read their data
    return {
        "round_seconds": statistics.median(entry["seconds"] for entry in later),
        "slowest_round_seconds": max(entry["seconds"] for entry in later),
        "first_round_seconds": history[0]["seconds"],
        "start_seconds": started,
        "bytes_to_a_site": max(max(entry["bytes_sent"].values()) for entry in later),
        "bytes_from_a_site": max(max(entry["bytes_received"].values()) for entry in later),
    }
