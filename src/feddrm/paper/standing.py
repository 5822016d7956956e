"""Which cells of a grid are done, half done or missing; it starts nothing, and loads torch only to estimate times."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from feddrm.io.run_reader import RunReader
from feddrm.paper.cell_records import CellRecord
from feddrm.paper.estimate import estimate
from feddrm.paper.grid import Cell, Grid

State = Literal["done", "no router", "half done", "missing"]
DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Standing:
    """The state of a cell, its last evaluated round, and its time."""

    cell: Cell
    state: State
    round: int
    seconds: float | None  # measured if done, estimated otherwise


def cell_standing(cell: Cell, grid: Grid, records: Mapping[str, CellRecord], work: Path, device: str) -> Standing:
    """The state of a cell by its result, or by its run's folder in ``work``."""
    record, folder = records.get(cell.id), RunReader(work / cell.id)
    if record is not None:
        return Standing(cell, "done" if record.routed else "no router", cell.rounds, record.seconds)
    seconds = estimate(cell, grid.by_id, measured_here(records, device))
    if seconds is not None and grid.needs_search(cell):
        seconds *= 1 + float((grid.search or {}).get("cost", 1.0))
    begun = folder.state_file.exists()
    lines = folder.metrics() if begun else []
    return Standing(cell, "half done" if begun else "missing", lines[-1]["round"] if lines else 0, seconds)


def measured_here(records: Mapping[str, CellRecord], device: str) -> list[CellRecord]:
    """The results from this hardware: times on other hardware do not compare."""
    here = _machine(device)
    # Training sets the number of threads itself.
    return [record for record in records.values() if record.hardware.partition(",")[0] == here]


def _machine(device: str) -> str:
    """The hardware as results name it, without the number of threads."""
    if not device.startswith("cuda"):
        return f"{platform.machine()} CPU"
    from feddrm.runs import hardware

    return hardware(device)


def default_device() -> str:
    """The GPU if there is one. Without a driver there is none, and torch need not be asked."""
    if shutil.which("nvidia-smi") is None and not DRIVER.exists():
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str) -> None:
    """Refuse a GPU that is not there."""
    if device.startswith("cuda"):
        from feddrm.engine import require_gpu

        require_gpu(device)
