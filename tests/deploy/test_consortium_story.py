"""docs/stories/consortium.md, run as it is written: four folders stand for four machines, loopback for the network."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from deployment import NAMES, until
from documentation import assert_shown, blocks, run_command, run_script, scripts
from feddrm.deploy.flower.daemon import free_port
from feddrm.deploy.process_lock import running
from feddrm.deploy.provision.certificates import write_certificates
from feddrm.serve.gateway_client import GatewayClient
from serving import Process, launcher

pytestmark = [pytest.mark.deploy, pytest.mark.slow]
LOOPBACK = "127.0.0.1"


class Machines:
    """Folders that stand for machines, and the processes that stay on them."""

    def __init__(self, root: Path, launch: object) -> None:
        self.root, self._launch = root, launch
        self.scripts: list[subprocess.Popen[bytes]] = []
        self.ports = {"8000": str(free_port())}
        self.serving: dict[str, Process] = {}
        self.keys: dict[str, str] = {}
        for name in ("server", *NAMES):
            (root / name).mkdir()

    def run(self, place: str, line: str) -> str:
        """Run a line of the page on one machine; returns what it prints."""
        line = line.replace("$SITE", place)
        words, folder = shlex.split(line.removesuffix(" &")), self.root / place
        match words:
            case ["scp", *_, source, target]:
                host, _, path = target.partition(":")
                to = self.root / host.removesuffix(".example.org") / path
                (shutil.copytree if (folder / source).is_dir() else shutil.copy)(folder / source, to)
                return ""
            case ["mkdir", name]:
                (folder / name).mkdir()
                return ""
            case ["mv", *sources, target]:
                for source in sources:
                    shutil.move(folder / source, folder / target)
                return ""
            case ["feddrm", ("serve" | "serve-client") as command, path, *options]:
                return self._serve(place, command, path, options)
            case ["feddrm", *_]:
                out = run_command(self._here(words), folder)
                if words[1] == "serve-key":
                    (self.keys[place],) = re.findall(r"^(\S{30,})$", out, flags=re.MULTILINE)
                return out
        assert line.endswith("start.sh &")
        checks = str(int(place in ("server", "oslo")))  # once for all sites: it starts an interpreter
        environment = {**os.environ, "FEDDRM_PYTHON": sys.executable, "FEDDRM_CHECK": checks}
        self.scripts.append(subprocess.Popen([folder / words[0]], env=environment, cwd=folder))
        if place == "server":  # sites may start before it, but 'deploy run' may not
            until(lambda: running(folder / "federation" / "server"), "the server", 120)
        return ""

    def _here(self, words: list[str]) -> list[str]:
        """The words with this machine's names and ports in the place of the page's."""
        words = [LOOPBACK if word == "server.example.org" else word for word in words]
        if words[1:3] == ["deploy", "init"]:
            words += ["--port", self.ports["8000"]]
        return [self.serving["server"].url if word == "http://127.0.0.1:8080" else word for word in words]

    def _serve(self, place: str, command: str, path: str, options: list[str]) -> str:
        folder = self.root / place
        given = {name: str(folder / name) for name in ("keys.yaml", "tls.crt", "tls.key", "clients.yaml")}
        words = [given.get(word, word) for word in options if word not in ("--port", "9000", "--host", "0.0.0.0")]
        environment = {f"{name.upper()}_KEY": key for name, key in self.keys.items()}
        process = self._launch(command, folder / path, *words, "--port", 0, **environment)  # type: ignore[operator]
        self.serving[place] = process
        assert process.url
        return ""


@contextmanager
def machines(root: Path) -> Iterator[Machines]:
    (root / "logs").mkdir()
    with contextmanager(launcher)(root / "logs") as launch:
        made = Machines(root, launch)
        try:
            yield made
        finally:
            for script in reversed(made.scripts):
                script.terminate()
            for script in made.scripts:
                script.wait(60)


def prepare(made: Machines, root: Path) -> None:
    """What hospitals have before the story begins: their tables, and certificates of their IT departments."""
    (root / "data").mkdir()
    run_script(scripts("docs/stories/researcher.md")[0], root / "data")
    for name in NAMES:
        shutil.copy(root / "data" / "clinics" / f"{name}.csv", root / name / "visits.csv")
        (root / name / "authority").mkdir()
        write_certificates(root / name / "authority", root / name, [LOOPBACK])


def test_the_story(tmp_path: Path) -> None:
    with machines(tmp_path) as made:
        prepare(made, tmp_path)
        printed, shown = "", 0
        for kind, body in blocks("docs/stories/consortium.md", "console", "yaml", "csv", "text"):
            if kind == "console":
                where, *lines = body.splitlines()
                places = {"# every site": NAMES, "# server": ("server",)}[where]
                printed = "".join(made.run(place, line) for place in places for line in lines)
            elif kind == "text":
                assert_shown(body, printed, points=3)
                shown += 1
            elif kind == "csv":
                (tmp_path / "server" / "patient.csv").write_text(body)
            elif body.startswith("data:"):
                for name in NAMES:
                    file = tmp_path / name / "site" / "site.yaml"
                    file.write_text("\n".join([*file.read_text().splitlines()[:-2], body]))
            else:
                write_clients(made, yaml.safe_load(body))
        assert shown == 3
        with GatewayClient(made.serving["server"].url) as gateway:
            patient = {"age": 35, "marker": 5.6, "dose": 19}
            (pune,) = gateway.predict([patient], without=["oslo", "lima"], max_away=1)
        assert pune["label"] == "yes", "as the page says"
        assert not list((tmp_path / "server").rglob("visits.csv"))


def write_clients(made: Machines, entries: dict[str, dict[str, str]]) -> None:
    """The page's clients.yaml with the addresses of the processes that run here; their authorities' certificates."""
    for name, entry in entries.items():
        assert entry["url"] == f"https://{name}.example.org:9000"
        entry["url"] = made.serving[name].url.replace("localhost", LOOPBACK)
        entry["ca"] = str(shutil.copy(made.root / name / "ca.crt", made.root / "server" / entry["ca"]))
    (made.root / "server" / "clients.yaml").write_text(yaml.safe_dump(entries))
