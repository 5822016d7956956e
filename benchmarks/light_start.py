"""Measures how long commands take that only look at something: CPU seconds and memory of a new process each.

Nothing large is imported before the measurement: a new process counts the memory of the one that starts it.

python -m benchmarks.light_start --against OTHER/src --json results/bench/light_start.json
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
    *("paper list --device cpu", "paper table main", "evaluate PLACE/run", "report PLACE/run"),
    "deploy check PLACE/federation",
)


def cost(words: list[str], source: Path | None = None) -> tuple[float, float]:
    """CPU time, user and system, and memory in MiB of one call. That some calls fail changes nothing."""
    environment = os.environ | ({} if source is None else {"PYTHONPATH": str(source)})
    process = subprocess.Popen([*FEDDRM, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    usage = os.wait4(process.pid, 0)[2]
    process.returncode = 0
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def costs(words: list[str], repeats: int, against: Path | None) -> dict[str, float]:
    """The least CPU time of some calls, and their memory; in turns with those of another version of the package."""
    calls: dict[str, list[tuple[float, float]]] = {}
    for _ in range(repeats):
        calls.setdefault("", []).append(cost(words))
        if against is not None:
            calls.setdefault("before_", []).append(cost(words, against))
    figures: dict[str, float] = {}
    for prefix, measured in calls.items():
        figures[f"{prefix}cpu_seconds"] = round(min(seconds for seconds, _ in measured), 2)
        figures[f"{prefix}mib"] = round(max(memory for _, memory in measured))
    return figures


def main() -> None:
    """Measure and print; --json also writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="calls of every command")
    parser.add_argument("--only", nargs="*", help="commands whose words begin so")
    parser.add_argument("--against", type=Path, help="also measure the package in this src folder, as before")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feddrm-") as place:
        prepare(Path(place))
        chosen = [words for words in COMMANDS if not args.only or words.startswith(tuple(args.only))]
        figures = {words: costs(words.replace("PLACE", place).split(), args.repeats, args.against) for words in chosen}
    from benchmarks.result import finish  # imports torch

    finish({"commands": figures}, args.json)


def prepare(place: Path) -> None:
    """Make what the commands look at: a federation, a trained run and a table."""
    federation = ["deploy", "init", f"{place}/federation", "--clients", "oslo,lima", "--data", "digits"]
    run = ["train", "--data", "digits", "--clients", "3", "--rounds", "2", "--out", f"{place}/run"]
    for words in (federation, run):
        subprocess.run([*FEDDRM, *words], check=True, capture_output=True)
    (place / "table.csv").write_text("a,b,y\n" + "".join(f"{i},{i * i},{i % 2}\n" for i in range(50)))


if __name__ == "__main__":
    main()
