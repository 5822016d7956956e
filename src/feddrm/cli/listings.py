"""The commands ``feddrm datasets``, ``models`` and ``methods``."""

from __future__ import annotations

import sys

from feddrm.cli.output import JsonFlag, print_json, print_table
from feddrm.plugins import load_configured
from feddrm.registry import built_in


def datasets(json: JsonFlag = False) -> None:
    """List the datasets.

    Example: feddrm datasets
    """
    _list("feddrm.data", "Dataset", "data/datasets", json)


def models(json: JsonFlag = False) -> None:
    """List the networks.

    Example: feddrm models
    """
    _list("feddrm.models", "Model", "models", json)


def methods(json: JsonFlag = False) -> None:
    """List the methods.

    Example: feddrm methods
    """
    _list("feddrm.methods", "Method", "methods", json)


def _list(module: str, root: str, source: str, json: bool) -> None:
    """Print a family. It is imported only if a plugin, which may add to it, has done so."""
    for line in load_configured():
        print(f"feddrm: warning: {line}", file=sys.stderr)
    rows = built_in(source)
    if module in sys.modules:
        rows |= {name: member.summary() for name, member in getattr(sys.modules[module], root).family.items()}
    if json:
        print_json(dict(sorted(rows.items())))
    else:
        print_table(["name", "what it is"], sorted(rows.items()))
