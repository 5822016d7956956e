"""``feddrm bench``: speed on this machine. All ways that are compared are measured in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from feddrm.cli.data_options import DataDir
from feddrm.cli.output import JsonFlag, print_json, print_table
from feddrm.errors import SettingError
from feddrm.io.atomic import write_atomically
from feddrm.io.text import json_bytes

Out = Annotated[Path | None, typer.Option(help="Write the figures here as JSON.")]

app = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def bench() -> None:
    """Measure speed on this machine."""


@app.command()
def engine(
    streams: Annotated[str, typer.Option(help="Numbers of parallel streams to try.")] = "1,2,4,8",
    scaling: Annotated[str, typer.Option(help="Numbers of clients to try.")] = "8,16,32,64",
    compiled: Annotated[bool, typer.Option(help="Also measure torch.compile in the plain loop.")] = True,
    paper: Annotated[bool, typer.Option(help="Also measure one whole paper run on CIFAR-10.")] = True,
    data_dir: DataDir = None,
    keep: Annotated[Path | None, typer.Option(help="Keep the paper run in this folder.")] = None,
    out: Out = None,
    json: JsonFlag = False,
) -> None:
    """Compare the engines on one GPU. They are the plain loop, compiled, as a CUDA graph, with more streams or clients.

    Example: feddrm bench engine --no-paper
    """
    from feddrm.bench.engine import bench_engine

    figures = bench_engine(
        streams=_numbers("--streams", streams),
        scaling=_numbers("--scaling", scaling),
        compiled=compiled,
        paper=paper,
        data_dir=data_dir,
        keep=keep,
        say=_print_progress,
    )
    _save(figures, out)
    if json:
        print_json(figures)
        return
    columns = ["ms_per_client_step", "images_per_second", "tflops", "of_matrix_product", "peak_memory_gib"]
    rows = []
    for name, way in figures["ways"].items():
        ready = way.get("compile_seconds", way["capture_seconds"] if name.startswith("graph") else 0.0)
        rows.append([name, *(f"{way[column]:.4g}" for column in columns), f"{ready:.1f}"])
    header = ["way", "ms per client step", "images/s", "TFLOP/s", "of matrix product", "GiB", "s to compile or capture"]
    print_table(header, rows)
    print_table(["clients", "ms per client step"], [[m, f"{ms:.3g}"] for m, ms in figures["scaling"].items()])
    typer.echo(f"the graph is {figures['ratio_to_eager']} times as fast as the fastest plain loop")
    if paper:
        typer.echo(f"a whole paper run took {figures['paper_run_seconds']} s")


@app.command()
def serve(
    callers: Annotated[str, typer.Option(help="Numbers of concurrent callers.")] = "1,8,64",
    seconds: Annotated[float, typer.Option(help="Seconds for each measurement.")] = 5.0,
    requests: Annotated[int, typer.Option(help="Requests during which memory is watched; 0: none.")] = 100_000,
    feedback: Annotated[
        bool, typer.Option("--feedback", help="Only measure what a use log and the watch on drift cost.")
    ] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Only measure what recording traces costs.")] = False,
    out: Out = None,
    json: JsonFlag = False,
) -> None:
    """Compare the gateway with the same router in one process. It measures speed, latency and memory over HTTP.

    Example: feddrm bench serve --seconds 2 --requests 10000
    """
    from feddrm.cli.serve import packages

    with packages():  # before minutes of measuring
        import fastapi  # noqa: F401

        from feddrm.bench.serve import bench_feedback, bench_serve, bench_trace

    if feedback and trace:
        raise SettingError("--feedback and --trace measure different things: give one of them")
    if feedback or trace:
        compare = bench_trace if trace else bench_feedback
        figures = compare(callers=_numbers("--callers", callers)[-1], seconds=seconds, say=_print_progress)
        _save(figures, out)
        _print_costs(figures, json)
        return
    figures = bench_serve(
        callers=_numbers("--callers", callers),
        seconds=seconds,
        requests=requests,
        say=_print_progress,
    )
    _save(figures, out)
    if json:
        print_json(figures)
        return
    rows = [
        [way, number, load["requests_per_second"], load["p50_ms"], load["p99_ms"], load.get("of_bare", "")]
        for way, by_callers in {**figures["http"], "floor: the same bytes, no work": figures["floor"]}.items()
        for number, load in by_callers.items()
    ]
    print_table(["way", "callers", "requests/s", "p50 ms", "p99 ms", "of bare"], rows)
    bare = figures["bare"]
    by_rows = [[size, rate, bare["embeddings_per_second"][size]] for size, rate in bare["images_per_second"].items()]
    print_table(["bare, samples at once", "images/s", "embeddings/s"], by_rows)
    if figures["memory"]["mib"]:
        typer.echo(f"memory, MiB: {', '.join(map(str, figures['memory']['mib']))}")


@app.command()
def deploy(
    rounds: Annotated[int, typer.Option(help="Rounds to measure.")] = 6,
    per_message: Annotated[bool | None, typer.Option(hidden=True)] = None,
    out: Out = None,
    json: JsonFlag = False,
) -> None:
    """Compare rounds over Flower with rounds in one process. Three sites train on the digits, over TLS.

    Example: feddrm bench deploy --rounds 4
    """
    from feddrm.cli.deploy.members import require_flower

    require_flower()
    from feddrm.bench.deploy import bench_deploy

    if per_message is not None:
        _print_progress("--per-message has no effect any more: see docs/decisions/0007-resident-only.md")
    figures = bench_deploy(rounds, say=_print_progress, keep=lambda so_far: _save(so_far, out))
    if json:
        print_json(figures)
        return
    columns = ["round_seconds", "overhead_seconds", "first_round_seconds", "bytes_to_a_site", "bytes_from_a_site"]
    rows = [
        [way.replace("_", " "), *(round(figures[way][c], 2) if c in figures[way] else "" for c in columns)]
        for way in ("one_process", "resident")
    ]
    print_table(["way", "s per round", "overhead s", "first round s", "bytes to a site", "bytes back"], rows)


def _print_costs(figures: dict[str, Any], json: bool) -> None:
    if json:
        print_json(figures)
        return
    rows = [
        [path, way, *load.values(), *(f"{100 * share:.1f} %" for share in figures["cost"][path][way].values())]
        for path, ways in figures["http"].items()
        for way, load in ways.items()
    ]
    print_table(
        ["path", "way", "requests/s", "gateway's CPU ms each", "fewer requests/s", "standard error", "more CPU"], rows
    )
    for path, ratio in figures.get("traced_to_untraced", {}).items():
        typer.echo(f"{path}: {100 * ratio:.1f} % of the requests/s without traces")


def _print_progress(line: str) -> None:
    typer.echo(line, err=True)


def _save(figures: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        write_atomically(out, json_bytes(figures))


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise SettingError(f"{option} {text!r}: give whole numbers from 1, such as 1,2,4")
    return numbers
