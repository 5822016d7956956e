"""The run folder: what is in it, written so that a crash at any moment loses no finished round."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import save

from feddrm.data import Federation
from feddrm.data.summary import FACTS
from feddrm.engine import State, load_state, save_state, write_atomically
from feddrm.errors import FeddrmError
from feddrm.io.atomic import locked
from feddrm.methods import Tensors
from feddrm.runs.config import Config, read_config


class RunFolder:
    """Paths and files of one run; see ARCHITECTURE.md for the layout."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def summary_file(self) -> Path:
        return self.path / "summary.json"

    @property
    def state_file(self) -> Path:
        return self.path / "checkpoint" / "state.safetensors"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make the folder where there is none, and let no other process write into it meanwhile.

        A folder with other contents is refused. Locks end with their process.
        """
        if self.path.exists() and not self.path.is_dir():
            raise FeddrmError(f"{self.path} is a file: choose another --out")
        checkpoint = self.state_file.parent
        # The lock's folder is there before the configuration, be it for another process or after a crash.
        if not self.config_file.exists() and self.path.is_dir() and any(p != checkpoint for p in self.path.iterdir()):
            raise FeddrmError(f"{self.path} is not empty and no run: choose another --out")
        try:
            checkpoint.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FeddrmError(f"cannot create {self.path} ({error.strerror}): choose another --out") from error
        with locked(checkpoint / "lock") as ours:
            if not ours:
                raise FeddrmError(f"another process is at work in {self.path}: wait until it is done, or stop it")
            yield

    def open(self, config: Config, federation: Federation) -> State | None:
        """Begin, or go on: the state to resume from, None at the start; other settings or data are refused."""
        if self.config_file.exists():
            self._refuse_other(config)
            self.refuse_other_data(federation, "choose another --out, or give the old data to resume it")
        else:
            write_atomically(self.config_file, config.to_yaml().encode())
        if self.summary_file.exists():
            return None  # finished: nothing is played again, whether its checkpoint is still there or not
        state = load_state(self.state_file, config.device) if self.state_file.exists() else None
        self._forget_after(state.round if state else 0)
        return state

    def _refuse_other(self, config: Config) -> None:
        before, now = read_config(self.config_file), yaml.safe_load(config.to_yaml())
        # Clients side by side change no bit: a run may go on with more of them, or fewer.
        keys = [key for key in {**before, **now} if key != "threads" and before.get(key) != now.get(key)]
        if not keys:
            return
        key = keys[0]
        raise FeddrmError(
            f"{self.path} holds a run with {key}={before.get(key)}, not {now.get(key)}: "
            f"choose another --out, or repeat the old settings to resume it"
        )

    def refuse_other_data(self, federation: Federation, remedy: str) -> None:
        """Settings do not tell arrays, or a file that was edited, from what the run began with."""
        facts = self.read_json(FACTS) or {}
        if facts.get("digest", digest := federation.digest()) != digest:  # older runs have none
            raise FeddrmError(
                f"{self.path} holds a run on other data of '{facts.get('name')}' (their checksum differs): {remedy}"
            )

    def _forget_after(self, round: int) -> None:
        """Drop lines of rounds after the checkpoint: they will be played, and written, again."""
        kept = [entry for entry in read_lines(self.metrics_file) if entry["round"] <= round]
        if self.metrics_file.exists():
            write_atomically(self.metrics_file, b"".join(_line(entry) for entry in kept))

    def add_metrics(self, entry: dict[str, Any]) -> None:
        """Append one evaluated round; it reaches the disk before any checkpoint that includes it."""
        try:
            with self.metrics_file.open("ab") as file:
                file.write(_line(entry))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FeddrmError(
                f"cannot write {self.metrics_file} ({error.strerror}): free the disk and run again to resume"
            ) from error

    def metrics(self) -> list[dict[str, Any]]:
        return read_lines(self.metrics_file)

    def save(self, state: State) -> None:
        save_state(self.state_file, state)

    def write_json(self, name: str, value: Any) -> None:
        write_atomically(self.path / name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def read_json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        except (OSError, json.JSONDecodeError) as error:
            raise FeddrmError(f"cannot read {self.path / name} ({error}): run the training again") from error

    def publish(self, shared: Tensors, private: dict[str, Tensors]) -> None:
        """Part what the server may hold (``router/``) from what only each client may (``clients/<name>/``)."""
        parts = {self.path / "router" / "shared.safetensors": shared}
        parts |= {self.path / "clients" / name / "private.safetensors": leaves for name, leaves in private.items()}
        for path, leaves in parts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            plain = {leaf: value.detach().cpu().contiguous().clone() for leaf, value in leaves.items()}
            write_atomically(path, save(plain), private=leaves is not shared)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; a last line cut off by a crash is left out."""
    if not path.exists():
        return []
    entries = []
    for line in path.read_bytes().split(b"\n"):
        if not line:
            continue
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return entries


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, ensure_ascii=False).encode() + b"\n"
