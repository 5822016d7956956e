"""A guard for `make test-fast`: a test that is not marked slow may not start a process."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest


class NoProcesses:
    """An audit hook that raises an error when a test starts a process and is not marked slow."""

    EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})

    def __init__(self) -> None:
        self.fast_test: str | None = None  # the test that runs, if it is not slow

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.fast_test is not None and event in self.EVENTS:
            raise RuntimeError(f"{self.fast_test} starts a process ({event} {arguments[:1]}): mark it slow")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        """Guard one test with its fixtures."""
        exempt = item.get_closest_marker("slow") or item.get_closest_marker("gpu")  # Triton compiles in a process
        self.fast_test = None if exempt else item.nodeid
        try:
            return (yield)
        finally:
            self.fast_test = None
