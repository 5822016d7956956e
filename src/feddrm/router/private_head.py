"""A client's private head: its correction of the probe, its calibration, and the name of the fit they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from feddrm.errors import FeddrmError
from feddrm.io.staging import Snapshot
from feddrm.io.tensors import read_metadata, read_tensors, tensor_bytes
from feddrm.io.text import broken
from feddrm.router.answer_calibration import AnswerCalibration, checked_scores
from feddrm.router.artifact import FIT


@dataclass(frozen=True, eq=False)
class PrivateHead:
    """What a client adds to the probe. It fits the probe of its own fit only; older heads name none."""

    correction: Tensor
    calibration: AnswerCalibration
    fit: str | None

    def file(self) -> bytes:
        """The content of its file, which only the client may read."""
        tensors = {"correction": self.correction, "temperature": torch.tensor(self.calibration.temperature)}
        if self.calibration.scores is not None:
            tensors["scores"] = self.calibration.scores
        return tensor_bytes(tensors, None if self.fit is None else {FIT: self.fit})

    @classmethod
    def of_fit(cls, path: Path, now: Snapshot, fit: str | None, remedy: str) -> PrivateHead:
        """Read the head of this fit; one of another is refused."""
        head = now.read(path, lambda place: cls.read(place, remedy))
        if head.fit != fit:
            fits = f"{head.fit or 'without a name'}, the router's is {fit or 'without a name'}"
            raise FeddrmError(f"{path} belongs to another fit ({fits}): {remedy}")
        return head

    @classmethod
    def read(cls, path: Path, remedy: str) -> PrivateHead:
        """Read a head; an older one may have no temperature or no scores."""
        tensors = read_tensors(path, remedy)
        if "correction" not in tensors:
            raise broken(path, "no correction of the probe", remedy)
        try:
            scores = checked_scores(tensors.get("scores"))
        except ValueError as error:
            raise broken(path, "'scores' are no ascending probabilities", remedy) from error
        calibration = AnswerCalibration(float(tensors.get("temperature", 1.0)), scores)
        return cls(tensors["correction"], calibration, read_metadata(path, remedy).get(FIT))
