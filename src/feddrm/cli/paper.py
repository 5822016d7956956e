"""The commands ``feddrm paper``: run the paper's grid, print its tables, draw its figures, write its results page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddrm.cli.data_options import DataDir, sectioned_settings
from feddrm.cli.output import JsonFlag, print_json, print_table, resumable
from feddrm.errors import FeddrmError, SettingError
from feddrm.typed_settings import typed

if TYPE_CHECKING:
    from feddrm.paper.cell_records import CellRecord
    from feddrm.paper.grid import Grid
    from feddrm.paper.runner import CellOutcome, Runner

app = typer.Typer(
    help="Reproduce the paper's grid, tables and figures.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

GridName = Annotated[
    str, typer.Option("--grid", help="'paper', 'tuned' (each method at its own rate), 'smoke', or a YAML file.")
]
Results = Annotated[
    Path | None,
    typer.Option(help="Folder of finished cells (paper, tuned: results/GRID; else: runs/paper-GRID/results)."),
]
Work = Annotated[Path | None, typer.Option(help="Folder of run folders (runs/GRID, runs/paper-GRID/work).")]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="A table, a step, or part of a cell's name (* and ? allowed); repeatable."),
]
Seeds = Annotated[str | None, typer.Option(help="Seeds of all chosen cells, e.g. 2025,2026 (default: the grid's own).")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda (default: cuda if there is a GPU).")]


@app.command("list")
def list_cells(
    only: Only = None,
    seeds: Seeds = None,
    grid: GridName = "paper",
    results: Results = None,
    work: Work = None,
    device: Device = None,
    json: JsonFlag = False,
) -> None:
    """List which cells are done, half done or missing. It shows the time that each took or will probably take.

    Example: feddrm paper list --only lambda
    """
    from feddrm.paper.standing import cell_standing, check_device, default_device

    opened, records, _ = _records(grid, results)
    here = device or default_device()
    check_device(here)
    place = work or _default_folders(opened)[1]
    standings = [cell_standing(cell, opened, records, place, here) for cell in opened.choose(only or (), _seeds(seeds))]
    if json:
        print_json(
            [
                {
                    "cell": s.cell.id,
                    "state": s.state,
                    "round": s.round,
                    "rounds": s.cell.rounds,
                    "seconds": s.seconds,
                    "step": s.cell.step,
                    "used_by": list(opened.used_by(s.cell)),
                }
                for s in standings
            ]
        )
        return
    rows = []
    for s in standings:
        state = f"half done, round {s.round} of {s.cell.rounds}" if s.state == "half done" else s.state
        about = "" if s.state in ("done", "no router") else "about "
        rows.append([s.cell.step, s.cell.id, state, "unknown" if s.seconds is None else f"{about}{s.seconds:.0f} s"])
    print_table(["step", "cell", "state", "time"], rows)
    finished = sum(s.state in ("done", "no router") for s in standings)
    routed = sum(s.state == "done" for s in standings)
    left = [s.seconds for s in standings if s.state in ("missing", "half done")]
    known = [seconds for seconds in left if seconds is not None]
    rest = f", about {sum(known) / 3600:.1f} h left" if left and len(known) == len(left) else ""
    typer.echo(f"{finished} of {len(standings)} cells done, {routed} with the exact router{rest}")


@app.command()
def run(
    only: Only = None,
    budget: Annotated[str | None, typer.Option(help="Stop after this time: 25m, 90s, 1.5h.")] = None,
    seeds: Seeds = None,
    device: Device = None,
    work: Work = None,
    results: Results = None,
    data_dir: DataDir = None,
    grid: GridName = "paper",
    router: Annotated[bool, typer.Option(help="Fit the exact router to every cell that is trained.")] = True,
    extra: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="training.KEY=VALUE", help="How to run: training.engine=graph; the protocol is fixed."
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Run the missing cells, the most valuable first. Half-done cells continue where they stopped.

    Several calls may run at the same time, on one GPU or several: each takes cells that no other call is running.

    Example: feddrm paper run --only main --budget 25m
    """
    from feddrm.paper.runner import read_budget
    from feddrm.runs import Config
    from feddrm.runs.listeners import progress_listener

    started = time.monotonic()
    deadline = None if budget is None else started + read_budget(budget)
    settings = typed(Config, sectioned_settings(extra, {"training": ()})["training"])
    options = {"deadline": deadline, "data_dir": data_dir, "settings": settings, "router": router, "progress": not json}
    opened, runner = _open(grid, results, work, device, **options)
    runner.watch = lambda cell: progress_listener(cell.id)
    cells = opened.choose(only or (), _seeds(seeds))
    outcomes = []
    with resumable():
        for outcome in runner.go(cells):
            outcomes.append(outcome)
            if not json and outcome.event != "skipped":
                typer.echo(f"{outcome.cell.id}: {outcome.event}, {outcome.seconds:.0f} s{_reason(outcome)}")
    if json:
        print_json(
            [{"cell": o.cell.id, "event": o.event, "seconds": round(o.seconds, 1), "why": o.why} for o in outcomes]
        )
    else:
        _echo_skipped(outcomes)
        standings = [runner.standing(cell) for cell in cells]
        done = sum(s.state in ("done", "no router") for s in standings)
        typer.echo(f"{done} of {len(cells)} chosen cells done; results in {runner.results}")
    failed = [o for o in outcomes if o.event == "failed"]
    without_data = [o for o in outcomes if o.why.startswith("no data")]
    if failed:
        raise FeddrmError(f"{len(failed)} cells failed, first {failed[0].cell.id}: {failed[0].why}")
    if without_data and len(without_data) == len(cells):
        raise FeddrmError(without_data[0].why)


