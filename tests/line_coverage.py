"""Which lines of the package the tests reach, at a fraction of a tracer's cost.

Python 3.11 slows down all code, also that of other packages, while a tracer is set. Here every statement of the
package notes its own line. The figures are written as coverage.py's data, and ``coverage report`` reads them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

NOTES = "__lines__"  # a module's global: one byte for every line


def _note(lines: Iterable[int], place: ast.AST) -> Iterator[ast.stmt]:
    for line in lines:
        (statement,) = ast.parse(f"{NOTES}[{line}] = 1").body
        for node in ast.walk(statement):
            ast.copy_location(node, place)
        yield statement


def noting(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """These statements, each with a note of its line before it."""
    changed: list[ast.stmt] = []
    for statement in body:
        notes = _note([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))], statement)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            changed.append(statement)  # a docstring is not counted
        elif isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            changed += [statement, *notes]  # nothing may stand before it
        else:
            changed += [*notes, statement]
        for name in ("body", "orelse", "finalbody"):
            if inner := getattr(statement, name, None):
                setattr(statement, name, noting(inner))
        tried = []  # the lines of 'except' or 'case' down to the one that fits
        for branch in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            tried.append(getattr(branch, "pattern", branch).lineno)
            branch.body = [*_note(tried, branch.body[0]), *noting(branch.body)]
    return changed


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, lines: bytearray) -> None:
        super().__init__(name, path)
        self.lines = lines

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path))
        tree.body = noting(tree.body)
        return compile(tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, NOTES, self.lines)
        super().exec_module(module)


class LineCoverage(MetaPathFinder):
    """Imports a package so that it notes its lines, and writes them at the end of the session."""

    def __init__(self, package: str) -> None:
        from coverage import Coverage

        assert package not in sys.modules, f"{package} was imported before its lines are noted"
        self.package, self.seen = package, dict[str, bytearray]()
        self.settings = Coverage()
        self.omit = self.settings.get_option("report:omit") or []

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self.package:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        for spec in others:  # pytest's own would take a module called '*_test' for a test
            if spec is not None and type(spec.loader) is SourceFileLoader:
                if not self._omits(file := spec.loader.path):
                    lines = self.seen.setdefault(file, bytearray(2 + Path(file).read_bytes().count(b"\n")))
                    spec.loader = _Loader(fullname, file, lines)
                return spec
        return None

    def _omits(self, file: str) -> bool:
        return any(fnmatch(file, pattern) for pattern in self.omit)

    def pytest_sessionfinish(self) -> None:
        """Write the lines of this process; files that were not imported count as well."""
        from coverage import CoverageData

        if not self.seen:  # the process that distributes the tests
            return
        root = Path(next(file for file in self.seen if file.endswith(f"/{self.package}/__init__.py"))).parent
        data = CoverageData(self.settings.get_option("run:data_file"), suffix=True)
        data.add_lines({str(path): [] for path in root.rglob("*.py") if not self._omits(str(path))})
        data.add_lines({file: [i for i, reached in enumerate(lines) if reached] for file, lines in self.seen.items()})
        data.write()
