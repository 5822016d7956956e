"""Measures the router's fit over Flower: messages, bytes and seconds, in few messages and round by round.

python -m benchmarks.deploy_router --json results/bench/deploy_router.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.result import finish
from feddrm.deploy import local_cluster
from feddrm.deploy.flower.daemon import free_port
from feddrm.deploy.provision.project import make_project
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.io.run_files import RunFiles

NAMES = ("oslo", "lima", "pune")
DATA = {"overlapping clients": {"shift": "none", "seed": 7}, "clients apart": {}}
WAYS = {"few messages": {}, "round by round": {"few_messages": False, "rounds": 60}}


def fit(data: dict[str, Any], routing: dict[str, Any]) -> dict[str, Any]:
    """Train three rounds on three sites over TLS and fit the router; what its fit cost and chose."""
    with tempfile.TemporaryDirectory(prefix="feddrm-") as place:
        folder = Path(place) / "federation"
        training = {"method": "feddrm", "rounds": 3}
        settings = FederationSettings(clients=NAMES, training=training, routing=routing, port=free_port())
        make_project(folder, settings, data={"dataset": "digits", **data})
        try:
            local_cluster.up(folder)
            summary = local_cluster.run(folder, lambda _: None)
            traffic = json.loads(RunFiles(folder / "server" / "runs" / "first").traffic_file.read_text())
        finally:
            local_cluster.down(folder)
    chosen = {
        key: summary["router"]["router"][key] for key in ("recipe", "ridge", "held_out_loss", "held_out_accuracy")
    }
    return {**traffic, **chosen}


def main() -> None:
    """Measure and print; --json also writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    fits = {f"{kind}, {way}": fit(data, routing) for kind, data in DATA.items() for way, routing in WAYS.items()}
    finish({"fits": fits}, args.json, libraries=["flwr"])


if __name__ == "__main__":
    main()