@app.command()
def table(
    name: Annotated[str, typer.Argument(metavar="NAME", help="main, alpha, clients, lambda, ..., beyond.")],
    format: Annotated[str, typer.Option(help="md, latex, csv or html.")] = "md",
    grid: GridName = "paper",
    results: Results = None,
) -> None:
    """Print a table with our figures, the paper's, the difference. Cells not run yet are marked as missing.

    Example: feddrm paper table main --format latex
    """
    from feddrm.paper.paper_tables import render, tables
    from feddrm.paper.results_page import read_notes

    opened, records, folder = _records(grid, results)
    notes = read_notes(opened, records, folder)
    typer.echo(render(tables(opened, name, records), format, notes), nl=False)


@app.command()
def figure(
    name: Annotated[str, typer.Argument(metavar="NAME", help="main, lambda, covariate, sharing, drift, ...")],
    out: Annotated[Path | None, typer.Option(help="Where to write it (NAME.png); .png, .svg or .pdf.")] = None,
    grid: GridName = "paper",
    results: Results = None,
    data_dir: DataDir = None,
) -> None:
    """Draw a figure of the paper.

    Example: feddrm paper figure drift --out drift.png
    """
    from feddrm.paper.paper_figures import figure as draw
    from feddrm.report.figure_files import check_figure_path, save_figure

    target = out or Path(f"{name}.png")
    check_figure_path(target)
    opened, records, _ = _records(grid, results)
    save_figure(draw(name, opened, records, data_dir), target)
    typer.echo(f"wrote {target}")


@app.command()
def page(
    out: Annotated[
        Path | None, typer.Option(help="Where to write it (paper: docs/results.md; else: runs/paper-GRID/results.md).")
    ] = None,
    grid: GridName = "paper",
    results: Results = None,
) -> None:
    """Write the results page from the finished cells.

    Example: feddrm paper page --out docs/results.md
    """
    from feddrm.io.atomic import write_together
    from feddrm.paper.results_page import read_notes, results_page
    from feddrm.paper.tuned_section import tuned_section

    opened, records, folder = _records(grid, results)
    target = out or (
        Path("docs/results.md") if opened.name == "paper" else _default_folders(opened)[1].parent / "results.md"
    )
    tuned = tuned_section(folder.parent / "tuned") if opened.name == "paper" else ""
    write_together({target: results_page(opened, records, read_notes(opened, records, folder), tuned).encode()})
    typer.echo(f"wrote {target}")


def _records(grid: str, results: Path | None) -> tuple[Grid, dict[str, CellRecord], Path]:
    from feddrm.paper.cell_records import read_records
    from feddrm.paper.cell_search import with_choices
    from feddrm.paper.grid import Grid

    opened = Grid.read(grid)
    folder = results or _default_folders(opened)[0]
    opened = with_choices(opened, folder)
    return opened, read_records(opened, folder), folder


def _open(
    grid: str, results: Path | None, work: Path | None, device: str | None, **options: Any
) -> tuple[Grid, Runner]:
    from feddrm.paper.grid import Grid
    from feddrm.paper.runner import Runner
    from feddrm.paper.standing import default_device

    opened = Grid.read(grid)
    folders = _default_folders(opened)
    runner = Runner(opened, results or folders[0], work or folders[1], device or default_device(), **options)
    return runner.grid, runner


def _default_folders(grid: Grid) -> tuple[Path, Path]:
    """The default folders of results and of runs; only the grids of real results write to results/ by default."""
    if grid.name in ("paper", "tuned"):
        return Path("results") / grid.name, Path("runs") / grid.name
    base = Path("runs") / f"paper-{grid.name}"
    return base / "results", base / "work"


def _seeds(text: str | None) -> list[int]:
    try:
        return [int(word) for word in text.split(",")] if text else []
    except ValueError as error:
        raise SettingError(f"--seeds '{text}': give numbers with commas, as in 2025,2026") from error


def _reason(outcome: CellOutcome) -> str:
    return f" ({outcome.why})" if outcome.why else ""


def _echo_skipped(outcomes: list[CellOutcome]) -> None:
    """Print the cells that were left out, one line per reason."""
    reasons: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.event == "skipped":
            common = outcome.why.startswith(("no data", "the budget"))
            reason = outcome.why if common else "too long for what is left"
            reasons.setdefault(reason, []).append(outcome.cell.id)
    for why, cells in reasons.items():
        typer.echo(f"left out: {len(cells)} cells, first {cells[0]} ({why})")
