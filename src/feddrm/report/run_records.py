"""Reading what a run left behind: a file that cannot be used is named, with the remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feddrm.errors import FeddrmError
from feddrm.io import text

REMEDY = "restore the file or train the run again"


def broken(path: Path, why: str) -> FeddrmError:
    """The error for a file of a run that cannot be used."""
    return text.broken(path, why, REMEDY)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The evaluated rounds, each with its number."""
    entries = text.read_json_lines(path, REMEDY)
    for line, entry in enumerate(entries, start=1):
        if isinstance(entry.get("round"), bool) or not isinstance(entry.get("round"), int):
            raise broken(path, f"line {line} has no whole number 'round'")
    return entries


def number(value: Any, path: Path, what: str) -> float | None:
    """A finite number, or None for null and for what diverged (NaN, infinity)."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise broken(path, f"{what} should be a number, found {type(value).__name__}")
    return float(value) if math.isfinite(value) else None


def mapping(value: Any, path: Path, what: str) -> Mapping[str, Any]:
    """A mapping, empty for null."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise broken(path, f"{what} should be a mapping, found {type(value).__name__}")
    return {str(key): entry for key, entry in value.items()}
