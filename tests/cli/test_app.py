"""The ``feddrm`` command as a whole: listings, help, completion, exit codes and one-line errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
import torch
import typer.main

from cli.conftest import assert_one_line, call
from commands import FEDDRM, fork, python_script, wait
from feddrm.cli.app import app
from feddrm.data import Dataset, load
from feddrm.deploy.records.audit_trail import AUDIT, AuditTrail
from feddrm.deploy.server.training import ServerState
from feddrm.io.run_files import CHECKPOINT
from run_folders import write_run
from training_folder import training_folder

ROOT = Path(__file__).parents[2]


def test_nothing_imports_click() -> None:
    """Typer 0.27 has its own copy, whose errors and options are other classes, and does not install click."""
    lines = [line for file in (ROOT / "src").rglob("*.py") for line in file.read_text().splitlines()]
    assert "import typer" in lines
    assert not [line for line in lines if re.match(r"(import|from) click\b", line)]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["dance"], 2, "No such command 'dance'"),
        (["paper", "run", "--grid", "smoke", "--set", "threads=x"], 2, "threads='x': give a whole number"),
        (["evaluate", "nowhere"], 1, "nowhere is no run"),
        (["report", "nowhere"], 1, "nowhere"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str], no_data: Path
) -> None:
    assert_one_line(call(capsys, *words), code, says)


@pytest.mark.parametrize("words", [[], ["paper"], ["data"], ["router"]], ids=str)
def test_a_group_without_a_command_prints_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = call(capsys, *words)
    shown = out + err
    assert shown.startswith("Usage: feddrm ")
    assert "error" not in shown.splitlines()[0]
    assert re.search(r"^Commands:$", shown, re.MULTILINE)


@pytest.mark.parametrize("group", ["", "data", "router", "bench", "drm", "paper", "deploy"])
def test_what_a_command_does_fits_into_its_line_of_the_list(
    group: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list shows the first sentence of a command's help, and cuts it where a terminal of 80 columns ends."""
    monkeypatch.setenv("COLUMNS", "80")
    code, text, _ = call(capsys, *group.split(), "--help")
    commands = text.partition("Commands:\n")[2].splitlines()
    assert code == 0
    assert len(commands) > 1
    assert not [line for line in commands if not line.endswith((".", ")")) or line.endswith("...")]


@pytest.mark.slow
def test_a_shell_completes_commands_and_options() -> None:
    def completed(line: str) -> list[str]:
        words = {"_FEDDRM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        run = subprocess.run(
            [sys.executable, "-m", "feddrm"], env=os.environ | words, capture_output=True, text=True, check=True
        )
        return run.stdout.split()

    assert completed("feddrm pa") == ["paper"]
    assert completed("feddrm train --me") == ["--method"]


