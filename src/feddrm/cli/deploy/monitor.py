"""The commands of ``feddrm deploy`` that look at a training: ``watch`` and ``audit``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddrm.cli.deploy.members import Project, require_flower
from feddrm.cli.output import JsonFlag, print_json

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

LOOK_SECONDS = 0.5
SHOWN_ROUNDS = 10


def watch(
    folder: Project,
    once: Annotated[bool, typer.Option("--once", help="Print the state and end.")] = False,
    json: JsonFlag = False,
) -> None:
    """Watch a training on the server's machine. It shows rounds and sites, and for whom the server waits and why.

    On a terminal the view is renewed in place until the run ends or Ctrl-C. Elsewhere, and with --json, it is printed
    once. The exit code is 1 if the run has failed.

    Example: feddrm deploy watch federation --once
    """
    require_flower()
    from rich.console import Console
    from rich.live import Live

    from feddrm.deploy.cluster_status import server_folder
    from feddrm.deploy.watch.watch_state import watch_state

    server, console = server_folder(folder), Console()
    state = watch_state(server)
    if json:
        print_json(state)
    elif once or not console.is_terminal:
        wide = console if console.is_terminal else Console(width=10_000)
        wide.print(_view(state))
    else:
        with Live(_view(state), console=console, auto_refresh=False) as live:
            while not (state["finished"] or state["failed"]):
                time.sleep(LOOK_SECONDS)
                state = watch_state(server)
                live.update(_view(state), refresh=True)
    if state["failed"]:
        raise typer.Exit(1)


def _view(state: Mapping[str, Any]) -> Group:
    """The state as a terminal shows it."""
    from rich.console import Group
    from rich.text import Text

    total = "" if state["rounds"] is None else f" of {state['rounds']}"
    what = f"failed: {state['failed']}" if state["failed"] else state["what"]
    lines = [Text(f"run '{state['run']}': {what}; round {state['round']}{total}", "bold")]
    for one in state["waiting"]:
        seconds = max(0.0, state["time"] - one["since"])
        lines.append(Text(f"waiting for {one['site']} for {seconds:.0f} s: {one['reason']}", "yellow"))
    if state["complaint"] and not state["finished"]:
        lines.append(Text(f"last complaint: {state['complaint']}"))
    sites = _table(
        ["site", "answered", "seconds", "loss", "MiB sent", "MiB received", "epsilon", "missing because"],
        [
            [
                *(site["site"], f"{site['answered']} of {site['asked']}", _figure(site["seconds"], 2)),
                *(_figure(site["loss"], 4), _figure(site["bytes_sent"] / 2**20, 1)),
                *(_figure(site["bytes_received"] / 2**20, 1), _figure(site["epsilon"], 1), site["reason"] or ""),
            ]
            for site in state["sites"]
        ],
    )
    rounds = _table(
        ["round", "loss", "accuracy %", "seconds", "answered", "missing"],
        [
            [
                *(str(entry["round"]), _figure(entry["loss"], 4)),
                *(_figure(entry.get("accuracy_before"), 2, 100), _figure(entry["seconds"], 2)),
                *(
                    ", ".join(entry["answered"]),
                    "; ".join(f"{n}: {why}" for n, why in entry.get("missing", {}).items()),
                ),
            ]
            for entry in reversed(state["history"][-SHOWN_ROUNDS:])
        ],
    )
    return Group(*lines, sites, rounds)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))  # so that brackets in names are not read as markup
    return table


def _figure(value: float | None, digits: int, factor: float = 1.0) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"


def audit(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of 'init', the server's own, or a run's.")],
    site: Annotated[
        list[Path] | None, typer.Option(help="A site's folder: the trail must hold what it knows; may be repeated.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Verify the audit trail of a run. It checks the hash chain, the end and the model of the last round.

    The end is compared with summary.json and with the event logs of sites, those of the project or of --site.

    Example: feddrm deploy audit federation
    """
    require_flower()
    from feddrm.deploy.cluster_status import run_folder, site_folders
    from feddrm.deploy.records.audit_check import audit_run

    result = audit_run(run_folder(folder), site or site_folders(folder), every=site is not None)
    if json:
        print_json(result)
        return
    places = ", ".join(result["compared_with"]) or "nothing: give --site, or wait for the end of the run"
    typer.echo(f"{result['run']}: {result['lines']} lines are one chain, up to {result['hash']}")
    typer.echo(f"its end was compared with {places}")
