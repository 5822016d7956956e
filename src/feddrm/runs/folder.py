"""The run folder: its files are written so that a crash at any moment loses no finished round."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feddrm.data import Federation
from feddrm.engine import State, load_state, save_state
from feddrm.errors import FeddrmError
from feddrm.io.atomic import locked, temporary, write_atomically
from feddrm.io.run_reader import RunReader
from feddrm.io.shards import SHARD_SIZE, shard_bytes
from feddrm.io.staging import Snapshot, settle_run
from feddrm.io.tensors import join_slots, tensor_bytes
from feddrm.io.text import json_bytes, json_line, read_config, yaml_bytes
from feddrm.methods import Slots, Tensors
from feddrm.plugins import require_plugins
from feddrm.router.artifact import MANIFEST
from feddrm.runs.config import Config


class RunFolder(RunReader):
    """The files of one run, and how they are read and written."""

    @property
    def has_router(self) -> bool:
        """Whether a router was fitted."""
        return Snapshot.of(self.router).has(self.router / MANIFEST)

    @contextmanager
    def exclusive(self) -> Iterator[bool]:
        """Create the folder if there is none, and hold its lock until the end of the block.

        A router's fit that a crash cut short is finished or undone.

        Yields whether a process has held the lock before. A folder that holds something else is refused, and so is one
        that another process has locked. The operating system frees the lock when the process ends.
        """
        if self.path.exists() and not self.path.is_dir():
            raise FeddrmError(f"{self.path} is a file: choose another --out")
        # The lock's folder is created before the configuration is written: another process, or a crash, may have
        # left a folder with nothing else in it than what a start writes first.
        others = set(self.path.glob("*")) - {self.checkpoint, temporary(self.config_file)}
        if not self.config_file.exists() and others:
            raise FeddrmError(f"{self.path} is not empty and no run: choose another --out")
        try:
            self.checkpoint.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FeddrmError(f"cannot create {self.path} ({error.strerror}): choose another --out") from error
        used_before = self.lock_file.exists()
        with locked(self.lock_file) as acquired:
            if not acquired:
                raise FeddrmError(f"another process is at work in {self.path}: wait until it is done, or stop it")
            settle_run(self)
            yield used_before

    def open(self, config: Config, federation: Federation, used_before: bool) -> State | None:
        """The state to resume from; None at the start and for a finished run. Other settings or data are refused.

        A training that ended before its first round was evaluated or saved has left nothing to lose: its folder, which
        its lock identifies, is taken over, whatever the settings and the data.
        """
        begun = any(file.exists() for file in (self.summary_file, self.state_file, self.metrics_file))
        if self.config_file.exists() and (begun or not used_before):
            self._refuse_other_settings(config)
            self.refuse_other_data(federation, "choose another --out, or give the old data to resume it")
        else:
            for file in (self.facts_file, self.pictures_file, *self.state_shards.glob("*")):
                file.unlink(missing_ok=True)  # they would describe the data of the start that left nothing else
            write_atomically(self.config_file, yaml_bytes(config.as_dict()))
        if self.summary_file.exists():
            return None  # a finished run is never trained again, even if its checkpoint was deleted
        state = load_state(self.state_file, config.device) if self.state_file.exists() else None
        self._drop_metrics_after(state.round if state else 0)
        return state

    def _refuse_other_settings(self, config: Config) -> None:
        before, now = read_config(self.config_file), config.as_dict()
        require_plugins(before.get("plugins"), self.config_file)
        # The number of threads changes no bit of the result, and a plugin may have been moved: a run may go on.
        free = ("threads", "plugins")
        keys = [key for key in {**before, **now} if key not in free and before.get(key) != now.get(key)]
        if not keys:
            return
        key = keys[0]
        raise FeddrmError(
            f"{self.path} holds a run with {key}={before.get(key)}, not {now.get(key)}: "
            f"choose another --out, or repeat the old settings to resume it"
        )

    def refuse_other_data(self, federation: Federation, remedy: str) -> None:
        """Compare checksums: the settings are the same for other arrays and for a file that was edited."""
        facts = self.read_json(self.facts_file) or {}
        if facts.get("digest", digest := federation.digest()) != digest:  # older runs have no checksum
            raise FeddrmError(
                f"{self.path} holds a run on other data of '{facts.get('name')}' (their checksum differs): {remedy}"
            )

    def _drop_metrics_after(self, round: int) -> None:
        """Delete the lines of rounds after the checkpoint: these rounds are trained and written again."""
        if self.metrics_file.exists():
            lines = [json_line(entry) for entry in self.metrics() if entry["round"] <= round]
            write_atomically(self.metrics_file, b"".join(lines))

    def add_metrics(self, entry: dict[str, Any]) -> None:
        """Append one evaluated round; it reaches the disk before any checkpoint that includes it."""
        try:
            with self.metrics_file.open("ab") as file:
                file.write(json_line(entry))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FeddrmError(
                f"cannot write {self.metrics_file} ({error.strerror}): free the disk and run again to resume"
            ) from error

    def save(self, state: State) -> None:
        """Write the checkpoint."""
        save_state(self.state_file, state)

    def write_json(self, file: Path, value: Any) -> None:
        """Write one of the run's JSON files."""
        write_atomically(file, json_bytes(value))

    def publish(self, shared: Tensors, names: Sequence[str], private: Sequence[Slots]) -> None:
        """Write what the server may hold into ``router/`` and each client's private slots into ``clients/<name>/``.

        The private slots of a large federation go into shards of a hundred clients each: a thousand folders are slow to
        write, to copy and to list, and nobody copies them to a thousand machines.
        """
        self.router.mkdir(parents=True, exist_ok=True)
        write_atomically(self.shared_file, tensor_bytes(shared))
        if len(names) > SHARD_SIZE:
            self.clients.mkdir(parents=True, exist_ok=True)
            for number, start in enumerate(range(0, len(names), SHARD_SIZE)):
                part = dict(zip(names[start : start + SHARD_SIZE], private[start : start + SHARD_SIZE], strict=True))
                write_atomically(self.shard_file(number), shard_bytes(part), private=True)
            return
        for name, slots in zip(names, private, strict=True):
            client = self.client(name)
            client.path.mkdir(parents=True, exist_ok=True)
            write_atomically(client.private_file, tensor_bytes(join_slots(slots)), private=True)
