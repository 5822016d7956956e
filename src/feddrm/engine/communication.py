"""What the rounds of a training send: the bytes of the tensors that cross, without what a message has around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor


class Sent(NamedTuple):
    """Of the rounds of one stage: tensors from the server to a client (down) and from a client to the server (up)."""

    rounds: int = 0
    downloads: int = 0
    uploads: int = 0
    bytes_down: int = 0
    bytes_up: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the mean size of one download and one upload: what one client has in one round."""
        return {
            **self._asdict(),
            "bytes_per_download": self.bytes_down / self.downloads if self.downloads else None,
            "bytes_per_upload": self.bytes_up / self.uploads if self.uploads else None,
        }


@dataclass(frozen=True)
class Communication:
    """What was sent since the first round, by stage (``train``, ``tune``)."""

    stages: Mapping[str, Sent] = field(default_factory=dict)

    @classmethod
    def load(cls, saved: Mapping[str, Sequence[int]]) -> Communication:
        """What :meth:`saved` gave."""
        return cls({stage: Sent(*figures) for stage, figures in saved.items()})

    def saved(self) -> dict[str, list[int]]:
        """As checkpoints keep it."""
        return {stage: list(sent) for stage, sent in self.stages.items()}

    def after(self, stage: str, down: Sequence[int], up: Sequence[int]) -> Communication:
        """With one more round of a stage, given the bytes of every download and of every upload."""
        round = Sent(1, len(down), len(up), sum(down), sum(up))
        before = self.stages.get(stage, Sent())
        return Communication({**self.stages, stage: Sent(*map(sum, zip(before, round, strict=True)))})

    def totals(self, rounds: int) -> dict[str, Any]:
        """The entry of a line of ``metrics.jsonl``; empty if not all ``rounds`` were counted, as by older versions."""
        if not rounds or sum(sent.rounds for sent in self.stages.values()) != rounds:
            return {}
        down, up = (sum(getattr(sent, f"bytes_{way}") for sent in self.stages.values()) for way in ("down", "up"))
        return {"communication": {"bytes_down": down, "bytes_up": up, "bytes_total": down + up}}

    def summary(self, rounds: int) -> dict[str, Any]:
        """The entry of ``summary.json``: the totals, and every stage."""
        stages = {name: sent.as_dict() for name, sent in self.stages.items()}
        return {key: {**totals, "stages": stages} for key, totals in self.totals(rounds).items()}


def sizes_of(parts: Iterable[Mapping[str, Tensor]]) -> list[int]:
    """The bytes of the tensors of several messages. A tensor on a GPU is not waited for."""
    return [sum(tensor.nbytes for tensor in tensors.values()) for tensors in parts]
