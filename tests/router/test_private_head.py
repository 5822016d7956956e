"""A client's private head: read as it was written, with the name of its fit; older heads have less."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from feddrm.router.answer_calibration import AnswerCalibration
from feddrm.router.private_head import PrivateHead
from refusal import refused


@pytest.mark.parametrize("fit", ["0123456789ab", None])
def test_a_head_is_read_as_it_was_written(fit: str | None, tmp_path: Path) -> None:
    path, calibration = tmp_path / "head.safetensors", AnswerCalibration(1.5, torch.tensor([0.1, 0.7]).double())
    path.write_bytes(PrivateHead(torch.arange(6.0).view(2, 3), calibration, fit).file())
    head = PrivateHead.read(path, "copy it again")
    assert torch.equal(head.correction, torch.arange(6.0).view(2, 3))
    assert (head.calibration.temperature, head.fit) == (1.5, fit)
    assert head.calibration.scores is not None
    assert head.calibration.scores.tolist() == pytest.approx([0.1, 0.7])


def test_an_older_head_has_no_temperature_and_no_name(tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    save_file({"correction": torch.ones(2, 3)}, path)
    head = PrivateHead.read(path, "copy it again")
    assert (head.calibration.temperature, head.calibration.scores, head.fit) == (1.0, None, None)
    save_file({"correction": torch.ones(2, 3), "scores": torch.tensor([0.7, 0.1])}, path)
    with refused("head.safetensors", "no ascending probabilities", "copy it again"):
        PrivateHead.read(path, "copy it again")


def test_a_file_that_is_no_head_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    save_file({"weight": torch.ones(2, 3)}, path)
    with refused("head.safetensors", "no correction", "copy it again"):
        PrivateHead.read(path, "copy it again")
    path.write_bytes(b"?")
    with refused("head.safetensors", "not safetensors", "copy it again"):
        PrivateHead.read(path, "copy it again")
