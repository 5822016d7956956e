"""A gateway and its clients in processes of their own, which tests stop, kill and restore."""

from __future__ import annotations

import re
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import torch
import yaml

from feddrm.data import load
from feddrm.router import load_router
from serving import NAMES, Launch, Process

# Falling back is what these tests are about, so the gateway does it by its settings.
FEW = {"FEDDRM_SERVE_HEALTH_SECONDS": "60", "FEDDRM_SERVE_COOL_DOWN_SECONDS": "0.5", "FEDDRM_SERVE_FAILURES": "2",
       "FEDDRM_SERVE_MAX_AWAY": "1"}  # fmt: skip


class Cluster:
    """Three predictors and a gateway that knows them, on a copy of the run."""

    def __init__(self, run: Path, folder: Path, launch: Launch) -> None:
        self.launch, self.run = launch, folder / "run"
        shutil.copytree(run, self.run)
        self.router = {path: path.read_bytes() for path in (self.run / "router").iterdir()}
        self.clients: dict[str, Process] = {name: self.start(name) for name in NAMES}
        entries = {name: {"url": process.url, "timeout": 1.0} for name, process in self.clients.items()}
        (folder / "clients.yaml").write_text(yaml.safe_dump(entries))
        words = ["serve", self.run, "--clients", folder / "clients.yaml", "--port", 0, "--log-level", "warning"]
        self.gateway = launch(*words, **FEW)
        self.url = self.gateway.wait_ready()
        for process in self.clients.values():
            process.wait_ready()
        self.http = httpx.Client(base_url=self.url, timeout=20)
        test = torch.cat([client.test.x for client in load("digits", clients=3, seed=3).clients])
        decision = load_router(run / "router").route(test)
        self.queries = {name: test[decision.client == i][:8] for i, name in enumerate(NAMES)}

    def start(self, name: str, port: int | str = 0) -> Process:
        return self.launch("serve-client", self.run / "clients" / name, "--port", port)

    def restore(self) -> None:
        """Undo what a test has done: all clients run and are asked, and the gateway serves the first artifact."""
        for name, process in self.clients.items():
            process.send(signal.SIGCONT)
            if process.code() is not None:
                self.clients[name] = self.start(name, process.url.rpartition(":")[2])
        if self.router != {path: path.read_bytes() for path in self.router}:
            for path, content in self.router.items():
                path.write_bytes(content)
            assert self.http.post("/v1/admin/reload").status_code == 200
        for name in NAMES:
            self.until(lambda name=name: self.answers(name))

    def predict(self, name: str, number: int = 0) -> httpx.Response:
        """Ask about a sample that belongs to the client."""
        return self.http.post("/v1/predict", json={"inputs": self.queries[name][number % 4][None].tolist()})

    def answers(self, name: str) -> bool:
        """Whether the client answers the samples that belong to it."""
        response = self.predict(name)
        return response.status_code == 200 and bool(response.json()["answers"][0]["client"] == name)

    def upstream(self, name: str) -> dict[str, object]:
        return next(c for c in self.http.get("/v1/clients").json()["clients"] if c["client"] == name)

    def audited(self, answer: httpx.Response) -> list[tuple[str, int, str, str]]:
        """The request's audit records: action, samples, who answered, who failed."""
        with closing(sqlite3.connect(self.run / "audit.sqlite")) as database:
            query = "SELECT action, samples, answered, failed FROM decisions WHERE request_id = ? ORDER BY places"
            return database.execute(query, (answer.headers["x-request-id"],)).fetchall()

    def reloads(self) -> Counter[str]:
        lines = re.findall(
            r'^feddrm_reloads_total\{outcome="(\w+)"\} (\d+)', self.http.get("/metrics").text, re.MULTILINE
        )
        return Counter({outcome: int(count) for outcome, count in lines})

    def until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.gateway.log.read_text()
            time.sleep(0.05)
