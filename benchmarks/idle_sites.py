"""Measures what an idle federation costs: CPU seconds per minute of a server and three sites, and the wait afterwards.

python -m benchmarks.idle_sites --json results/bench/idle_sites.json

Real processes over TLS on this machine, as ``feddrm deploy up`` starts them. "steady" asks as often when idle as in a
run; "growing" is what feddrm does: pauses grow, and a message wakes the worker. The wait is the time from ``feddrm
deploy run`` to the first message at the slowest site.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.result import finish
from feddrm.deploy import cluster_status, local_cluster
from feddrm.deploy.flower.daemon import free_port
from feddrm.deploy.process_lock import running
from feddrm.deploy.provision.project import make_project
from feddrm.deploy.server.federation_settings import FederationSettings

NAMES = ("oslo", "lima", "pune")
GROWN = 45.0  # seconds after which the pauses have their full length
# A site whose pauses do not grow, in its worker and in its SuperNode.
STEADY = """
import sys
from pathlib import Path
from feddrm.deploy.flower import daemon
node = "from feddrm.deploy.flower import supernode as s; "
node += "s.IdlePause.__init__.__defaults__ = (0.0, s.time.monotonic); s.main()"
command = daemon._supernode_command
daemon.LONGEST_PAUSE = 0.0
daemon._supernode_command = lambda *given: [sys.executable, "-c", node, *command(*given)[3:]]
daemon.run_site(Path(sys.argv[1]))
"""


def cpu_seconds(leaders: list[int]) -> dict[int, float]:
    """The CPU time so far of all processes of these sessions."""
    seconds = dict.fromkeys(leaders, 0.0)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = path.read_text().rpartition(") ")[2].split()
        except OSError:  # it has just ended
            continue
        if (session := int(values[3])) in seconds:
            seconds[session] += sum(map(int, values[11:13])) / os.sysconf("SC_CLK_TCK")
    return seconds


def start_steadily(folder: Path) -> None:
    """Start the server as always, and sites whose pauses do not grow."""
    words = {name: [sys.executable, "-c", STEADY, str(folder / "sites" / name)] for name in NAMES}
    words["server"] = [sys.executable, "-m", "feddrm", "deploy", "server", str(folder / "server")]
    for command in words.values():
        local_cluster._started.append(
            subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
    until(lambda: all(running(place, ready=True) for place in cluster_status.folders(folder).values()))


def until(holds: Any, seconds: float = 120.0) -> None:
    """Wait until it holds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("the federation does not get there: see whether other programs use the machine")
        time.sleep(0.05)


def measure(steady: bool, seconds: float, grown: float) -> dict[str, float]:
    """CPU seconds per minute of the server and of a site on average, and the wait of the first message."""
    with tempfile.TemporaryDirectory(prefix="feddrm-") as place:
        folder = Path(place) / "federation"
        settings = FederationSettings(clients=NAMES, training={"rounds": 1}, router=False, port=free_port())
        make_project(folder, settings, data={"dataset": "digits"})
        sites = [folder / "sites" / name for name in NAMES]
        try:
            (start_steadily if steady else local_cluster.up)(folder)
            until(lambda: all(cluster_status.site_status(site).get("connected") for site in sites))
            time.sleep(1.0 if steady else grown)
            pids = {name: pid for name, p in cluster_status.folders(folder).items() if (pid := running(p)) is not None}
            before = cpu_seconds(list(pids.values()))
            time.sleep(seconds)
            after = cpu_seconds(list(pids.values()))
            spent = {name: (after[pid] - before[pid]) * 60 / seconds for name, pid in pids.items()}
            began = time.time()
            local_cluster.begin(folder)
            until(lambda: all(cluster_status.site_status(site).get("message") for site in sites))
            wait = max(cluster_status.site_status(site)["message"]["time"] for site in sites) - began
        finally:
            local_cluster.down(folder)
    three = sum(spent[name] for name in NAMES)
    return {
        "three_sites_cpu_seconds_per_minute": round(three, 2),
        "server_cpu_seconds_per_minute": round(spent["server"], 2),
        "first_message_seconds": round(wait, 2),
    }


def main() -> None:
    """Measure and print; --json also writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure")
    parser.add_argument("--grown", type=float, default=GROWN, help="how long to wait before")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    idle = {name: measure(name == "steady", args.seconds, args.grown) for name in ("steady", "growing")}
    finish({"idle": idle, "seconds": args.seconds}, args.json)


if __name__ == "__main__":
    main()
