"""A server's folder as it is during a training, made up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feddrm.deploy.process_lock import LOCK, only_process
from feddrm.deploy.provision.project import make_project
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.status import JOB, ServerStatus

NAMES = ("oslo", "lima")
REASON = "refused: holds <b>other</b> samples: put them back"


def entry(number: int, answered: tuple[str, ...], **more: Any) -> dict[str, Any]:
    bytes_by_site = dict.fromkeys(answered, 2**20)
    return {
        "round": number,
        "loss": 1 / number,
        "asked": list(NAMES),
        "answered": list(answered),
        "seconds": 2.0,
        "bytes_sent": bytes_by_site,
        "bytes_received": {name: 2 * count for name, count in bytes_by_site.items()},
        "accuracy_before": 0.5,
        **more,
    }


def training_folder(folder: Path) -> tuple[Path, ServerStatus]:
    """The server's folder after three rounds, the first by an older version; one site is waited for."""
    make_project(folder / "f", FederationSettings(clients=NAMES, training={"rounds": 9}))
    server = folder / "f" / "server"
    run = server / "runs" / "first"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("rounds: 9\n")
    history = [entry(1, NAMES[:1]), entry(2, NAMES, missing={}), entry(3, NAMES[:1], missing={NAMES[1]: REASON})]
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in history))
    (server / JOB).write_text(json.dumps({"run": "first"}))
    status = ServerStatus(server)
    about = {"kind": "train", "round": 3}
    status.record("round started", {"round": 3, "asked": list(NAMES)})
    status.record("site answered", {"site": "oslo", **about, "seconds": 0.25, "loss": 0.3})
    status.record("site missing", {"site": NAMES[1], **about, "reason": REASON})
    status.record("round finished", {"rounds": 9, **history[-1]})
    status.record("outstanding", {"waiting": {NAMES[1]: 1000.0}})
    return server, status


@contextmanager
def running_server(server: Path) -> Iterator[None]:
    """As while the server runs that has written everything in the folder."""
    with only_process(server):
        os.utime(server / LOCK, (0, 0))
        yield
