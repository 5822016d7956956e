"""``feddrm fit-router`` and ``feddrm route``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddrm.cli.data_options import DataDir, given_settings
from feddrm.cli.output import JsonFlag, print_json, print_table
from feddrm.rules import RULES_HELP

if TYPE_CHECKING:
    from torch import Tensor

    from feddrm.router import Router

RunFolderArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that 'feddrm train' wrote.")]


def fit_router(
    run: RunFolderArgument,
    features: Annotated[
        str | None,
        typer.Option(help="multiscale, colour, raw, embedding, hidden, client, joined by +; tried on held-out data."),
    ] = None,
    crops: Annotated[int | None, typer.Option(help="Random crops per training image.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of a fit at most (default: 60).")] = None,
    heads: Annotated[bool, typer.Option(help="Also fit the class heads: probe, private, joint, stack.")] = True,
    joint: Annotated[bool | None, typer.Option(help="Fit the joint model (default: where it is quick).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of crops and held-out parts.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: the run's).")] = None,
    data_dir: DataDir = None,
    json: JsonFlag = False,
) -> None:
    """Fit the exact router of a finished run and measure it; writes router/ and adds to the summary.

    Example: feddrm fit-router runs/first
    """
    from feddrm.report.measures import rule_label
    from feddrm.router.router import ONE_SCALE
    from feddrm.runs import Run

    settings: dict[str, Any] = given_settings(features=features, crops=crops, rounds=rounds, seed=seed)
    settings |= {"heads": heads, "joint": joint}
    opened = Run.open(run)
    opened.fit_router(device=device, data_dir=data_dir, progress=True, **settings)
    summary = opened.summary or {}
    if json:
        print_json({key: summary[key] for key in ("client_accuracy", "system_accuracy", "router")})
        return
    rows = [
        [kind, rule_label(rule), f"{100 * value['mean']:.2f}"]
        for kind in ("client", "system")
        for rule, value in summary[f"{kind}_accuracy"].items()
        if value is not None
    ]
    rows.append(["oracle", "own heads", f"{100 * summary['oracle_accuracy']['mean']:.2f}"])
    print_table(["accuracy", "by", "percent"], rows)
    if (window := summary["window"]) > 1:
        typer.echo(
            f"of the router after round {summary['rounds']}; of head, vote and oracle over the last {window} rounds"
        )
    typer.echo(f"wrote {run / 'router'}")
    if (fit := summary["router"])["own_scales"]:
        typer.echo(f"these figures presume queries that their own client has scaled; for raw ones, {ONE_SCALE}")
    if not fit["converged"]:
        typer.echo(
            f"the fit stopped after {fit['rounds']} rounds, short of its optimum: --rounds {4 * fit['rounds']} goes on"
        )


def route(
    run: RunFolderArgument,
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT...", help="Images, or csv tables of the columns.")],
    rule: Annotated[str, typer.Option(help=f"{RULES_HELP}.")] = "density",
    coverage: Annotated[float, typer.Option(help="Abstain from the least sure beyond this fraction.")] = 1.0,
    without: Annotated[list[str] | None, typer.Option(help="A client that is not available; repeatable.")] = None,
    miss: Annotated[
        float | None,
        typer.Option(help="Also name the clients that hold the right one but for this chance: 0.01, 0.05, 0.1, 0.2."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Say which client should answer each query.

    Example: feddrm route runs/first scan.png
    """
    from feddrm.errors import FeddrmError
    from feddrm.router import read_manifest
    from feddrm.runs import Run
    from feddrm.runs.run_router import read_inputs

    router = Run.open(run).router()
    notes = read_manifest(run / "router")["notes"]
    x, names = read_inputs(router, notes.get("columns"), inputs)
    for name in without or ():
        if name not in router.names:
            raise FeddrmError(f"unknown client '{name}' (there are: {', '.join(router.names)})")
    available = [name for name in router.names if name not in set(without or ())]
    decision = router.route(x, rule=rule, coverage=coverage, available=available if without else None, miss=miss)
    answers: list[dict[str, Any]] = [
        {
            "query": name,
            "client": None if client < 0 else router.names[client],
            "probability": float(decision.probabilities[i].max()),
            "margin": float(decision.margin[i]),
            "abstain": bool(decision.abstain[i]),
            "reason": decision.reason[i],
            **({} if decision.within is None else {"within": _names(router, decision.within[i])}),
        }
        for i, (name, client) in enumerate(zip(names, decision.client.tolist(), strict=True))
    ]
    if json:
        print_json(answers)
        return
    header = ["query", "client", "probability", "margin", "abstains because"]
    rows = [
        [a["query"], a["client"] or "-", f"{a['probability']:.3f}", f"{a['margin']:.3f}", a["reason"]] for a in answers
    ]
    if miss is not None:
        header.append(f"one of, but for {miss:g}")
        rows = [[*row, ", ".join(a["within"]) or "-"] for row, a in zip(rows, answers, strict=True)]
    print_table(header, rows)


def _names(router: Router, within: Tensor) -> list[str]:
    return [name for name, inside in zip(router.names, within.tolist(), strict=True) if inside]
