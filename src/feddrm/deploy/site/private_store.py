"""The private store: the files in which a site keeps its private slots, one per finished round."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from feddrm.deploy.wire.messages import Message, pack, read_stored
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.io.tensors import join_slots, split_slots
from feddrm.methods import Slots

SAMPLES = "samples.sha256"
BACK = "put back the file from a copy, or start a new run"
NAME = re.compile(r"private-(\d+)\.safetensors")


class PrivateStore:
    """The private slots after every round that the server may still continue from.

    The server says which of the site's uploads it accepted last. Slots from before that round are deleted.
    Slots from after it (an upload that was late, or lost when the server crashed) are never used again.
    Every file is written atomically and readable by its owner only.

    ``training`` is the checksum of the training that makes the slots. Slots of another one are not loaded: its method
    may share the leaves that are private in this one, and a server could so ask for them.

    Slots also have the digest of the ``message`` by which they were made, and the server repeats it when it asks to go
    on from them. So slots of another course of the run (the server went back to an older checkpoint, and this folder
    was then put back from a copy of before) are not taken for those of the same round.
    """

    def __init__(self, folder: Path, training: str | None = None) -> None:
        self.folder, self.training = folder, training
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, round: int, private: Slots, message: str | None = None) -> None:
        """Write the slots that the site has after ``round``."""
        about = {"training": self.training, "message": message}
        header = {"round": round, "slots": list(private), **{key: value for key, value in about.items() if value}}
        write_atomically(self._path(round), pack(header, join_slots(private)), private=True)

    def load(self, round: int, device: torch.device | str = "cpu", message: str | None = None) -> Slots:
        """The slots that the site had after ``round``, and were made by this message if it is known."""
        path = self._path(round)
        if not path.exists():
            raise FeddrmError(
                f"{self.folder} holds no private part after round {round}, only after {self.rounds() or 'none'}: {BACK}"
            )
        stored = read_stored(path, BACK)
        made_by = stored.header.get("training")  # older versions wrote none
        if None not in (made_by, self.training) and made_by != self.training:
            raise FeddrmError(
                f"its private part after round {round} is of a training with another method, model or plan: it is not "
                "used; start a new run"
            )
        own = stored.header.get("message")  # older versions wrote none
        if None not in (own, message) and own != message:
            raise FeddrmError(
                f"its private part after round {round} is not the one that the server went on from: its folder was "
                "put back from a copy of another course of the run; put back the latest copy, or start a new run"
            )
        return split_slots({name: value.to(device) for name, value in stored.tensors.items()}, stored.header["slots"])

    def forget_before(self, round: int) -> None:
        for old in self.rounds():
            if old < round:
                self._path(old).unlink(missing_ok=True)

    def rounds(self) -> list[int]:
        """The rounds after which slots are stored."""
        matches = (NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def keep(self, name: str, header: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Write something else that a site must remember after a restart."""
        write_atomically(self.folder / f"{name}.safetensors", pack(header, tensors), private=True)

    def recall(self, name: str) -> Message | None:
        """What :meth:`keep` wrote under this name."""
        path = self.folder / f"{name}.safetensors"
        return read_stored(path, BACK) if path.exists() else None

    def check_samples(self, checksum: str, *, restart: bool) -> bool:
        """Whether the run began with samples of this checksum. A new run, or one without a stored checksum, stores it.

        The checksum stays on the site: with it, others could test a guess of what the site holds.
        """
        path = self.folder / SAMPLES
        if restart or not path.exists():
            write_atomically(path, checksum.encode(), private=True)
        return path.read_text() == checksum

    def _path(self, round: int) -> Path:
        return self.folder / f"private-{round}.safetensors"
