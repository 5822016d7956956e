"""Reading what a run left behind: a file that cannot be used is named, with the remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from feddrm.errors import FeddrmError

REMEDY = "restore the file or train the run again"


def broken(path: Path, why: str) -> FeddrmError:
    """The one error for a file that is there and cannot be used."""
    return FeddrmError(f"{path} is broken ({why}): {REMEDY}")


def read_text(path: Path) -> str:
    """The whole file, as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise broken(path, "not UTF-8 text") from error
    except OSError as error:
        raise FeddrmError(f"cannot read {path} ({error.strerror}): {REMEDY}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, nothing else."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise broken(path, f"not JSON, {error}") from error
    if not isinstance(value, dict):
        raise broken(path, f"expected an object, found {type(value).__name__}")
    return value


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping, nothing else."""
    try:
        value = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise broken(path, f"not YAML, {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise broken(path, f"expected a mapping, found {type(value).__name__}")
    return value


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """One object per line. The last line may be torn, for a run may be killed while it writes."""
    lines = [(i, line) for i, line in enumerate(read_text(path).split("\n"), start=1) if line.strip()]
    entries = []
    for i, line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            if i == lines[-1][0]:
                break
            raise broken(path, f"line {i} is not JSON") from error
        if (
            not isinstance(entry, dict)
            or isinstance(entry.get("round"), bool)
            or not isinstance(entry.get("round"), int)
        ):
            raise broken(path, f"line {i} has no whole number 'round'")
        entries.append(entry)
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
