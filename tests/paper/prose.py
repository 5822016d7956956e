"""What the tests of hand-written figures share: settings, methods, pages."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = ("cifar10-dir0.3", "cifar10-spc5", "cifar20-dir0.3", "cifar20-spc25", "cifar100-dir0.3", "cifar100-spc25")
TITLES = (
    "CIFAR-10 Dir-0.3",
    "CIFAR-10 5-SPC",
    "CIFAR-20 Dir-0.3",
    "CIFAR-20 25-SPC",
    "CIFAR-100 Dir-0.3",
    "CIFAR-100 25-SPC",
)
DRM, FT, PROX = "feddrm-lam0.9", "fedavgft-tune100", "fedproxft-tune100"
BABU, AS, ALA = "fedbabu-tune200", "fedas", "fedala-fixed"


def prose() -> str:
    return " ".join((ROOT / "docs/router_measured.md").read_text().split())


def span(values: list[float], digits: int) -> str:
    ends = sorted({f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"}, key=float)
    return " to ".join(ends)
