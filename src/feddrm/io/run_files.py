"""The files of a run folder: the one place that knows their names. It reads and writes nothing."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

from feddrm.errors import FeddrmError

CONFIG, METRICS, SUMMARY, EVALUATION = "config.yaml", "metrics.jsonl", "summary.json", "evaluation.json"
REPORT, FIGURES = "report.html", "figures"  # the figures of a report as files
FACTS, PICTURES = "data.json", "data.safetensors"  # the dataset summary
ROUTER_FOLDER, CLIENTS_FOLDER = "router", "clients"
CHECKPOINT = "checkpoint.safetensors"  # of a deployed run: the state of its server
COMMIT = ".commit"  # in the router's folder: feddrm.io.staging
SHARED, PRIVATE = "shared.safetensors", "private.safetensors"
SHARDS = "private"  # of a checkpoint: the private slots of a large federation (feddrm.engine.private_shards)
PRIVATE_HEAD, SCALE, TEMPERATURE = "head.safetensors", "scale.json", "temperature.json"
MAX_NAME_BYTES = 200  # a folder's name may have 255 bytes; a temporary name adds some


class ClientFiles:
    """The files of ``clients/<name>/``: what only that client may hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.private_file = path / PRIVATE  # its private slots, as training left them
        self.head_file = path / PRIVATE_HEAD  # feddrm.router.private_head, if heads were fitted
        self.temperature_file = path / TEMPERATURE  # of the answers of its trained model
        self.scale_file = path / SCALE  # the constants by which it scales raw samples
        self.shared_file = path / SHARED  # at a deployed site only: the leaves that the server sent


class RunFiles:
    """The files and folders of one run; ARCHITECTURE.md says what is in them."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / CONFIG
        self.metrics_file = self.path / METRICS
        self.summary_file = self.path / SUMMARY
        self.evaluation_file = self.path / EVALUATION
        self.facts_file = self.path / FACTS
        self.pictures_file = self.path / PICTURES
        self.traffic_file = self.path / "router_traffic.json"  # of a deployed run: what the router's fit has sent
        self.report_file = self.path / REPORT
        self.serving_file = self.path / "serving.json"  # which artifact a gateway serves, once one was promoted
        self.tensorboard = self.path / "tensorboard"

        self.checkpoint = self.path / "checkpoint"
        self.state_file = self.checkpoint / "state.safetensors"
        self.state_shards = self.checkpoint / SHARDS
        self.seconds_file = self.checkpoint / "seconds.json"
        self.lock_file = self.checkpoint / "lock"

        self.router = self.path / ROUTER_FOLDER  # feddrm.router.artifact knows the other files in it
        self.shared_file = self.router / SHARED
        self.commit_file = self.router / COMMIT
        self.clients = self.path / CLIENTS_FOLDER

    def shard_file(self, number: int) -> Path:
        """The private slots of the clients of a large federation, a hundred in each file (feddrm.io.shards)."""
        return self.clients / f"private-{number}.safetensors"

    def shard_files(self) -> list[Path]:
        """All such files; empty for a run whose clients have their private slots in their own folders."""
        return sorted(self.clients.glob("private-*.safetensors"))

    def fitted_file(self, number: int) -> Path:
        """What a router's fit left with the clients of a large federation (feddrm.router.private_head), as above."""
        return self.clients / f"fitted-{number}.safetensors"

    def client(self, name: str) -> ClientFiles:
        """The files of one client."""
        return ClientFiles(self.clients / name)


def check_client_names(where: str, names: Sequence[str]) -> None:
    """Check that there are at least two names, all distinct, and that each can name a folder and a router column."""
    if len(names) < 2:
        raise FeddrmError(f"{where}: a federation needs at least two clients, got {len(names)}: add another")
    seen: dict[str, str] = {}
    for name in names:
        check_client_name(where, name)
        # Many file systems ignore case, and treat 'ü' as one character and as two characters alike.
        if (folded := unicodedata.normalize("NFC", name.casefold())) in seen:
            raise FeddrmError(f"{where}: duplicate client name '{name}' (also '{seen[folded]}'): rename one of them")
        seen[folded] = name


def check_client_name(where: str, name: str) -> None:
    """Check that a name can be that of a folder and of a router's column."""
    if not name.strip() or name in {".", ".."} or not name.isprintable() or any(c in name for c in "/\\"):
        raise FeddrmError(f"{where}: client name {name!r} cannot name a folder: use letters, digits, '-' or '_'")
    if "," in name:  # a comma separates the names in ?without=lima,pune, in --clients and in the audit log
        raise FeddrmError(
            f"{where}: client name {name!r} has a comma, which separates names in a list: use '-' or '_' instead"
        )
    if (size := len(name.encode())) > MAX_NAME_BYTES:
        raise FeddrmError(f"{where}: client name '{name[:20]}...' has {size} bytes: use at most {MAX_NAME_BYTES}")
