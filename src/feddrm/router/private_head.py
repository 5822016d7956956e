"""What a router's fit leaves with a client: its private head, its calibrations, its scale of raw samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feddrm.errors import FeddrmError
from feddrm.io.run_files import ClientFiles, RunFiles
from feddrm.io.shards import SHARD_SIZE, Shard, Slots
from feddrm.io.staging import Snapshot
from feddrm.io.tensors import read_metadata, read_tensors, tensor_bytes
from feddrm.io.text import broken, read_json
from feddrm.router.answer_calibration import AnswerCalibration
from feddrm.router.artifact import FIT, trained_clients

HEAD, TRAINED, SCALE = "head", "trained", "scale"  # the slots of a shard
Scale = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation by channel


@dataclass(frozen=True, eq=False)
class PrivateHead:
    """A client's correction of the probe, its calibration, and the name of the fit they belong to.

    It fits the probe of its own fit only; older heads name none.
    """

    correction: Tensor
    calibration: AnswerCalibration
    fit: str | None

    def tensors(self) -> dict[str, Tensor]:
        return {"correction": self.correction, **self.calibration.tensors()}

    def file(self) -> bytes:
        """The content of its file, which only the client may read."""
        return tensor_bytes(self.tensors(), None if self.fit is None else {FIT: self.fit})

    @classmethod
    def read(cls, path: Path, remedy: str) -> PrivateHead:
        """Read a head; an older one may have no temperature or no scores."""
        return cls.of(read_tensors(path, remedy), read_metadata(path, remedy).get(FIT), path, remedy)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], fit: str | None, path: Path, remedy: str) -> PrivateHead:
        """The head that these tensors of a file make."""
        if "correction" not in tensors:
            raise broken(path, "no correction of the probe", remedy)
        return cls(tensors["correction"], AnswerCalibration.of(tensors, path, remedy), fit)


def client_slots(
    mean: Sequence[float], std: Sequence[float], trained: AnswerCalibration | None, head: PrivateHead | None
) -> Slots:
    """The slots of one client in a shard: its scale, the calibration of its trained model, its head."""
    slots = {SCALE: {"mean": torch.tensor(mean, dtype=torch.float64), "std": torch.tensor(std, dtype=torch.float64)}}
    slots |= {} if trained is None else {TRAINED: trained.tensors()}
    return slots | ({} if head is None else {HEAD: head.tensors()})


class ClientParts:
    """Reads what a fit left with one client: from a shard of a large federation, or from the client's own folder."""

    def __init__(
        self, client: ClientFiles, run: RunFiles, manifest: Mapping[str, Any], now: Snapshot, remedy: str
    ) -> None:
        self.client, self.now, self.remedy = client, now, remedy
        self.shard: Shard | None = None
        name, trained = client.path.name, trained_clients(manifest)
        path = run.fitted_file(trained.index(name) // SHARD_SIZE if name in trained else 0)
        if now.has(path) and name in (shard := now.read(path, lambda place: Shard(place, remedy))):
            self.shard, self.slots = shard, shard.read(name)

    def scale(self) -> Scale | None:
        """How the client scales raw samples; None if it is not known."""
        path = self.client.scale_file
        if self.shard is not None:
            path, values = self.shard.path, {key: value.tolist() for key, value in self.slots.get(SCALE, {}).items()}
        elif self.now.has(path):
            values = self.now.read(path, lambda place: read_json(place, self.remedy))
        else:
            return None
        try:
            mean, std = (tuple(float(value) for value in values[key]) for key in ("mean", "std"))
        except (ValueError, KeyError, TypeError) as error:
            raise broken(path, "no lists of numbers 'mean' and 'std'", self.remedy) from error
        return mean, std

    def trained(self) -> AnswerCalibration:
        """The calibration of the trained model's answers. A run from before temperatures has none."""
        if self.shard is not None:
            return AnswerCalibration.of(self.slots.get(TRAINED, {}), self.shard.path, self.remedy)
        path = self.client.temperature_file
        if not self.now.has(path):
            return AnswerCalibration()
        return self.now.read(path, lambda place: AnswerCalibration.read(place, self.remedy))

    def head(self, fit: str | None, remedy: str) -> PrivateHead | None:
        """The head of this fit; one of another is refused. None if no heads were fitted."""
        if self.shard is not None:
            path, notes = self.shard.path, self.shard.notes
            head = PrivateHead.of(self.slots[HEAD], notes.get(FIT), path, remedy) if HEAD in self.slots else None
        else:
            path = self.client.head_file
            there = self.now.has(path)
            head = self.now.read(path, lambda place: PrivateHead.read(place, remedy)) if there else None
        if head is not None and head.fit != fit:
            fits = f"{head.fit or 'without a name'}, the router's is {fit or 'without a name'}"
            raise FeddrmError(f"{path} belongs to another fit ({fits}): {remedy}")
        return head
