"""A process that starts ``feddrm`` commands by fork, so that the packages are imported once instead of every time.

It reads one JSON object per line from standard input and answers each with one line.
"""

from __future__ import annotations

import json
import os
import sys

import feddrm.cli
import feddrm.serve.app
import feddrm.serve.server


def start(
    words: list[str],
    out: str,
    log: str,
    environment: dict[str, str],
    largest_file: int | None = None,
    cwd: str | None = None,
) -> int:
    """Start a child that does what ``python -m feddrm WORDS`` does; returns its process number."""
    pid = os.fork()
    if pid:
        return pid
    os.close(0)
    for path, number in ((out, 1), (log, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.update(environment)
    if cwd is not None:
        os.chdir(cwd)
    if largest_file is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    sys.argv = ["feddrm", *words]
    feddrm.cli.main()
    sys.exit(0)


def exit_code(pid: int) -> int | None:
    """The exit code of a child; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


if __name__ == "__main__":
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(exit_code(order["pid"]) if "pid" in order else start(**order)), flush=True)
