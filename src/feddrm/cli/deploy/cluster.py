"""The commands of ``feddrm deploy`` that make, start, watch and stop a federation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from feddrm.checks.ports import FEDERATION
from feddrm.cli.data_options import DataDir, Download, given_settings, sectioned_settings
from feddrm.cli.deploy import members, monitor
from feddrm.cli.deploy.members import require_flower
from feddrm.cli.output import JsonFlag, print_json, print_table
from feddrm.errors import SettingError
from feddrm.plugins import require_plugins
from feddrm.progress import progress_bar
from feddrm.registry import Named, name_and_settings

app = typer.Typer(help="Train over a network with Flower.", no_args_is_help=True, rich_markup_mode=None)

Project = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that 'feddrm deploy init' made.")]
Place = Annotated[Path, typer.Argument(metavar="DIR", help="A folder of 'init', or the server's or a site's own.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The server's or the site's own folder.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    clients: Annotated[str, typer.Option(help="Names of the sites, separated by commas.")],
    data: Annotated[str | None, typer.Option(help="For trying out: every site gets a share of this dataset.")] = None,
    data_dir: DataDir = None,
    download: Download = False,
    config: Annotated[
        Path | None,
        typer.Option(help="What to train, from the config.yaml of a run or from 'feddrm tune'; options change it."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="A name from 'feddrm methods' (default: feddrm).")] = None,
    model: Annotated[str | None, typer.Option(help="A name from 'feddrm models'.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training (default: 40; photographs: 800).")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Training steps of a site per round (default: 10).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per step (default: 32; photographs: 128).")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate (default: 0.05; photographs: 0.3).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of parameters and batches (default: 2025).")] = None,
    extra: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="method.KEY=VALUE", help="Any other setting: method.KEY, model.KEY, training.KEY."
        ),
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds that a site has to answer one message.")] = 600.0,
    quorum: Annotated[int, typer.Option(help="How many sites must answer for a round to count.")] = 1,
    router: Annotated[bool, typer.Option(help="Fit the exact router after training.")] = True,
    heads: Annotated[bool, typer.Option(help="Fit the exact class heads, too: over a hundred messages more.")] = False,
    clip: Annotated[float | None, typer.Option(help="Differential privacy: largest norm of a change.")] = None,
    noise: Annotated[float | None, typer.Option(help="Differential privacy: noise, in units of clip.")] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server; may be repeated, sites use the first.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the server.")] = FEDERATION,
    keys: Annotated[Path | None, typer.Option(help="Folder of public keys, NAME.pub, that sites made.")] = None,
    watch_port: Annotated[
        int | None, typer.Option(help="Show the training on the server's own machine at this port: page and metrics.")
    ] = None,
    plain_text: Annotated[
        bool, typer.Option("--plain-text", help="No TLS and no node authentication: others can read what is sent.")
    ] = False,
) -> None:
    """Write a project: keys, certificates, folders, start scripts. Server and sites get a folder each.

    Example: feddrm deploy init federation --clients oslo,lima,pune --data digits
    """
    require_flower()
    from feddrm.deploy.provision.members import read_public_key
    from feddrm.deploy.provision.project import make_project
    from feddrm.deploy.server.federation_settings import FederationSettings, check_host
    from feddrm.deploy.server.site_keys import KEYS

    plan = given_settings(rounds=rounds, local_steps=local_steps, batch_size=batch_size, lr=lr, seed=seed)
    training = _training(config, {"method": method, "model": model}, plan, extra)
    if (clip is None) != (noise is None):
        raise SettingError("differential privacy needs both --clip and --noise")
    names = tuple(name.strip() for name in clients.split(",") if name.strip())
    hosts = host or ["127.0.0.1"]
    for name in hosts:
        check_host(name)
    settings = FederationSettings(
        clients=names,
        training=training,
        deadline=deadline,
        quorum=quorum,
        router=router,
        routing={"heads": True} if heads else {},
        privacy=None if clip is None or noise is None else {"clip": clip, "noise": noise},
        host=hosts[0],
        port=port,
        insecure=plain_text,
        watch=None if watch_port is None else {"port": watch_port},
    )
    if settings.local and hosts[1:]:
        raise SettingError(f"--host {hosts[0]}: give first the name by which sites on other machines reach the server")
    own_keys = {} if keys is None else {n: keys / f"{n}.pub" for n in names if (keys / f"{n}.pub").exists()}
    if keys is not None and not own_keys:
        raise SettingError(f"--keys {keys}: there is no public key of a site, such as {names[0]}.pub")
    public_keys = {name: read_public_key(path, folder / "server" / KEYS) for name, path in own_keys.items()}
    files = given_settings(data_dir=data_dir and str(Path(data_dir).resolve()), download=download)
    if files and data is None:
        raise SettingError("--data-dir and --download are for the dataset of --data: give it, or leave them out")
    share = None if data is None else {"dataset": data, **files}
    make_project(folder, settings, data=share, hosts=hosts[1:], public_keys=public_keys)
    typer.echo(f"wrote {folder}: see {folder / 'README.md'}")
    if plain_text:
        typer.echo("plain text: everybody on the network can read and change what is sent", err=True)


def _training(
    config: Path | None, names: Mapping[str, str | None], plan: dict[str, Any], extra: list[str] | None
) -> dict[str, Any]:
    """What the sites train. Of a configuration, data, evaluation and machine are left out: they are not the sites'."""
    from feddrm.cli.train import setting_names
    from feddrm.engine import Plan
    from feddrm.io.text import read_config
    from feddrm.methods import Method
    from feddrm.models import Model
    from feddrm.runs.config import training_settings
    from feddrm.typed_settings import typed

    settings = read_config(config) if config is not None else {}
    require_plugins(settings.pop("plugins", None), str(config))
    recipe = settings.pop("recipe", None)
    parts = {part: name_and_settings(part, settings.pop(part, None) or {}) for part in ("data", "evaluation", *names)}
    for part, name in names.items():
        if name is not None and name != parts[part].get("name"):
            parts[part] = {"name": name}
    parts["method"].setdefault("name", "feddrm")
    plan = training_settings(settings)[0] | plan
    every = setting_names({**parts, "data": {}}) if extra else {}
    sections = {part: every.get(part, ()) for part in (*names, "training")}
    for part, values in sectioned_settings(extra, sections).items():
        (plan if part == "training" else parts[part]).update(values)
    if "name" not in parts["model"] and parts["model"]:
        raise SettingError(f"--set model.{next(iter(parts['model']))}=...: name the model, too (--model)")
    made = {part: _settings(kind, parts[part]) for part, kind in (("method", Method), ("model", Model)) if parts[part]}
    return {**made, **given_settings(recipe=recipe), **typed(Plan, plan)}


