"""Plugins for tests: the examples of docs/extending.md as files, and a process that has loaded none."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from documentation import ROOT, scripts
from feddrm import plugins
from feddrm.data import Dataset
from feddrm.methods import Method
from feddrm.models import Model

PAGE = (ROOT / "docs" / "extending.md").read_text()
NAMES = ("median.py", "blobs.py", "scaffold.py")
FAMILIES = (Dataset.family, Method.family, Model.family)


def write_examples(folder: Path) -> list[Path]:
    """Write the Python blocks of the page, under the names that it gives them. The first two are one run's plugins."""
    assert tuple(re.findall(r"This is\s`(\w+\.py)`", PAGE)) == NAMES
    for name, source in zip(NAMES, scripts("docs/extending.md"), strict=True):
        (folder / name).write_text(source)
    return [folder / name for name in NAMES[:2]]


def options(paths: list[Path]) -> list[str]:
    return [word for path in paths for word in ("--plugin", str(path))]


def forget() -> None:
    """As a new process: no plugin is loaded."""
    for family in FAMILIES:
        for name in [name for name, member in family.items() if not member.__module__.startswith("feddrm.")]:
            del family[name]
    for module in plugins._files:
        sys.modules.pop(module, None)
    plugins._files.clear()
    plugins._packages.clear()
    plugins.load_configured.cache_clear()


@contextmanager
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No plugin is loaded before, and none of the block's afterwards."""
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    forget()
    yield
    forget()
