"""Starts ``feddrm`` commands as processes of their own, by fork: the packages are imported once, not for each.

Reads orders, one JSON object per line, and answers each with one line.
"""

from __future__ import annotations

import json
import os
import sys

import feddrm.cli
import feddrm.serve.console.console_routes
import feddrm.serve.gateway
import feddrm.serve.server


def start(words: list[str], out: str, log: str, environment: dict[str, str], largest_file: int | None) -> int:
    """A child that does what ``python -m feddrm WORDS`` would."""
    pid = os.fork()
    if pid:
        return pid
    os.close(0)
    for path, number in ((out, 1), (log, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.update(environment)
    if largest_file is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    sys.argv = ["feddrm", *words]
    feddrm.cli.main()
    sys.exit(0)


def ended(pid: int) -> int | None:
    """Its exit code; None while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


if __name__ == "__main__":
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(ended(order["pid"]) if "pid" in order else start(**order)), flush=True)
