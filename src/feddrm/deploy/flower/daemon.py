"""The two programs of a deployment, server and site: each looks after its Flower process and works beside it."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
from flwr.supercore.constant import TaskType

from feddrm.deploy.flower.apps import SERVER_FOLDER, Status, site_at
from feddrm.deploy.flower.supernode import fetch_eagerly
from feddrm.deploy.flower.task_worker import (
    Connection,
    LinkError,
    answer_one,
    register,
    serve_one,
    start_run,
    take_task,
)
from feddrm.deploy.server.federation_settings import ServerSettings
from feddrm.deploy.site.site import SiteConfig
from feddrm.errors import FeddrmError

LOCK, JOB, FLOWER_LOG = ".running", "job.json", "flower.log"
IDLE_SECONDS, LONGEST_PAUSE = 0.1, 10.0
PORT_SECONDS, LOCK_TRIES = 15.0, 10
PR_SET_PDEATHSIG = 1
SUPERNODE = "from flwr.supernode.cli import flower_supernode; flower_supernode()"


class Supervisor:
    """A Flower process that is started again whenever it ends, with longer and longer pauses, until :meth:`stop`.

    A SuperNode that comes back within a minute of being killed is refused by the SuperLink and ends;
    so the pauses. It ends with us: on Linux the kernel sees to that even if we are killed.
    """

    def __init__(self, command: list[str], folder: Path, **more: str) -> None:
        self.command, self.folder = command, folder
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(folder / ".flwr")}
        self.environment = {**os.environ, **quiet, **more}
        self.process: subprocess.Popen[bytes] | None = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._keep, daemon=True)
        self.thread.start()

    def _keep(self) -> None:
        pause, said = 1.0, ""
        while not self.stopping.is_set():
            began = time.monotonic()
            with (self.folder / FLOWER_LOG).open("ab") as log:
                start = log.tell()
                self.process = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,
                    preexec_fn=_end_with_parent,
                )  # fmt: skip
            code = self.process.wait()
            reason = _last_words(self.folder / FLOWER_LOG, start) or f"status {code}, without a word"
            if not self.stopping.is_set() and reason != said:  # into our own log, once however often it happens
                print(f"Flower's process ended and is started again: {reason}", file=sys.stderr, flush=True)
                said = reason
            pause = 1.0 if time.monotonic() - began > 60 else min(2 * pause, LONGEST_PAUSE)
            self.stopping.wait(pause)

    def stop(self) -> None:
        self.stopping.set()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.thread.join(timeout=5)


def _last_words(log: Path, start: int) -> str:
    """Why a Flower process ended, as it says after its exit code; its last line where it gives none."""
    with log.open("rb") as file:
        file.seek(start)
        text = file.read().decode(errors="replace").strip()
    told = re.findall(r"Exit Code: \d+\n(.+?)(?:\n\n|$)", text, flags=re.DOTALL)
    return " ".join(told[-1].split()) if told else text.rpartition("\n")[2]


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def run_site(folder: Path) -> None:
    """Stay, and answer whatever the server asks; until a signal."""
    folder = folder.resolve()
    config = SiteConfig.read(folder)
    fetch_eagerly()
    with _alone(folder) as ready, _until_signal():
        site_at(str(folder))  # data that cannot be read are complained of now, not in a round
        ready()
        port = free_port()
        node = Supervisor(_node_command(folder, config, port), folder, PATH=_path())
        try:
            if config.resident:
                _answer_all(Connection(f"127.0.0.1:{port}", folder / "secret", None))
            while True:
                signal.pause()
        finally:
            node.stop()


def _node_command(folder: Path, config: SiteConfig, port: int) -> list[str]:
    secure = ["--root-certificates", str(folder / "ca.crt"), "--auth-supernode-private-key", str(folder / "node.key")]
    ours = [sys.executable, "-m", "feddrm.deploy.flower.supernode", str(config.poll_seconds)]
    return [
        *(ours if config.resident else [sys.executable, "-c", SUPERNODE]),
        *("--superlink", config.server),
        *(["--insecure"] if config.insecure else secure),
        *(["--isolation", "process", "--superexec-auth-secret-file", str(folder / "secret")] * config.resident),
        *("--host", "127.0.0.1", "--port", str(port), "--node-config", f'site="{folder}"'),
    ]


def _path() -> str:
    """Flower starts its own programs by name; they lie beside the Python that runs us."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _answer_all(line: Connection) -> None:
    client = line.client()
    try:
        while True:
            try:
                token = take_task(client, TaskType.CLIENT_APP)
                if token is not None:
                    threading.Thread(target=answer_one, args=(line, token), daemon=True).start()
                    continue
            except LinkError:
                time.sleep(5 * IDLE_SECONDS)
            time.sleep(IDLE_SECONDS)
    finally:
        client.close()


