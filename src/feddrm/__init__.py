"""Federated learning that routes every new query to the client best equipped for it.

A name is imported when it is first used, so that ``feddrm --help`` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feddrm import drm, router
    from feddrm.data import Dataset, Federation, load
    from feddrm.drm import DensityRatioModel
    from feddrm.errors import FeddrmError
    from feddrm.methods import Method
    from feddrm.models import Model
    from feddrm.plugins import load_plugin
    from feddrm.runs import Run, fit, train, train_seeds
    from feddrm.search import tune
    from feddrm.serve.gateway_client import GatewayClient

from feddrm._version import __version__

__all__ = [
    "Dataset",
    "DensityRatioModel",
    "FeddrmError",
    "Federation",
    "GatewayClient",
    "Method",
    "Model",
    "Run",
    "__version__",
    "drm",
    "fit",
    "load",
    "load_plugin",
    "router",
    "train",
    "train_seeds",
    "tune",
]

_HOMES = {
    "Dataset": "feddrm.data",
    "DensityRatioModel": "feddrm.drm",
    "Federation": "feddrm.data",
    "FeddrmError": "feddrm.errors",
    "GatewayClient": "feddrm.serve.gateway_client",
    "Method": "feddrm.methods",
    "Model": "feddrm.models",
    "Run": "feddrm.runs",
    "fit": "feddrm.runs",
    "load": "feddrm.data",
    "load_plugin": "feddrm.plugins",
    "train": "feddrm.runs",
    "train_seeds": "feddrm.runs",
    "tune": "feddrm.search",
}
_PACKAGES = ("drm", "router")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"feddrm.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'feddrm' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The names that a notebook completes after ``feddrm.``."""
    return sorted(__all__)
