"""The lines that are noted are those that coverage.py's tracer sees."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from commands import python_script

coverage = pytest.importorskip("coverage")
from line_coverage import LineCoverage  # noqa: E402

PART = '''"""Statements of every kind."""
from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(
    frozen=True,
)
class Point:
    """A class with annotations alone."""

    x: int
    y: int = 0

    @property
    def __sum(self) -> int:
        """Two lines of one statement."""
        return (self.x +
                self.y)

    def total(self) -> int: return self.__sum


@functools.cache
@functools.wraps(print)
def never(x):
    return x


def kinds(given):
    total = 0
    for i in range(2):
        if i > 1:
            continue
        elif i:
            total += 1
        else:
            pass
    else:
        total += 1
    while total < 5:
        total += 1
    try:
        int(given)
    except TypeError:
        return "type"
    except (
        ValueError
    ):
        total += 1
    else:
        return None
    finally:
        total += 1
    match total:
        case 1:
            return 1
        case 2 | 3:
            return 2
        case _ if total > 3:
            with open(__file__):
                return lambda: (
                    total
                )


async def wait():
    async def inner():
        yield 1
    async for x in inner():
        assert x
    return [x
            for x in range(3)]


if False:
    unreached = 1

async_result = wait()
try:
    async_result.send(None)
except StopIteration as stop:
    assert stop.value == [0, 1, 2]
assert Point(1).total() == 1
assert kinds("a")() == 7
'''
TRACED = """
import coverage, sys
measured = coverage.Coverage(data_file=sys.argv[1], config_file=False, include=[sys.argv[2] + "/*"])
with measured.collect():
    import sample.part_test
measured.save()
"""


def missing(data: Path, file: Path) -> tuple[list[int], list[int]]:
    """Statements and those that were not reached, as coverage.py reports them."""
    report = coverage.Coverage(data_file=str(data), config_file=False)
    report.load()
    _, statements, missed, _ = report.analysis(str(file))
    return statements, missed


@pytest.mark.slow
def test_lines_are_those_of_the_tracer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "sample"
    package.mkdir()
    for name, text in (("__init__", ""), ("part_test", PART), ("alone", "never = 1\n"), ("left_out", "never = 1\n")):
        (package / f"{name}.py").write_text(text)
    python_script(TRACED, tmp_path / "traced", package, cwd=tmp_path).check_returncode()

    (tmp_path / ".coveragerc").write_text("[report]\nomit = */left_out.py\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COVERAGE_FILE", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = LineCoverage("sample")
    monkeypatch.setattr(sys, "meta_path", [lines, *sys.meta_path])
    importlib.import_module("sample.part_test")
    assert not hasattr(importlib.import_module("sample.left_out"), "__lines__"), "it is imported as it is"
    lines.pytest_sessionfinish()
    subprocess.run([sys.executable, "-m", "coverage", "combine", "--quiet"], check=True)
    statements, missed = missing(tmp_path / ".coverage", package / "part_test.py")
    assert (statements, missed) == missing(tmp_path / "traced", package / "part_test.py")
    assert 5 < len(missed) < len(statements) / 3
    assert missing(tmp_path / ".coverage", package / "alone.py") == ([1], [1]), "files that nobody imports count"
    measured = coverage.CoverageData(str(tmp_path / ".coverage"))
    measured.read()
    assert {Path(file).name for file in measured.measured_files()} == {"__init__.py", "part_test.py", "alone.py"}
    for name in [name for name in sys.modules if name.partition(".")[0] == "sample"]:
        del sys.modules[name]


def test_nothing_is_written_where_nothing_was_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the process that distributes the tests."""
    monkeypatch.chdir(tmp_path)
    LineCoverage("sample").pytest_sessionfinish()
    assert list(tmp_path.iterdir()) == []
