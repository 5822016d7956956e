"""The machine and the software versions that figures were measured with."""

from __future__ import annotations

import platform

import numpy as np
import torch

from feddrm._version import __version__


def hardware(device: str) -> str:
    """The GPU's name, or the CPU and how many of its threads are used."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} of {torch.multiprocessing.cpu_count()} threads"


def versions() -> dict[str, str]:
    """The versions of feddrm, Python, torch and NumPy."""
    return {
        "feddrm": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