def run_server(folder: Path) -> None:
    """Stay, and train whatever is asked for by ``feddrm deploy run``; until a signal."""
    folder = folder.resolve()
    settings = ServerSettings.read(folder)
    os.environ[SERVER_FOLDER] = str(folder)
    fetch_eagerly()
    with _alone(folder) as ready, _until_signal():
        _wait_for_port("127.0.0.1" if settings.local else "", settings.port)
        ready()
        link = Supervisor(link_command(folder, settings), folder)
        line = Connection(
            f"127.0.0.1:{settings.port}", folder / "secret", None if settings.insecure else folder / "ca.crt"
        )
        try:
            _Runs(folder, line, settings.insecure).go()
        finally:
            link.stop()


def link_command(folder: Path, settings: ServerSettings) -> list[str]:
    """The SuperLink of a server's folder."""
    tls = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "tls.crt", "--ssl-keyfile": "tls.key"}
    secure = [word for option, name in tls.items() for word in (option, str(folder / name))]
    return [
        *(sys.executable, "-m", "feddrm.deploy.flower.superlink", str(folder / "secret")),
        *("--host", "127.0.0.1" if settings.local else "0.0.0.0", "--port", str(settings.port)),
        *(["--insecure"] if settings.insecure else [*secure, "--enable-supernode-auth"]),
        *("--isolation", "process", "--superexec-auth-secret-file", str(folder / "secret")),
        *("--database", str(folder / "link.db"), "--disable-runtime-dependency-installation"),
    ]


class _Runs:
    """Whenever there is a job, a Flower run for it; another one should that break, until the job is done."""

    def __init__(self, folder: Path, line: Connection, insecure: bool) -> None:
        self.folder, self.line, self.insecure = folder, line, insecure
        self.status = Status(folder)

    def go(self) -> None:
        known = self.insecure  # without authentication there is nobody to register
        while True:
            try:
                if not known:
                    keys = {path.stem: path for path in (self.folder / "keys").glob("*.pub") if path.stem != "server"}
                    register(self.line, keys)
                    known = True
                if not (self.folder / JOB).exists():
                    time.sleep(5 * IDLE_SECONDS)
                    continue
                start_run(self.line, self.folder / "app")
                self._serve()
                (self.folder / JOB).unlink(missing_ok=True)
            except FeddrmError as error:
                self.status.tell("failed", {"text": str(error)})
                (self.folder / JOB).unlink(missing_ok=True)
                time.sleep(1)
            except LinkError as error:
                if not isinstance(error, httpx.HTTPError):  # a full disk, say; a link that is away needs no words
                    self.status.tell("complaint", {"text": f"the run broke off ({error}): it is tried again"})
                time.sleep(1)

    def _serve(self) -> None:
        client = self.line.client()
        try:
            for _ in range(600):
                token = take_task(client, TaskType.SERVER_APP)
                if token is not None:
                    serve_one(self.line, token)
                    return
                time.sleep(IDLE_SECONDS)
        finally:
            client.close()
        raise RuntimeError("the run that was submitted did not come")


@contextmanager
def _alone(folder: Path) -> Iterator[Callable[[], None]]:
    """One process per folder; its number stands in the file that it has locked, and whether it has got going."""
    with (folder / LOCK).open("a+") as file:
        for _ in range(LOCK_TRIES):  # whoever looks whether it runs holds it for a moment
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(IDLE_SECONDS)
        else:
            raise FeddrmError(f"{folder} is already running: stop that first ('feddrm deploy down')")
        file.truncate(0)

        def say(words: str) -> None:
            file.write(words)
            file.flush()

        say(str(os.getpid()))
        yield lambda: say(" ready")


def running(folder: Path, *, ready: bool = False) -> int | None:
    """The process that runs in a folder, None where there is none; or none that is ``ready`` yet."""
    path = folder / LOCK
    if not path.exists():
        return None
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            words = file.read().split()
            return int(words[0]) if len(words) > ready else None
    return None


@contextmanager
def _until_signal() -> Iterator[None]:
    """SIGTERM ends as Ctrl-C does: by way of every ``finally`` inside, and then at once.

    One of Flower's threads may be fetching a message that will never come, for two hours, and Python
    would wait for it.
    """

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait_for_port(host: str, port: int) -> None:
    """The SuperLink of a server that was killed needs a moment to let go of it; anybody else will not."""
    end = time.monotonic() + PORT_SECONDS
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if time.monotonic() > end:
                    reason = f"port {port} cannot be used ({error.strerror})"
                    raise FeddrmError(f"{reason}: choose another in federation.yaml and every site.yaml") from error
            else:
                return
        time.sleep(IDLE_SECONDS)


def free_port() -> int:
    """One that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read_status(folder: Path) -> dict[str, Any] | None:
    """What the server last said of itself."""
    try:
        found = json.loads((folder / "status.json").read_text())
    except FileNotFoundError:
        return None
    return dict(found)