def _settings(kind: type[Named], part: Mapping[str, Any]) -> str | dict[str, Any]:
    """A method or model as a file has it: its name, with the settings that were given."""
    given = {key: value for key, value in part.items() if key != "name"}
    made = kind.make(part["name"], **given)
    values = {key: getattr(made, key) for key in given}
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    return {"name": made.name, **plain} if plain else made.name


@app.command()
def up(folder: Project, json: JsonFlag = False) -> None:
    """Start the server and all sites of a project. Those that run already on this machine go on.

    Example: feddrm deploy up federation
    """
    require_flower()
    from feddrm.deploy import local_cluster

    started = local_cluster.up(folder)
    if json:
        print_json({"started": started})
    else:
        typer.echo(f"started {', '.join(started)}" if started else "everything runs already")


@app.command()
def run(
    folder: Project,
    timeout: Annotated[float | None, typer.Option(help="Stop watching after this many seconds.")] = None,
    json: JsonFlag = False,
) -> None:
    """Train, fit the router, and show the progress. An interrupted run continues after its last finished round.

    Example: feddrm deploy run federation
    """
    require_flower()
    from feddrm.deploy import cluster_status, local_cluster

    with progress_bar("deployed") as advance:
        last: list[Mapping[str, Any]] = []

        def show(status: Mapping[str, Any]) -> None:
            if last == [status]:
                return
            last[:] = [status]
            advance(status.get("round", 0), status.get("rounds"), _activity(status), True)

        summary = local_cluster.run(folder, show, timeout)
    if json:
        print_json(summary)
        return
    accuracy = summary.get("average_accuracy")
    shown = "" if accuracy is None else f", every site on its own test samples {100 * accuracy:.2f} %"
    typer.echo(f"{summary['rounds']} rounds{shown}")
    if summary.get("removed"):
        typer.echo(f"removed during the run: {', '.join(summary['removed'])}")
    if privacy := summary.get("privacy"):
        spent = ", ".join(f"{name} {epsilon:,.1f}" for name, epsilon in privacy["epsilon"].items())
        typer.echo(f"privacy spent, epsilon at delta {privacy['delta']:g}: {spent}")
    typer.echo(f"wrote {cluster_status.run_folder(folder)}")


