"""The commands ``feddrm outcomes``, ``replay``, ``serve-promote`` and ``serve-rollback``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from feddrm.cli.output import JsonFlag, print_json, print_table
from feddrm.cli.serve import Ca, Url, packages
from feddrm.rules import RULES_HELP

Key = Annotated[str | None, typer.Option(envvar="FEDDRM_KEY", help="API key with the scope admin.")]


def outcomes(
    file: Annotated[Path, typer.Argument(help="The use log of a gateway ('feddrm serve --use-log FILE').")],
    json: JsonFlag = False,
) -> None:
    """Print how good a gateway's recorded answers were. It shows accuracy, calibration and abstention over time.

    Example: feddrm outcomes runs/first/uses.sqlite
    """
    with packages():
        from feddrm.serve.feedback.outcome_table import outcome_table, period_name

    table = outcome_table(file)
    if json:
        print_json(table)
        return
    columns = ["predictions", "abstained", "outcomes", "accuracy", "calibration error"]
    print_table(["from (UTC)", *columns], [[period_name(row["from"]), *_cells(row)] for row in table["periods"]])
    print_table(["artifact", *columns], [[row["artifact"], *_cells(row)] for row in table["artifacts"]])


def _cells(row: dict[str, Any]) -> list[Any]:
    shares = ["-" if row[name] is None else f"{row[name]:.4f}" for name in ("accuracy", "calibration_error")]
    return [row["predictions"], row["abstained"], row["outcomes"], *shares]


def replay(
    file: Annotated[Path, typer.Argument(help="A use log with features ('feddrm serve --record-features N').")],
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run that was served.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="A run or router folder to compare with.")],
    rule: Annotated[str, typer.Option(help=f"{RULES_HELP}.")] = "density",
    coverage: Annotated[float, typer.Option(help="Fraction to answer; abstain from the least sure.")] = 1.0,
    json: JsonFlag = False,
) -> None:
    """Compare another router with the served one. It says which decisions on recorded queries change, and who is right.

    Example: feddrm replay runs/first/uses.sqlite runs/first runs/second
    """
    with packages():
        from feddrm.serve.feedback.replay import replay as compare

    found = compare(file, run, new, rule, coverage)
    if json:
        print_json(found.as_dict())
        return
    typer.echo(f"{found.changed} of {found.queries} decisions change")
    print_table(["from", "to", "queries"], [[*pair, number] for pair, number in found.moves.items()])
    if found.gain is None:
        typer.echo("no outcome is known: nobody can say which is better")
        return
    typer.echo(
        f"{found.judged} queries have an outcome: the new router is right in {found.better} where the old one is "
        f"wrong, and wrong in {found.worse} where the old one is right; accuracy {found.gain} points"
    )
    if found.unknown:
        typer.echo(f"{found.unknown} more have an outcome, but a client's answer to them is not known here")


def serve_promote(url: Url, key: Key = None, ca: Ca = None) -> None:
    """Let a gateway's challenger answer all requests. It prints the version.

    Example: feddrm serve-promote http://127.0.0.1:8080
    """
    from feddrm.serve.gateway_client import GatewayClient

    with GatewayClient(url, key, ca=ca) as gateway:
        typer.echo(gateway.promote())


def serve_rollback(url: Url, key: Key = None, ca: Ca = None) -> None:
    """Undo a promotion, or give up a gateway's challenger. It prints the version that is served.

    Example: feddrm serve-rollback http://127.0.0.1:8080
    """
    from feddrm.serve.gateway_client import GatewayClient

    with GatewayClient(url, key, ca=ca) as gateway:
        typer.echo(gateway.rollback())
