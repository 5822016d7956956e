"""Measures the points of a benchmark in processes of their own; prints and writes its figures."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from feddrm.runs import hardware, versions

T = TypeVar("T")
LIBRARIES = ["feddrm.runs", "feddrm.serve.loaded_router", "feddrm.report.figure_files", "sklearn.datasets"]


def peak_gib() -> float:
    """The largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def each_alone(measure: Callable[..., T], points: Iterable[Sequence[Any]]) -> Iterator[T]:
    """What ``measure`` returns for every point, each in a process of its own, whose peak memory is that of the point.

    The processes are copies of one that has imported the libraries and done nothing else.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    for point in points:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            yield pool.submit(measure, *point).result()


def write(figures: Mapping[str, Any], path: Path | None, device: str = "cpu", libraries: Sequence[str] = ()) -> str:
    """The figures with hardware, versions and date as JSON; also written to ``path`` if it is given.

    ``libraries`` are those whose versions count besides the usual ones.
    """
    environment = {
        "hardware": hardware(device),
        "versions": {**versions(), **{name: metadata.version(name) for name in libraries}},
        "date": datetime.date.today().isoformat(),
    }
    text = json.dumps({**figures, **environment}, indent=2)
    if path is not None:
        path.write_text(text + "\n")
    return text


def finish(figures: Mapping[str, Any], path: Path | None, device: str = "cpu", libraries: Sequence[str] = ()) -> None:
    """Print the figures with hardware, versions and date; also write them to ``path`` if it is given."""
    print(write(figures, path, device, libraries))


def show(page: Path, benchmark: str, text: str) -> None:
    """Put a text into a page of the documentation, between the two marks that name the benchmark."""
    begin, end = f"<!-- {benchmark} -->", f"<!-- end of {benchmark} -->"
    before, rest = page.read_text().split(begin)
    after = rest.split(end)[1]
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
