"""The machine and the versions that figures are reported with."""

from __future__ import annotations

import platform

import pytest
import torch

import feddrm
from feddrm.runs import hardware, versions


@pytest.mark.slow
def test_a_cpu_is_described_by_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(torch.multiprocessing, "cpu_count", lambda: 8)
    assert hardware("cpu") == f"{platform.machine()} CPU, 3 of 8 threads"


def test_a_gpu_is_described_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card {device}")
    assert hardware("cuda:1") == "card cuda:1"


def test_versions_name_the_package_and_what_it_computes_with() -> None:
    assert set(versions()) == {"feddrm", "python", "torch", "numpy"}
    assert (versions()["feddrm"], versions()["torch"]) == (feddrm.__version__, torch.__version__)
