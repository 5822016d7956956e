"""A process that starts commands by fork: packages are imported and commands are built once, not every time.

It reads one JSON object per line from standard input and answers each with one line.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys

import matplotlib.pyplot  # noqa: F401 - slow to import, as are the next; commands import them when they need them
import scipy.ndimage  # noqa: F401
import typer.main

import feddrm.cli.app
import feddrm.drm
import feddrm.paper.runner
import feddrm.runs
import feddrm.serve.app
import feddrm.serve.server


def start(
    script: str, words: list[str], out: str, log: str, environment: dict[str, str], cwd: str,
    largest_file: int | None = None,
) -> int:  # fmt: skip
    """Start a child that does what ``python -c SCRIPT WORDS`` does; returns its process number."""
    pid = os.fork()
    if pid:
        return pid
    os.close(0)
    for path, number in ((out, 1), (log, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update({**environment, "OMP_NUM_THREADS": "1"})
    os.chdir(cwd)
    if largest_file is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    sys.argv, sys.path[0] = ["feddrm", *words], cwd
    exec(script, {"feddrm": feddrm})
    sys.exit(0)


def exit_code(pid: int) -> int | None:
    """The exit code of a child; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


if __name__ == "__main__":
    typer.main.get_command = functools.cache(typer.main.get_command)
    dict(typer.main.get_command(feddrm.cli.app.app).commands)  # type: ignore[attr-defined]  # builds all of them
    gc.collect()
    gc.freeze()  # or every child would collect all these objects at its end, which takes a second
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(exit_code(order["pid"]) if "pid" in order else start(**order)), flush=True)
