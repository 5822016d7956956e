"""``feddrm data``: print and draw a federation before training on it, and draft a table schema."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddrm.cli.data_options import (
    Alpha,
    Clients,
    DataDir,
    DatasetName,
    Download,
    Extra,
    Partition,
    PluginCommand,
    Seed,
    Shards,
    Shift,
    open_federation,
)
from feddrm.cli.output import JsonFlag, print_json, print_table
from feddrm.errors import FeddrmError, SettingError
from feddrm.registry import check_choice

if TYPE_CHECKING:
    from feddrm.tables.table_schema import TableSchema

app = typer.Typer(
    help="Show a federation; draft a table schema.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
MOST_CLIENTS, EDGE = 30, 10  # of more clients, the first and the last are printed
MOST_COLUMNS = 60  # of a table that are printed
SORTS = ("name", "train", "test")
MAX_CLASS_COLUMNS = 20  # a table with more columns is unreadable; --json prints all classes


@app.command(cls=PluginCommand)
def info(
    dataset: DatasetName,
    clients: Clients = None,
    partition: Partition = None,
    alpha: Alpha = None,
    shards: Shards = None,
    shift: Shift = None,
    seed: Seed = None,
    data_dir: DataDir = None,
    download: Download = False,
    extra: Extra = None,
    find: Annotated[str | None, typer.Option(help="Only clients whose name contains this.")] = None,
    sort: Annotated[str | None, typer.Option(help="Sort by name, train or test (largest first).")] = None,
    json: JsonFlag = False,
) -> None:
    """Print sizes, class counts and shift of every client. For a table, it also says how columns are read.

    Of more than 30 clients it prints the first and the last ten, by training samples unless --sort says otherwise.

    Example: feddrm data info digits --clients 8 --alpha 0.3
    """
    if sort is not None:
        check_choice("--sort", sort, SORTS)
    federation = open_federation(
        dataset,
        extra,
        clients=clients,
        partition=partition,
        alpha=alpha,
        shards=shards,
        shift=shift,
        seed=seed,
        data_dir=data_dir,
        download=download,
    )
    for warning in federation.warnings():
        typer.echo(f"warning: {warning}", err=True)
    facts, columns = federation.describe(), federation.describe_columns()
    if json:
        print_json({**facts, "columns": columns} if columns else facts)
        return
    listed, left_out = chosen_clients(facts["clients"], find, sort)
    few_classes = len(facts["classes"]) <= MAX_CLASS_COLUMNS
    subjects = [key for key in ("train_subjects", "test_subjects") if any(key in client for client in listed)]
    header = ["client", "train", "test", *(key.replace("_", " ") for key in subjects)]
    header += [*(facts["classes"] if few_classes else ["classes held"]), "shift"]
    rows = [
        [
            client["name"],
            client["train"],
            client["test"],
            *(client.get(key, "") for key in subjects),
            *(client["class_counts"] if few_classes else [sum(c > 0 for c in client["class_counts"])]),
            client["shift"],
        ]
        for client in listed
    ]
    settings = ", ".join(f"{key}={value}" for key, value in facts["settings"].items() if value is not None)
    typer.echo(f"{facts['name']}: {facts['train']} training and {facts['test']} test samples, {settings}")
    typer.echo(f"from {facts['source']}")
    if not federation.task.classifies:
        typer.echo(f"task {federation.task.name}: samples are counted by the interval in which their follow-up ends")
    if left_out:
        rows.insert(EDGE, ["...", *([""] * (len(header) - 1))])
        sizes = sorted(client["train"] for client in facts["clients"])
        typer.echo(
            f"{len(sizes):,} clients with {sizes[0]:,} to {sizes[-1]:,} training samples (median "
            f"{sizes[len(sizes) // 2]:,}); {left_out:,} are left out (--find NAME, or --json for all)"
        )
    print_table(header, rows)
    if columns:
        _print_columns(columns, federation.schema)


def _print_columns(columns: list[dict[str, Any]], schema: TableSchema | None) -> None:
    """How every column is read. Of many the number alone."""
    from feddrm.tables.column_values import values_text

    reader = "as they are" if schema is None else f"as schema {schema.digest} reads them"
    if len(columns) > MOST_COLUMNS:
        typer.echo(f"{len(columns):,} columns, {reader}: --json lists them")
        return
    rows = [[column["name"], column["kind"], values_text(column), column["missing"]] for column in columns]
    print_table(["column", "kind", "values", "missing"], rows, title=f"columns, {reader}")


def chosen_clients(
    clients: list[dict[str, Any]], find: str | None, sort: str | None
) -> tuple[list[dict[str, Any]], int]:
    """The clients to print, in order, and how many are left out between the first and the last ten."""
    found = [client for client in clients if find is None or find.lower() in client["name"].lower()]
    if not found:
        raise SettingError(f"--find {find!r}: no client's name contains it (the first is '{clients[0]['name']}')")
    if sort is not None or len(found) > MOST_CLIENTS:
        key = sort or "train"
        found = sorted(found, key=lambda client: client["name"] if key == "name" else -client[key])
    if len(found) <= MOST_CLIENTS:
        return found, 0
    return found[:EDGE] + found[-EDGE:], len(found) - 2 * EDGE


@app.command(cls=PluginCommand)
def show(
    dataset: DatasetName,
    out: Annotated[Path, typer.Option(help="The file to write (.png, .svg or .pdf).")] = Path("data.png"),
    clients: Clients = None,
    partition: Partition = None,
    alpha: Alpha = None,
    shards: Shards = None,
    shift: Shift = None,
    seed: Seed = None,
    data_dir: DataDir = None,
    download: Download = False,
    extra: Extra = None,
) -> None:
    """Draw every client's shift and its samples per class.

    Example: feddrm data show digits --out digits.png
    """
    from feddrm.data.summary import dataset_summary
    from feddrm.report.federation_figures import federation_figure
    from feddrm.report.figure_files import check_figure_path, save_figure

    check_figure_path(out)
    federation = open_federation(
        dataset,
        extra,
        clients=clients,
        partition=partition,
        alpha=alpha,
        shards=shards,
        shift=shift,
        seed=seed,
        data_dir=data_dir,
        download=download,
    )
    save_figure(federation_figure(dataset_summary(federation)), out)
    typer.echo(f"wrote {out}")


@app.command()
def schema(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Tables (.csv) with the same columns.")],
    label: Annotated[str | None, typer.Option(help="The column to predict; it is left out.")] = None,
    client: Annotated[str | None, typer.Option(help="The column that names the client; it is left out.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Another column to leave out; repeatable.")] = None,
    categories: Annotated[
        list[str] | None, typer.Option(help="A column of codes, up to 1,000 different ones; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write (default: print it).")] = None,
) -> None:
    """Draft a table schema for csv data. You then edit it and give it to every client.

    Centres and scales are rounded statistics of the tables you name: name some that may be shown.

    Example: feddrm data schema visits.csv --label outcome --client hospital --out schema.yaml
    """
    from feddrm.io.atomic import write_atomically
    from feddrm.tables.schema_draft import draft_schema

    draft = draft_schema(files, [name for name in (label, client, *(drop or ())) if name], categories or ())
    if out is None:
        typer.echo(draft.decode(), nl=False)
        return
    if out.exists():  # it may have been edited
        raise FeddrmError(f"{out} exists: choose another --out, or remove it")
    write_atomically(out, draft)
    typer.echo(f"wrote {out}: complete it, then give it to every client")
