"""Measures how long commands take that only look at something: CPU seconds and memory of a new process each.

Nothing large is imported before the measurement: a new process counts the memory of the one that starts it.

python -m benchmarks.light_start --json results/bench/light_start.json
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FEDDRM = (sys.executable, "-m", "feddrm")
COMMANDS = (
    *("--help", "train --help", "deploy status --help", "methods", "doctor --runs PLACE --data-dir PLACE"),
    *("data schema PLACE/table.csv --label y", "query http://127.0.0.1:9 PLACE/table.csv"),
    *("deploy status PLACE/federation", "deploy watch PLACE/federation --once", "deploy audit PLACE/federation"),
    *("deploy check PLACE/federation", "paper list", "paper table main"),
)


def cost(words: list[str], repeats: int) -> dict[str, float]:
    """The least CPU time, user and system, of some calls, and their memory. That some fail changes nothing."""
    usages = []
    for _ in range(repeats):
        process = subprocess.Popen([*FEDDRM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        usages.append(os.wait4(process.pid, 0)[2])
        process.returncode = 0
    seconds = min(usage.ru_utime + usage.ru_stime for usage in usages)
    return {"cpu_seconds": round(seconds, 2), "mib": round(max(usage.ru_maxrss for usage in usages) / 1024)}


def main() -> None:
    """Measure and print; --json also writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="calls of every command")
    parser.add_argument("--only", nargs="*", help="commands whose words begin so")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feddrm-") as place:
        federation = ["deploy", "init", f"{place}/federation", "--clients", "oslo,lima", "--data", "digits"]
        subprocess.run([*FEDDRM, *federation], check=True, capture_output=True)
        (Path(place) / "table.csv").write_text("a,b,y\n" + "".join(f"{i},{i * i},{i % 2}\n" for i in range(50)))
        chosen = [words for words in COMMANDS if not args.only or words.startswith(tuple(args.only))]
        figures = {words: cost(words.replace("PLACE", place).split(), args.repeats) for words in chosen}
    from benchmarks.result import finish  # imports torch

    finish({"commands": figures}, args.json)


if __name__ == "__main__":
    main()
