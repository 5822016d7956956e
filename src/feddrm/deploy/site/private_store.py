"""A site's private parts on its own disk: one file per finished round, each whole or not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from feddrm.deploy.wire.messages import Message, pack, unpack
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.methods import Slots

SAMPLES = "samples.sha256"
NAME = re.compile(r"private-(\d+)\.safetensors")


class PrivateStore:
    """The private part after every round that the server may still ask to go on from.

    The server says which of the site's answers it took last; what came before that is forgotten, what
    came after it (an answer that was late, or lost with a server that crashed) is never built on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, round: int, private: Slots) -> None:
        """Keep what the site has after ``round``."""
        tensors = {f"{slot}/{leaf}": value for slot, leaves in private.items() for leaf, value in leaves.items()}
        write_atomically(self._path(round), pack({"round": round, "slots": list(private)}, tensors), private=True)

    def load(self, round: int, device: torch.device | str = "cpu") -> Slots:
        """What the site had after ``round``."""
        path = self._path(round)
        if not path.exists():
            raise FeddrmError(
                f"{self.folder} holds no private part after round {round}, only after {self.rounds() or 'none'}: "
                f"put back the file from a copy, or start a new run"
            )
        letter = unpack(path.read_bytes())
        slots: Slots = {slot: {} for slot in letter.header["slots"]}
        for name, value in letter.tensors.items():
            slot, _, leaf = name.partition("/")
            slots[slot][leaf] = value.to(device)
        return slots

    def forget_before(self, round: int) -> None:
        for old in self.rounds():
            if old < round:
                self._path(old).unlink(missing_ok=True)

    def rounds(self) -> list[int]:
        """After which rounds there is a private part."""
        found = (NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def keep(self, name: str, header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Something else that a restarted site must remember."""
        write_atomically(self.folder / f"{name}.safetensors", pack(header, tensors), private=True)

    def recall(self, name: str) -> Message | None:
        path = self.folder / f"{name}.safetensors"
        return unpack(path.read_bytes()) if path.exists() else None

    def begun_with(self, samples: str, *, anew: bool) -> bool:
        """Whether the run began with these samples, by their checksum; ``anew`` or with none kept, it does so now.

        The checksum stays here: whoever guesses what a site holds could try it against that.
        """
        path = self.folder / SAMPLES
        if anew or not path.exists():
            write_atomically(path, samples.encode(), private=True)
        return path.read_text() == samples

    def _path(self, round: int) -> Path:
        return self.folder / f"private-{round}.safetensors"