@pytest.mark.usefixtures("stop_signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_stop_signal_is_one_line(
    number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(number)
    monkeypatch.setattr(Dataset.find("digits"), "load", lambda _: signal.raise_signal(number))
    assert call(capsys, "data", "info", "digits") == (code, "", "feddrm: error: interrupted\n")
    assert signal.getsignal(number) is before


@pytest.mark.usefixtures("stop_signals")
def test_a_signal_that_is_ignored_stays_ignored(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    load = Dataset.find("digits").load
    monkeypatch.setattr(Dataset.find("digits"), "load", lambda data: signal.raise_signal(signal.SIGHUP) or load(data))
    assert call(capsys, "data", "info", "digits")[0] == 0


STOPPED_IN_EXEC = """
import signal, sys
from feddrm.cli import main
from feddrm.data import Dataset
Dataset.find("digits").load = lambda _: exec("signal.raise_signal(signal.SIGTERM)")
sys.argv = ["feddrm", "data", "info", "digits"]
main()
"""


@pytest.mark.slow
def test_a_stop_signal_inside_of_exec_ends_with_its_own_code() -> None:
    """Python would end by SIGINT after a KeyboardInterrupt there. Imports use ``exec``, so it may well come there."""
    assert subprocess.run([sys.executable, "-c", STOPPED_IN_EXEC], capture_output=True, check=False).returncode == 143


AT_EXIT = """
import atexit, gc
ours = []
atexit.register(lambda: print(any(each is ours for each in gc.get_objects())))
feddrm.cli.app.main()
"""


@pytest.mark.slow
def test_at_its_end_a_command_looks_for_no_garbage() -> None:
    assert python_script(AT_EXIT, "--version").stdout.splitlines()[-1] == "False"


def commands() -> list[list[str]]:
    verbs = ["datasets", "models", "methods", "data info", "data show", "train", "evaluate", "report", "demo"]
    return [verb.split() for verb in verbs]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_help_prints_the_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, *words, "--help")
    assert code == 0
    assert f"Example: feddrm {' '.join(words)}" in " ".join(out.split())
    assert "\\" not in out


# Calls commands one after the other in a new interpreter where torch cannot be imported. Prints the slow
# packages that are loaded at the end, each with the first command after which it was.
WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None
from feddrm.cli.app import main
commands, slow = map(json.loads, sys.argv[1:])
loaded = {}
for words in commands:
    sys.argv = ["feddrm", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
    for name in slow:
        if name in sys.modules:
            loaded.setdefault(name, " ".join(words))
print()
print(json.dumps(loaded))
"""
SLOW = ("numpy", "scipy", "matplotlib", "flwr", "httpx", "pydantic", "rich", "yaml")


def loaded_by(commands: list[list[str]]) -> dict[str, str]:
    """The slow packages that commands load, none of which may be torch."""
    words = [WITHOUT_TORCH, json.dumps(commands), json.dumps(SLOW)]
    run = subprocess.run([sys.executable, "-c", *words], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    loaded: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return loaded


def command_tree(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Every command and group, by its words."""
    yield list(words)
    for name, below in getattr(command, "commands", {}).items():
        yield from command_tree(below, (*words, name))


@pytest.mark.slow
def test_no_help_and_no_listing_waits_for_a_large_package() -> None:
    tree = list(command_tree(typer.main.get_command(app)))
    assert len(tree) > 50
    assert ["deploy", "status"] in tree
    assert loaded_by([[*words, "--help"] for words in tree]) == {}
    assert loaded_by([["methods"], ["models", "--json"], ["datasets"]]) == {"rich": "methods"}


@pytest.mark.slow
def test_commands_that_only_look_do_not_wait_for_torch(tmp_path: Path) -> None:
    server, _ = training_folder(tmp_path)
    run, table = server / "runs" / "first", tmp_path / "visits.csv"
    AuditTrail(run / AUDIT).append("run started", {"run": "first"})
    ServerState(3, {"leaf": torch.ones(2)}, {}).save(run / CHECKPOINT)
    table.write_text("age,dose,ill\n40,1,yes\n50,2,no\n")
    grids = [["--grid", name, "--results", str(ROOT / "results" / name)] for name in ("paper", "tuned")]
    trained = write_run(tmp_path / "trained", load("digits", clients=3), metrics=True)
    commands = [
        ["deploy", "status", str(server.parent)],
        ["deploy", "status", str(server.parent / "sites" / "oslo")],
        ["deploy", "watch", str(server.parent), "--once"],
        ["deploy", "audit", str(server.parent)],
        ["data", "schema", str(table), "--label", "ill"],
        ["doctor", "--runs", str(tmp_path), "--data-dir", str(tmp_path)],
        *(["paper", "list", "--device", "cpu", *grid] for grid in grids),
        *(["paper", "table", "main", *grid] for grid in grids),
        ["evaluate", str(trained)],
        ["evaluate", str(trained), "--json"],
        ["report", str(trained), "--all", "--out", str(tmp_path / "report")],
    ]
    assert set(loaded_by(commands)) == {"numpy", "scipy", "matplotlib", "rich", "yaml"}
    assert (tmp_path / "report" / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_a_query_loads_little(tmp_path: Path) -> None:
    table = tmp_path / "visits.csv"
    table.write_text("age,dose,ill\n40,1,yes\n50,2,no\n")
    with answering_gateway() as url:
        query = ["query", url, str(table), "--ignore", "ill"]
        assert set(loaded_by([query])) == {"numpy", "rich"}  # numbers of the table, and the table of the answer


class Gateway(BaseHTTPRequestHandler):
    """Answers both rows of every query alike."""

    def do_GET(self) -> None:
        self.reply({"inputs": ["age", "dose"], "schema": None})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        decision = {"client": "oslo", "client_probability": 0.9, "fallback": False, "reason": "", "away": []}
        self.reply({"decisions": [decision] * 2})

    def reply(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def answering_gateway() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_without_a_writable_temporary_folder_the_error_names_tmpdir(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    monkeypatch.setattr(Dataset.find("digits"), "load", lambda _: tempfile.gettempdir())  # as importing torch does
    code, out, err = call(capsys, "data", "info", "digits")
    assert (code, out) == (1, "")
    assert err == (
        f"feddrm: error: No usable temporary directory found in ['{tmp_path}/none']: "
        "name a folder that can be written in TMPDIR\n"
    )


@pytest.mark.slow
def test_the_version_and_a_closed_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--version")
    assert (code, out.split()[0]) == (0, "feddrm")
    pipe = subprocess.run(
        f"{sys.executable} -m feddrm data info digits --json | head -n 1", shell=True, capture_output=True, check=True
    )
    assert pipe.stderr == b""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", ["methods", "methods --json", "--version"])
def test_a_full_disk_is_one_line(words: str, tmp_path: Path) -> None:
    assert wait(fork(FEDDRM, words.split(), Path("/dev/full"), tmp_path / "log")) == 1
    assert (tmp_path / "log").read_text() == (
        "feddrm: error: cannot write the output (No space left on device): free the disk or write elsewhere\n"
    )
