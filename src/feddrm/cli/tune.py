"""``feddrm tune``: the best learning rate, and other settings, for a dataset and its methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from feddrm.cli.data_options import (
    Alpha,
    Clients,
    DataDir,
    Download,
    Partition,
    Recipe,
    Shards,
    Shift,
    check_partition,
    given_settings,
    sectioned_settings,
)
from feddrm.cli.output import JsonFlag, print_json, print_table, resumable
from feddrm.cli.train import setting_names
from feddrm.errors import SettingError


def tune(
    out: Annotated[Path, typer.Option(help="Folder of the search; an interrupted search in it goes on.")],
    data: Annotated[str, typer.Option(help="A name from 'feddrm datasets'.")],
    method: Annotated[list[str] | None, typer.Option(help="A name from 'feddrm methods'; repeat for several.")] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="KEY=A,B,...",
            help="Values to try: lr, local_steps, clip, ..., method.KEY (default: rates around the usual one).",
        ),
    ] = None,
    goal: Annotated[str, typer.Option(help="average, system (by the exact router) or both, as a front.")] = "average",
    cost: Annotated[
        float | None,
        typer.Option(help="How many whole runs all trials of a method may take (default: 1; 4 if samples are small)."),
    ] = None,
    held_out: Annotated[
        float, typer.Option(help="Fraction of the training samples that trials are compared on.")
    ] = 0.2,
    finalists: Annotated[
        int | None, typer.Option(help="How many trials are trained to their end (2; with goal both, 3).")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Stop after this time, as 25m; the same command goes on.")] = None,
    model: Annotated[str | None, typer.Option(help="A name from 'feddrm models'.")] = None,
    recipe: Recipe = None,
    clients: Clients = None,
    partition: Partition = None,
    alpha: Alpha = None,
    shards: Shards = None,
    shift: Shift = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of a whole run, which the settings are for.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of data and training.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    data_dir: DataDir = None,
    download: Download = False,
    extra: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="data.KEY=VALUE", help="Any other setting: data.KEY, training.KEY; of a method: --try."
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Search for the best learning rate on held-out samples. Test samples are never read.

    Many candidates train a little, the better half goes on. 'best.yaml' then has the settings of a whole run: the usual
    ones, unless others are better by more than the standard error.

    Example: feddrm tune --data digits --method feddrm --out tune/digits
    """
    from feddrm.paper.runner import read_budget
    from feddrm.search import tune as search

    check_partition(partition, alpha, shards)
    data_settings = given_settings(
        clients=clients, partition=partition, alpha=alpha, shards=shards, shift=shift, seed=seed, data_dir=data_dir,
        download=download,
    )  # fmt: skip
    training = given_settings(recipe=recipe, rounds=rounds, seed=seed, device=device)
    if extra:
        others = _other_settings(extra, data)
        data_settings |= others["data"]
        training |= others["training"]
    with resumable():
        result = search(
            data,
            method or ["feddrm"],
            out=out,
            axes=_axes(values or ()),
            goal=goal,
            cost=cost,
            held_out=held_out,
            finalists=finalists,
            budget=None if budget is None else read_budget(budget),
            model=model,
            data_settings=data_settings,
            progress=True,
            **training,
        )
    if json:
        best = {name: dict(candidate.values) for name, candidate in result.best.items()}
        front = {
            name: [{"settings": dict(candidate.values), "scores": scores} for candidate, scores in members.items()]
            for name, members in result.front.items()
        }
        found = {"best": best, "scores": result.scores, "verdicts": result.verdicts, "front": front}
        print_json({"path": str(result.path), "finished": result.finished, **found})
        return
    shown = [(name, "picked", candidate, result.scores[name]) for name, candidate in result.best.items()]
    shown += [(name, "front", *member) for name, members in result.front.items() for member in members.items()]
    rows = [
        [name, what, candidate.name, ", ".join(f"{key} {100 * value:.2f}" for key, value in scores.items())]
        for name, what, candidate, scores in shown
    ]
    print_table(["method", "", "settings", "on held-out samples, percent"], rows)
    for name, verdict in result.verdicts.items():
        typer.echo(f"{name}: {verdict}")
    if not result.finished:
        typer.echo("the budget is used up: the same command goes on from here", err=True)
    typer.echo(f"wrote {', '.join(map(str, sorted(out.glob('best*.yaml'))))} and {out / 'tune.html'}")


def _other_settings(extra: Sequence[str], data: str) -> dict[str, dict[str, str]]:
    """The settings of ``--set``. Those of a method are values to try: several methods may be searched at once."""
    for item in extra:
        if item.startswith("method."):
            raise SettingError(f"--set {item}: a search tries settings of methods: write --try {item}")
    names = setting_names({"data": {"name": data}, "method": {}, "model": {}})
    return sectioned_settings(extra, {part: names[part] for part in ("data", "training")})


def _axes(items: Sequence[str]) -> dict[str, list[str]]:
    """The values to try by key. A key that is given twice is refused: one of its lists would be left out unseen."""
    axes: dict[str, list[str]] = {}
    for key, values in map(_axis, items):
        if key in axes:
            raise SettingError(f"--try {key} is given twice: write --try {key}={','.join([*axes[key], *values])}")
        axes[key] = values
    return axes


def _axis(item: str) -> tuple[str, list[str]]:
    """The key and the values of one ``--try``."""
    key, _, text = item.partition("=")
    values = [value.strip() for value in text.split(",") if value.strip()]
    if not values:
        raise SettingError(f"--try {item!r}: there is nothing to try: write it as {key or 'lr'}=0.01,0.1")
    return key, values
