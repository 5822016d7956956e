"""The states of cells are in test_runner.py, where runs make them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from feddrm.paper import standing
from refusal import refused


def test_without_a_driver_the_cpu_is_chosen_and_torch_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing.shutil, "which", lambda _: None)
    monkeypatch.setattr(standing, "DRIVER", tmp_path / "version")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert standing.default_device() == "cpu"
    (tmp_path / "version").touch()
    with pytest.raises(ImportError):
        standing.default_device()


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    standing.check_device("cpu")
    with refused("device 'cuda:1' was asked for, but torch sees no GPU here: use --device cpu"):
        standing.check_device("cuda:1")
