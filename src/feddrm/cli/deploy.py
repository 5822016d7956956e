"""``feddrm deploy``: the same methods over a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from feddrm.cli.data_options import given_settings
from feddrm.cli.output import JsonFlag, print_json, print_table
from feddrm.errors import FeddrmError, SettingError
from feddrm.progress import progress_bar

app = typer.Typer(help="Train over a network on Flower.", no_args_is_help=True, rich_markup_mode=None)

Project = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that 'feddrm deploy init' made.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The server's or the site's own folder.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    clients: Annotated[str, typer.Option(help="Names of the sites, with commas between.")],
    data: Annotated[str | None, typer.Option(help="For trying out: sites get shares of this dataset.")] = None,
    method: Annotated[str, typer.Option(help="A name from 'feddrm methods'.")] = "feddrm",
    model: Annotated[str | None, typer.Option(help="A name from 'feddrm models'.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Steps of a site per round.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of parameters and batches.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds a site has for one letter.")] = 600.0,
    quorum: Annotated[int, typer.Option(help="Sites that must answer for a round to count.")] = 1,
    router: Annotated[bool, typer.Option(help="Fit the exact router after training.")] = True,
    heads: Annotated[bool, typer.Option(help="Fit exact class heads too: three times the letters.")] = False,
    clip: Annotated[float | None, typer.Option(help="Differential privacy: longest change of an upload.")] = None,
    noise: Annotated[float | None, typer.Option(help="Differential privacy: noise, in units of clip.")] = None,
    host: Annotated[str, typer.Option(help="By which name or address sites reach the server.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Of the server.")] = 8000,
    plain_text: Annotated[
        bool, typer.Option("--plain-text", help="No TLS and no node authentication: anybody can read along.")
    ] = False,
) -> None:
    """Write a project: certificates, keys, one folder per site, start scripts and pages to follow.

    Example: feddrm deploy init federation --clients oslo,lima,pune --data digits
    """
    needed()
    from feddrm.deploy.provision.project import make_project
    from feddrm.deploy.server.federation_settings import ServerSettings

    training = given_settings(
        method=method, model=model, rounds=rounds, local_steps=local_steps, batch_size=batch_size, lr=lr, seed=seed
    )
    if (clip is None) != (noise is None):
        raise SettingError("differential privacy needs both --clip and --noise")
    settings = ServerSettings(
        clients=tuple(name.strip() for name in clients.split(",") if name.strip()),
        training=training,
        deadline=deadline,
        quorum=quorum,
        router=router,
        routing={"heads": True} if heads else {},
        privacy=None if clip is None or noise is None else {"clip": clip, "noise": noise},
        host=host,
        port=port,
        insecure=plain_text,
    )
    make_project(folder, settings, data=None if data is None else {"dataset": data})
    typer.echo(f"wrote {folder}: see {folder / 'README.md'}")
    if plain_text:
        typer.echo("plain text: whoever is on the network can read and change what is sent", err=True)


@app.command()
def up(folder: Project, json: JsonFlag = False) -> None:
    """Start the server and every site of a project on this machine; what runs already stays.

    Example: feddrm deploy up federation
    """
    needed()
    from feddrm.deploy import local_cluster

    started = local_cluster.up(folder)
    if json:
        print_json({"started": started})
    else:
        typer.echo(f"started {', '.join(started)}" if started else "everything runs already")


@app.command()
def run(
    folder: Project,
    timeout: Annotated[float | None, typer.Option(help="Stop watching after so many seconds.")] = None,
    json: JsonFlag = False,
) -> None:
    """Train, fit the router, and watch; an interrupted run goes on where it was.

    Example: feddrm deploy run federation
    """
    needed()
    from feddrm.deploy import local_cluster

    with progress_bar("deployed") as advance:
        last: list[Mapping[str, Any]] = []

        def show(status: Mapping[str, Any]) -> None:
            if last == [status]:
                return
            last[:] = [status]
            done = status.get("round", 0)
            advance(done, status.get("rounds") or done + 1, _doing(status), True)

        summary = local_cluster.run(folder, show, timeout)
    if json:
        print_json(summary)
        return
    accuracy = summary.get("average_accuracy")
    shown = "" if accuracy is None else f", every site on its own test samples {100 * accuracy:.2f} %"
    typer.echo(f"{summary['rounds']} rounds{shown}")
    if summary.get("privacy"):
        typer.echo(f"differential privacy spent: {summary['privacy']['epsilon']}")
    typer.echo(f"wrote {local_cluster.server_folder(folder) / 'runs'}")


@app.command()
def status(folder: Project, json: JsonFlag = False) -> None:
    """Say what runs here, and how far the training is.

    Example: feddrm deploy status federation
    """
    needed()
    from feddrm.deploy import local_cluster

    found = local_cluster.status(folder)
    if json:
        print_json(found)
        return
    print_table(["process", "number"], [[n, pid or "not running here"] for n, pid in found["processes"].items()])
    said = found["server"]
    if found["summary"]:
        typer.echo(f"run '{found['run']}': finished, {found['summary']['rounds']} rounds")
        return
    typer.echo(f"run '{found['run']}': {_doing(said) if said else 'not begun'}")
    if said is not None and "round" in said:
        answered = f", answered by {', '.join(said['answered']) or 'nobody'}" if "answered" in said else ""
        typer.echo(f"{said['round']} rounds done{answered}")
    if found["complaint"]:
        typer.echo(f"last complaint: {found['complaint']}")


@app.command()
def down(folder: Project, json: JsonFlag = False) -> None:
    """Stop the server and the sites on this machine; 'up' and 'run' go on where they were.

    Example: feddrm deploy down federation
    """
    needed()
    from feddrm.deploy import local_cluster

    stopped = local_cluster.down(folder)
    if json:
        print_json({"stopped": stopped})
    else:
        typer.echo(f"stopped {', '.join(stopped)}" if stopped else "nothing runs here")


@app.command()
def server(folder: Folder) -> None:
    """Run the server and stay: what its start script calls.

    Example: feddrm deploy server federation/server
    """
    needed()
    from feddrm.deploy.flower.daemon import run_server

    run_server(folder)


@app.command()
def site(folder: Folder) -> None:
    """Run a site and stay: what its start script calls.

    Example: feddrm deploy site federation/sites/oslo
    """
    needed()
    from feddrm.deploy.flower.daemon import run_site

    run_site(folder)


def _doing(said: Mapping[str, Any]) -> str:
    """What the server says of itself, in words."""
    whom = f" for {said['for']}" if "for" in said else ""
    return str(said["what"]) + whom + (f", letter {said['step']}" if "step" in said else "")


def needed() -> None:
    """The rest of the project works without Flower."""
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise FeddrmError("deployment needs Flower: pip install 'feddrm[deploy]'") from error
