"""A made federation of survival times, for tests: every client's hazard follows another column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from feddrm.data import Client, Federation
from feddrm.data.client import Split
from feddrm.data.datasets.tcga_brca import REGIONS
from feddrm.io.official_files import TCGA_BRCA
from feddrm.tasks import Survival

TASK = Survival((10, 30, 60, 120))


def patients(count: int, client: int, generator: torch.Generator) -> Split:
    """Exponential times of 200 exp(-1.5 risk) days, many of them censored. The client shows in the second column."""
    x = torch.randn(count, 4, generator=generator)
    x[:, 1] += 2 * client
    time = -(1 - torch.rand(count, generator=generator)).log() * 200 * (-1.5 * x[:, (0, 2, 3)[client]]).exp()
    censored = torch.rand(count, generator=generator) * 400
    return Split(x, Survival.labels(torch.minimum(time, censored).long(), time <= censored))


def survival_federation() -> Federation:
    generator = torch.Generator().manual_seed(0)
    clients = tuple(
        Client(name, train=patients(size, number, generator), test=patients(50, number, generator))
        for number, (name, size) in enumerate({"oslo": 60, "lima": 90, "pune": 130}.items())
    )
    columns = ("a", "b", "c", "d")
    return Federation("patients", clients, TASK.names, "made for tests", columns=columns, task=TASK)


def write_tcga_brca(folder: Path, count: int = 20) -> Path:
    """Files in the form of Fed-TCGA-BRCA: ``count`` patients per region, every fourth for testing."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    rows, split, centres = ["pid,age_at_index,stage,E,T"], ["pid,fold,fold2"], ["TSS Code,Region"]
    for number, region in enumerate(REGIONS):
        centres.append(f"R{number},{region}")
        drawn = patients(count, 0, generator)
        for k, (x, label) in enumerate(zip(drawn.x.tolist(), drawn.y.tolist(), strict=True)):
            rows.append(
                f"TCGA-R{number}-{k},{60 + 10 * x[0]:.0f},{int(x[1] > number / 3)},{label % 2}.0,{label // 2}.0"
            )
            split.append(f"TCGA-R{number}-{k},{'test' if k % 4 == 0 else 'train'},x")
    for name, lines in zip(TCGA_BRCA, (rows, centres, split), strict=True):
        (folder / name).write_text("\n".join(lines))
    return folder


def write_followup(path: Path) -> None:
    """A table of patients of two hospitals: their age, the days of follow-up, and whether they died."""
    generator = np.random.default_rng(0)
    lines = [
        f"{('oslo', 'lima')[i % 2]},{generator.integers(30, 80)},{generator.integers(0, 400)},{generator.integers(2)}"
        for i in range(60)
    ]
    path.write_text("\n".join(["hospital,age,days,died", *lines]) + "\n")
