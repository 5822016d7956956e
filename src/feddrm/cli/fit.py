"""``feddrm fit``: router and heads on frozen features, in closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from feddrm.cli.data_options import (
    Alpha,
    Clients,
    DataDir,
    Download,
    Partition,
    Seed,
    Shards,
    Shift,
    check_partition,
    given_settings,
    sectioned_settings,
)
from feddrm.cli.output import START_AGAIN, JsonFlag, print_json, resumable
from feddrm.cli.train import print_runs, setting_names
from feddrm.errors import SettingError


def fit(
    out: Annotated[Path | None, typer.Option(help="Run folder; a finished fit in it is kept.")] = None,
    data: Annotated[str | None, typer.Option(help="A name from 'feddrm datasets'.")] = None,
    method: Annotated[str, typer.Option(help="fed3r (ridge regression) or fedlda (linear discriminant).")] = "fed3r",
    model: Annotated[str, typer.Option(help="identity (samples are features) or onnx (with model.path).")] = "identity",
    clients: Clients = None,
    partition: Partition = None,
    alpha: Alpha = None,
    shards: Shards = None,
    shift: Shift = None,
    features: Annotated[int | None, typer.Option(help="Use this many random features instead of all.")] = None,
    ridge: Annotated[float | None, typer.Option(help="The ridge (default: chosen on held-out samples).")] = None,
    polish: Annotated[int | None, typer.Option(help="Rounds of the exact softmax fit that follow.")] = None,
    half: Annotated[bool, typer.Option("--half", help="Send Gram matrices in float16.")] = False,
    seed: Seed = None,
    data_dir: DataDir = None,
    download: Download = False,
    extra: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="data.KEY=VALUE", help="Any other setting: data.KEY, method.KEY, model.KEY."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Fit router and heads on frozen features, without rounds. Every client sends its sums once.

    Example: feddrm fit --data digits --out runs/frozen
    """
    from feddrm.methods import Method
    from feddrm.models import Model
    from feddrm.runs import fit as fit_run

    if out is None or data is None:
        raise SettingError("give --out FOLDER for the run and --data NAME (see: feddrm datasets)")
    parts: dict[str, dict[str, Any]] = {"data": {"name": data}, "method": {"name": method}, "model": {"name": model}}
    known = {part: names for part, names in setting_names(parts).items() if part in parts}
    for part, values in sectioned_settings(extra, known).items():
        parts[part].update(values)
    parts["data"] |= given_settings(
        clients=clients,
        partition=partition,
        alpha=alpha,
        shards=shards,
        shift=shift,
        seed=seed,
        data_dir=data_dir,
        download=download,
    )
    parts["method"] |= given_settings(ridge=ridge, polish=polish, half=half)
    parts["model"] |= given_settings(features=features)
    check_partition(parts["data"].get("partition"), alpha, shards)
    names = {part: settings.pop("name") for part, settings in parts.items()}
    with resumable(START_AGAIN):
        run = fit_run(
            names["data"],
            Method.make(names["method"], **parts["method"]),
            out=out,
            model=Model.make(names["model"], **parts["model"]),
            data_settings=parts["data"],
            **given_settings(seed=seed),
        )
    if json:
        print_json({"path": str(run.path), **(run.summary or {})})
        return
    print_runs([run.path])
    if (message := (run.summary or {})["router"].get("message")) is None:
        return  # 'feddrm fit-router' has replaced the router since
    typer.echo(f"every client sent one message of at most {message['bytes'] / 2**20:.3g} MiB ({message['type']})")
    if loss := message.get("held_out_loss"):
        typer.echo(f"held-out squared error: {loss['float16']:.6f} by float16, {loss['float64']:.6f} by float64")