@app.command()
def status(folder: Place, json: JsonFlag = False) -> None:
    """Show how far the training is, and whom it waits for. It also shows which processes run here.

    In a site's folder: whether the site is connected, and what it knows of the run.

    Example: feddrm deploy status federation
    """
    require_flower()
    from feddrm.deploy import cluster_status

    at_site = cluster_status.is_site(folder)
    current = cluster_status.site_status(folder) if at_site else cluster_status.status(folder)
    if json:
        print_json(current)
        return
    if at_site:
        _print_site(current)
        return
    print_table(["process", "number"], [[n, pid or "not running here"] for n, pid in current["processes"].items()])
    _print_disk(current)
    server = current["server"]
    if current["summary"]:
        typer.echo(f"run '{current['run']}': finished, {current['summary']['rounds']} rounds")
        return
    why = f" ({server['text']}) {_since(server['time'])}" if server and server["what"] == "failed" else ""
    typer.echo(f"run '{current['run']}': {_activity(server) if server else 'not begun'}{why}")
    if server is not None and "round" in server:
        answered = f", answered by {', '.join(server['answered']) or 'nobody'}" if "answered" in server else ""
        typer.echo(f"{server['round']} rounds done{answered}")
    if server is not None:
        _print_waiting(server.get("waiting", {}))
    if current["wanted"] and current["processes"]["server"] is None:
        typer.echo(f"the server does not run: after {cluster_status.start_command(folder)} the run goes on by itself")
    told = (server or {}).get("text")  # a failed run is often the last complaint itself
    if current["complaint"] and (told is None or told not in current["complaint"]):
        typer.echo(f"last complaint: {current['complaint']}")


def _print_site(current: Mapping[str, Any]) -> None:
    print_table(["process", "number"], [[current["site"], current["process"] or "not running here"]])
    _print_disk(current)
    if "since" in current:
        words = "connected" if current["connected"] else f"not connected ({current['reason']})"
        typer.echo(f"{words} {_since(current['since'])}")
    for warning in current.get("samples", ()):
        typer.echo(f"its samples: {warning}")
    message = current.get("message")
    if message:
        run = "" if message["run"] is None else f" of run '{message['run']}'"
        number = "" if message["round"] is None else f", round {message['round']}"
        when = _since(message["time"]).removeprefix("since ")
        typer.echo(f"last message: '{message['kind']}'{run}{number}, {when}")
        if message["error"]:
            typer.echo(f"it was refused: {message['error']}")
        elif message["kind"] == "hello" and not current.get("waiting"):
            typer.echo("no run has begun with this site since: 'feddrm deploy status' at the server says why")
    _print_waiting(current.get("waiting", {}))


def _print_disk(current: Mapping[str, Any]) -> None:
    if current["disk"] is not None:
        typer.echo(f"its disk: {current['disk']}")


def _print_waiting(waiting: Mapping[str, float]) -> None:
    for name, since in waiting.items():
        typer.echo(f"the server waits for {name} {_since(since)}")


def _since(seconds: float) -> str:
    from feddrm.deploy.rotating_log import utc

    return f"since {utc(seconds)} ({max(0.0, time.time() - seconds):.0f} s)"


@app.command()
def down(folder: Project, json: JsonFlag = False) -> None:
    """Stop the server and the sites on this machine. After 'up', 'run' continues the training.

    Example: feddrm deploy down federation
    """
    require_flower()
    from feddrm.deploy import local_cluster

    stopped = local_cluster.down(folder)
    if json:
        print_json({"stopped": stopped})
    else:
        typer.echo(f"stopped {', '.join(stopped)}" if stopped else "nothing runs here")


@app.command()
def server(folder: Folder) -> None:
    """Run the server until it is stopped. Its start script calls this.

    Example: feddrm deploy server federation/server
    """
    require_flower()
    from feddrm.deploy.flower.daemon import run_server

    run_server(folder)


@app.command()
def site(folder: Folder) -> None:
    """Run a site until it is stopped. Its start script calls this.

    Example: feddrm deploy site federation/sites/oslo
    """
    require_flower()
    from feddrm.deploy.flower.daemon import run_site

    run_site(folder)


def _activity(status: Mapping[str, Any]) -> str:
    """What the server is doing, in words."""
    sites = f" for {status['for']}" if "for" in status else ""
    return str(status["what"]) + sites + (f", message {status['step']}" if "step" in status else "")


app.command()(members.keygen)
app.command()(members.check)
app.command("add-site")(members.add_site)
app.command("remove-site")(members.remove_site)
app.command()(members.renew)
app.command()(monitor.audit)
app.command()(monitor.watch)
