"""``feddrm fit-router``, ``route``, ``predict`` and ``router``: a run's exact router is fitted, used and changed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddrm.cli.data_options import DataDir, PluginCommand, given_settings
from feddrm.cli.output import (
    START_AGAIN,
    Costs,
    Coverage,
    Ignored,
    JsonFlag,
    LabelMiss,
    MaxAway,
    Over,
    Views,
    Why,
    Without,
    check_over,
    client_cells,
    print_json,
    print_reasons,
    print_table,
    read_costs,
    reason_text,
    resumable,
    set_text,
)
from feddrm.errors import SettingError
from feddrm.registry import require_client
from feddrm.rules import RULES_HELP

if TYPE_CHECKING:
    from feddrm.data import Federation
    from feddrm.router import Router
    from feddrm.tasks import Survival, Task

RunFolderArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that 'feddrm train' wrote.")]
QueryFiles = Annotated[
    list[Path],
    typer.Argument(metavar="INPUT...", help="Images, csv tables of the columns, or arrays (.npy, .npz)."),
]

app = typer.Typer(
    help="Export a fitted router; add or remove clients.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def router() -> None:
    """Export a fitted router; add or remove clients."""


@app.command(cls=PluginCommand)
def export(
    run: RunFolderArgument,
    out: Annotated[Path, typer.Option(help="The ONNX file to write.")] = Path("router.onnx"),
    rule: Annotated[str, typer.Option(help=f"{RULES_HELP}.")] = "density",
    features_only: Annotated[
        bool, typer.Option("--features-only", help="Take the router's features instead of network inputs.")
    ] = False,
    views: Views = None,
    json: JsonFlag = False,
) -> None:
    """Write a run's router as one ONNX file. It turns network inputs, or features, into the clients' probabilities.

    Example: feddrm router export runs/first --out router.onnx
    """
    from feddrm.router.export import export_onnx
    from feddrm.runs import Run

    fitted = Run.open(run).router()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision, which is not used, is missing
    export_onnx(fitted, out, rule=rule, features_only=features_only, **given_settings(views=views))
    shape = [fitted.weight.shape[1]] if features_only else list(fitted.shape)
    if json:
        facts = {"path": str(out), "input": "features" if features_only else "input", "shape": shape, "rule": rule}
        print_json({**facts, "clients": list(fitted.names)})
        return
    typer.echo(f"wrote {out}: from inputs [N, {', '.join(map(str, shape))}] to the probabilities of these clients:")
    typer.echo(", ".join(fitted.names))


@app.command(cls=PluginCommand)
def leave(
    run: RunFolderArgument,
    clients: Annotated[list[str], typer.Argument(metavar="CLIENT...", help="The clients to remove.")],
    out: Annotated[Path | None, typer.Option(help="A new folder for the router without them.")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Replace the run's own router.")] = False,
    json: JsonFlag = False,
) -> None:
    """Remove clients from a run's router, without fitting it again.

    Example: feddrm router leave runs/first fax --out router-without-fax
    """
    from feddrm.runs import Run
    from feddrm.runs.run_membership import leave_run_router

    folder = Run.open(run).folder
    target = _new_router_folder(out, in_place)
    remaining = leave_run_router(folder, clients, target)
    _print_membership(target or folder.router, remaining, json, removed=clients)


@app.command(cls=PluginCommand)
def join(
    run: RunFolderArgument,
    name: Annotated[str, typer.Argument(metavar="CLIENT", help="The name of the new client.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Its samples, without labels: images, tables (.csv), or folders of them."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="A new folder for the router with it.")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Replace the run's own router.")] = False,
    data_dir: DataDir = None,
    json: JsonFlag = False,
) -> None:
    """Add a client to a run's router. Only the router is fitted again, from where it stands.

    Example: feddrm router join runs/first lyon scans-of-lyon --out router-with-lyon
    """
    from feddrm.runs import Run
    from feddrm.runs.run_membership import join_run_router

    opened = Run.open(run)
    target = _new_router_folder(out, in_place)
    joined = join_run_router(opened.folder, opened.config, name, files, target, data_dir)
    _print_membership(target or opened.folder.router, joined, json, added=[name])


def _new_router_folder(out: Path | None, in_place: bool) -> Path | None:
    if in_place == (out is not None):
        raise SettingError("where should the router go? give --out FOLDER or --in-place, not both")
    return out


def _print_membership(path: Path, router: Router, json: bool, **changed: list[str]) -> None:
    if json:
        print_json({"path": str(path), "clients": list(router.names), **changed})
    else:
        typer.echo(f"wrote {path}: a router for {', '.join(router.names)}")


def fit_router(
    run: RunFolderArgument,
    features: Annotated[
        str | None,
        typer.Option(
            help="multiscale, colour, raw, embedding, hidden, client, joined by + (default: chosen on held-out data)."
        ),
    ] = None,
    crops: Annotated[int | None, typer.Option(help="Random crops per training image.")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of a fit at most (default: to the optimum; heads 60).")
    ] = None,
    heads: Annotated[bool, typer.Option(help="Also fit the class heads: probe, private, joint, stack.")] = True,
    joint: Annotated[bool | None, typer.Option(help="Fit the joint model (default: if it is quick).")] = None,
    views: Annotated[
        int | None,
        typer.Option(help="Fit and measure means over this many crops and mirror images, instead of random crops."),
    ] = None,
    part_bytes: Annotated[
        int | None, typer.Option(help="Leave out what takes more memory (default: 512 MiB; on a GPU 8 GiB).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of crops and held-out parts.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: the run's).")] = None,
    data_dir: DataDir = None,
    json: JsonFlag = False,
) -> None:
    """Fit the exact router of a finished run, and measure it. It writes router/ and adds to the summary.

    Example: feddrm fit-router runs/first
    """
    from feddrm.report.page_parts.conclusion import one_class_note
    from feddrm.report.page_parts.fit_figures import fit_rows, fit_sentence
    from feddrm.report.run_record import RunRecord
    from feddrm.report.run_table import RunTable
    from feddrm.router.router import ONE_SCALE
    from feddrm.runs import Run

    settings: dict[str, Any] = given_settings(features=features, crops=crops, rounds=rounds, views=views, seed=seed)
    settings |= {"heads": heads, "joint": joint, **given_settings(part_bytes=part_bytes)}
    opened = Run.open(run)
    with resumable(START_AGAIN):
        opened.fit_router(device=device, data_dir=data_dir, progress=True, **settings)
    summary = opened.summary or {}
    survival = "system_c_index" in summary
    if json:
        system = "system_c_index" if survival else "system_accuracy"
        print_json({key: summary[key] for key in ("client_accuracy", system, "router")})
        return
    record = RunRecord.read(run)
    print_table(["C-index (client: accuracy)" if survival else "accuracy", "by", "percent"], fit_rows(record))
    typer.echo(fit_sentence(record))
    if (note := one_class_note(RunTable.of([record]))) is not None:
        typer.echo(note)
    others = f"head, {'mean of all curves' if survival else 'vote'} and oracle"
    if (window := summary["window"]) > 1:
        typer.echo(
            f"the router is measured after round {summary['rounds']}; {others} are means over the last {window} rounds"
        )
    typer.echo(f"wrote {opened.folder.router}")
    fit = summary["router"]
    if views is not None:
        typer.echo(f"the router is fitted and measured with views={views}; {others} are those of training")
    if fit["own_scales"]:
        typer.echo(f"these figures presume queries that their own client has scaled; for raw ones, {ONE_SCALE}")
    for line in fit.get("left_out", []):
        typer.echo(line)
    if not fit["converged"]:
        remedy = f"give --rounds {4 * fit['rounds']}" if rounds is None else "leave out --rounds"
        typer.echo(f"the fit stopped after {fit['rounds']} rounds, short of its optimum: to go on, {remedy}")


def route(
    run: RunFolderArgument,
    inputs: QueryFiles,
    rule: Annotated[str, typer.Option(help=f"{RULES_HELP}.")] = "density",
    cost: Costs = None,
    coverage: Annotated[
        float, typer.Option(help="Answer this fraction of queries; abstain from the least certain ones.")
    ] = 1.0,
    without: Without = None,
    max_away: MaxAway = None,
    miss: Annotated[
        float | None,
        typer.Option(
            help="Also name a set of clients that misses the right one with this probability: 0.01, 0.05, 0.1, 0.2."
        ),
    ] = None,
    views: Views = None,
    why: Why = False,
    over: Over = None,
    ignore: Ignored = None,
    json: JsonFlag = False,
) -> None:
    """Print which client should answer each query.

    Example: feddrm route runs/first scan.png --why
    """
    from feddrm.predictor.query_files import read_queries
    from feddrm.runs import Run

    check_over(why, over)
    router = Run.open(run).router()
    x, names = read_queries(router, inputs, ignore or ())
    available = available_clients(router.names, without)
    options = given_settings(available=available, max_away=max_away, views=views, costs=read_costs(cost))
    decision = router.route(x, rule=rule, coverage=coverage, miss=miss, **options)
    whys = router.explain_decision(decision, router.inputs(x), over=over).as_dicts() if why else []
    probability, fallback = decision.client_probability.tolist(), decision.fallback.tolist()
    margin, abstain = decision.margin.tolist(), decision.abstain.tolist()
    right = None if decision.right is None else decision.right_probability.tolist()
    answers: list[dict[str, Any]] = [
        {
            "query": name,
            "client": None if client < 0 else router.names[client],
            "client_probability": probability[i],
            "fallback": fallback[i],
            "margin": margin[i],
            "abstain": abstain[i],
            "reason": decision.reason[i],
            "flags": [flag.as_flag() for flag in decision.flags[i]] if decision.flags else [],
            "away": list(without or ()),
            **(
                {}
                if decision.within is None
                else {"within": [router.names[n] for n in decision.within[i].nonzero()[:, 0].tolist()]}
            ),
            **({} if right is None else {"right_probability": right[i]}),
        }
        for i, (name, client) in enumerate(zip(names, decision.client.tolist(), strict=True))
    ]
    if json:
        print_json([{**a, "why": w} for a, w in zip(answers, whys, strict=True)] if whys else answers)
        return
    header = ["query", "client", "client probability", "margin", "abstains because"]
    rows = [[a["query"], *client_cells(a), f"{a['margin']:.3f}", reason_text(a)] for a in answers]
    if right is not None:
        header.append("client is right")
        rows = [[*row, f"{a['right_probability']:.3f}"] for row, a in zip(rows, answers, strict=True)]
    if miss is not None:
        header.append(f"set of clients (miss {miss:g})")
        rows = [[*row, ", ".join(a["within"]) or "-"] for row, a in zip(rows, answers, strict=True)]
    print_table(header, rows)
    print_reasons(zip(names, whys, strict=why))


def predict(
    run: RunFolderArgument,
    inputs: QueryFiles,
    client: Annotated[str | None, typer.Option(help="Ask this client about every query; it needs no router.")] = None,
    consult: Annotated[int, typer.Option(help="Ask this many clients and mix their answers.")] = 1,
    rule: Annotated[str | None, typer.Option(help=f"{RULES_HELP} (default: density).")] = None,
    cost: Costs = None,
    coverage: Coverage = None,
    without: Without = None,
    max_away: MaxAway = None,
    abstain: Annotated[str, typer.Option(help="mark: no label where the router abstains. answer: a label.")] = "mark",
    answer: Annotated[str, typer.Option(help="trained (the method's model) or refit (fit-router's).")] = "trained",
    label_miss: LabelMiss = None,
    views: Views = None,
    out: Annotated[Path | None, typer.Option(help="Write the answers to this csv file.")] = None,
    ignore: Ignored = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the answers as csv.")] = False,
    json: JsonFlag = False,
) -> None:
    """Answer queries from a run's folder, without a server. Each is routed, and the chosen client is asked for a label.

    Example: feddrm predict runs/first scan.png --out answers.csv
    """
    from dataclasses import replace

    from feddrm.io.atomic import write_atomically
    from feddrm.predictor.query_files import read_queries
    from feddrm.report.tables import to_csv
    from feddrm.runs import Run
    from feddrm.runs.run_router import load_run_federation
    from feddrm.tasks import Survival

    if csv and json:
        raise SettingError("--csv and --json print the same answers: give one of them")
    opened = Run.open(run)
    known: Router | Federation  # which knows the clients and the form of samples
    if client is None or opened.folder.has_router:
        known = opened.router()
    else:
        known = load_run_federation(opened.folder, opened.config, None)
        opened = replace(opened, federation=known)
    x, names = read_queries(known, inputs, ignore or ())
    options = given_settings(
        rule=rule,
        costs=read_costs(cost),
        coverage=coverage,
        available=available_clients(known.names, without),
        max_away=max_away,
        views=views,
        label_miss=label_miss,
    )
    answers = opened.predict(x, client=client, consult=consult, abstain=abstain, answer=answer, **options)
    if out is not None:
        write_atomically(out, to_csv(*answers.csv_table(names)).encode())
    if csv:
        typer.echo(to_csv(*answers.csv_table(names)), nl=False)
    elif json:
        print_json(answers.as_dicts(names))
    else:
        said = ["label", "sure of the label"]
        if isinstance(task := answers.task, Survival):
            said = ["risk", *(f"survives day {day}" for day in _days(task))]
        header = ["query", *said, "client", "sure of the client", "abstains because"]
        entries = answers.as_dicts(names)
        rows = [_answer_row(row, task) for row in entries]
        if label_miss is not None:
            header.append(f"label set (miss {label_miss:g})")
            rows = [[*row, set_text(entry["label_set"])] for row, entry in zip(rows, entries, strict=True)]
        print_table(header, rows)
        if out is not None:
            typer.echo(f"wrote {out}")


def _answer_row(row: dict[str, Any], task: Task) -> list[str]:
    from feddrm.tasks import Survival

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    if isinstance(task, Survival):
        risk, curve = row["risk"], row["survival"] or {}
        answer = ["-" if risk is None else f"{risk:.3f}", *(percent(curve.get(str(day))) for day in _days(task))]
    else:
        answer = [row["label"] or "-", percent(row["label_probability"])]
    clients = ", ".join(row["answered"]) or row["client"] or "-"
    return [row["query"], *answer, clients, percent(row["client_probability"]), reason_text(row)]


def _days(task: Survival) -> tuple[int, int]:
    """The two days that a terminal has room for: the end of the middle interval and that of the last."""
    return task.edges[len(task.edges) // 2], task.edges[-1]


def available_clients(names: Sequence[str], without: list[str] | None) -> list[str] | None:
    """The clients but for those named; None for all."""
    for name in without or ():
        require_client(name, names)
    return [name for name in names if name not in without] if without else None
