"""What the tests of the command line share: calling it in this process, and the form of its errors."""

from __future__ import annotations

import functools
import re
import signal
import sys
from collections.abc import Callable, Iterator
from subprocess import CompletedProcess

import pytest
import typer.main

from feddrm.cli import main


@pytest.fixture(autouse=True, scope="session")
def built_once() -> Iterator[None]:
    """Typer builds all commands at every call, which takes longer than most of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run the command line in this process: exit code, standard output, standard error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["feddrm", *words])
        with pytest.raises(SystemExit) as stop:
            main()
    out, err = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, out, err


def stated_defaults(page: str) -> dict[str, str]:
    """By option, what its help says in '(default: ...)'."""
    parts = re.split(r"^  --([a-z-]+)", page, flags=re.MULTILINE)[1:]
    found = {
        name.replace("-", "_"): re.search(r"\(default: ([^)]*)\)", " ".join(words.split()))
        for name, words in zip(parts[::2], parts[1::2], strict=True)
    }
    return {name: match[1] for name, match in found.items() if match}


def assert_one_line(result: tuple[int, str, str], code: int, says: str) -> None:
    """The call failed with this exit code and one line on standard error."""
    returned, out, err = result
    assert (returned, out) == (code, "")
    assert err.startswith("feddrm: error: ")
    assert err.count("\n") == 1
    assert says in err


@pytest.fixture
def feddrm(capsys: pytest.CaptureFixture[str]) -> Callable[..., CompletedProcess[str]]:
    """``feddrm WORDS`` in this process, with the result of a process."""

    def command(*words: object) -> CompletedProcess[str]:
        return CompletedProcess(words, *call(capsys, *map(str, words)))

    return command


@pytest.fixture
def stop_signals() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, as in a terminal, and others fail the test: a process may have begun otherwise.

    One that a shell starts in the background ignores SIGINT. SIGTERM and SIGHUP would end the tests.
    """

    def fail(number: int, _frame: object) -> None:
        pytest.fail(f"signal {number} was not handled")

    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: fail, signal.SIGHUP: fail}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
