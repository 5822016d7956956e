"""Which tests are slow: those that start a process or a browser, and those that fuzz.

Tests are not listed by name. `reasons` reads the code of a test and of its fixtures, and follows the helpers that
they call within tests/. So a test may move or be renamed and stays marked.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

TESTS = Path(__file__).parent
PROCESSES = ("subprocess", "multiprocessing", "selenium", "schemathesis")  # imported by a test: it is slow
MARKERS = ("deploy", "long")  # markers that imply slow


class NoProcesses:
    """An audit hook that refuses to start a process while a test runs that is not marked slow.

    It finds what `reasons` cannot see: processes that the package itself starts.
    """

    EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})

    def __init__(self) -> None:
        self.fast_test: str | None = None  # the test that runs, if it is not slow

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.fast_test is not None and event in self.EVENTS:
            raise RuntimeError(f"{self.fast_test} starts a process ({event} {arguments[:1]}): mark it slow")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        """Guard one test with its fixtures."""
        self.fast_test = None if item.get_closest_marker("slow") else item.nodeid
        try:
            return (yield)
        finally:
            self.fast_test = None


def is_slow(test: pytest.Function) -> bool:
    """Whether `make test-fast` leaves the test out."""
    if any(test.get_closest_marker(name) for name in MARKERS):
        return True
    fixtures = [fixture.func for versions in test._fixtureinfo.name2fixturedefs.values() for fixture in versions]
    return bool(reasons([test.function, *fixtures]))


def reasons(functions: list[Any]) -> set[str]:
    """The packages of `PROCESSES` that a test can reach; ``functions`` are the test itself and its fixtures."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = list(functions)
    while waiting:
        value = inspect.unwrap(waiting.pop())
        if id(value) in seen:
            continue
        seen.add(id(value))
        package = (value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None) or "").split(".")[
            0
        ]
        if package in PROCESSES:
            found.add(package)
        elif _is_ours(value):
            waiting += _mentioned(value)
    return found


def _is_ours(value: Any) -> bool:
    """Whether a function, class or module is defined under tests/."""
    try:
        return TESTS in Path(inspect.getfile(value)).parents
    except TypeError:  # built in, or not code at all
        return False


def _mentioned(value: Any) -> Iterator[Any]:
    """What the code of a function, or of a class's methods, refers to by a global name or ``module.name``."""
    if inspect.isclass(value):
        yield from (member for member in vars(value).values() if isinstance(member, FunctionType))
    elif isinstance(value, FunctionType):
        names = set(_names(value.__code__))
        known = [value.__globals__[name] for name in names if name in value.__globals__]
        yield from known
        for module in known:
            if isinstance(module, ModuleType) and _is_ours(module):
                yield from (vars(module)[name] for name in names if name in vars(module))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
