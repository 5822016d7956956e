"""What all tests share: golden figures, real data where it is, and one thread for small tensors."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# NumPy and SciPy read it when they are loaded. Threads of OpenBLAS wait by running, which takes CPU time from the other
# process of the tests.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch

from no_processes import NoProcesses

torch.set_num_threads(1)
try:
    from hypothesis import settings
except ImportError:  # a GPU machine with the core's dependencies alone can still run the tests marked gpu
    pass
else:
    settings.register_profile("feddrm", deadline=None, derandomize=True, max_examples=50)
    settings.load_profile("feddrm")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse processes in tests that are not marked slow, and collect no garbage while tests are loaded."""
    gc.disable()
    guard = NoProcesses()
    config.pluginmanager.register(guard)
    sys.addaudithook(guard)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no process works on a long file when the others have ended."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """What is loaded by now stays to the end: the garbage collector need not look at it again and again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Files are flushed for a loss of power, which no test plays; tests of the flush patch it themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: None)
        yield


@pytest.fixture(scope="session")
def golden() -> Path:
    """Exact figures: the project's own, or others of the same form through FEDDRM_GOLDEN."""
    return Path(os.environ.get("FEDDRM_GOLDEN") or Path(__file__).parent / "golden")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real datasets; tests that need it are skipped where FEDDRM_DATA is not set."""
    if not (folder := os.environ.get("FEDDRM_DATA")):
        pytest.skip("set FEDDRM_DATA to a folder with the real datasets to run this")
    return Path(folder)


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any dataset files; returns the (empty) cache folder."""
    monkeypatch.delenv("FEDDRM_DATA", raising=False)
    cache = tmp_path / "cache"
    monkeypatch.setenv("FEDDRM_CACHE", str(cache))
    return cache


@pytest.fixture
def open_umask() -> Iterator[None]:
    """As careless as it can be: a file for which nobody chose a mode is open to all."""
    before = os.umask(0)
    yield
    os.umask(before)
