"""The commands of ``feddrm deploy`` for members: ``keygen``, ``check``, ``add-site``, ``remove-site``, ``renew``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddrm.cli.output import JsonFlag, print_findings, print_json
from feddrm.errors import FeddrmError

if TYPE_CHECKING:
    from feddrm.deploy.provision.members import RunState

Project = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that 'init' made, or the server's own folder.")]
SiteName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the site.")]
NextRun = Annotated[str | None, typer.Option(help="A name for the next run, for federation.yaml.")]
AT_ONCE = "A server that runs notices it within seconds; between runs it counts from the next start on."


def keygen(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's own folder.")],
    json: JsonFlag = False,
) -> None:
    """Make a site's key, at the site. The private key stays there; node.pub goes to the coordinator.

    Works at any time: before 'init', between runs, or while a run of the others goes on.

    Example: feddrm deploy keygen oslo
    """
    require_flower()
    from feddrm.deploy.provision.project import write_site_key
    from feddrm.deploy.wire.key_files import fingerprint, load_public_key

    write_site_key(folder)
    public = folder / "node.pub"
    short = fingerprint(load_public_key(public))
    if json:
        print_json({"public_key": str(public), "fingerprint": short})
        return
    typer.echo(f"wrote {folder / 'node.key'}: it stays here, readable by its owner only")
    typer.echo(f"send {public} to the coordinator, and tell {short} by another way")


def check(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A site's folder, the server's, or one that 'init' made.")
    ],
    json: JsonFlag = False,
) -> None:
    """Check a site or the server before it is started. Each finding is one line, with the remedy. It changes nothing.

    A site: data, floors, folder, disk, versions, key, certificate, the way to the server, clock. The server: settings,
    folder, disk, versions, keys, certificate, ports. Of a project: the server, and its sites without the removed ones.
    The exit code is 1 if there is a problem.

    Example: feddrm deploy check federation/sites/oslo
    """
    require_flower()
    from feddrm.checks.findings import PROBLEM
    from feddrm.deploy.cluster_status import is_site, member_folders
    from feddrm.deploy.provision.server_check import check_server
    from feddrm.deploy.provision.site_check import check_site
    from feddrm.deploy.server.federation_file import CONFIG

    alone = is_site(folder) or (folder / CONFIG).exists()
    places = {folder.name: folder} if alone else member_folders(folder)
    found = {name: check_site(place) if is_site(place) else check_server(place) for name, place in places.items()}
    if json:
        plain = {name: [vars(finding) for finding in findings] for name, findings in found.items()}
        print_json(plain[folder.name] if alone else plain)
    else:
        for name, findings in found.items():
            print_findings(findings, None if alone else name)
    if any(finding.level == PROBLEM for findings in found.values() for finding in findings):
        raise typer.Exit(1)


def add_site(
    folder: Project,
    name: SiteName,
    key: Annotated[Path | None, typer.Option(help="The public key that the site made ('keygen').")] = None,
    out: Annotated[Path | None, typer.Option(help="The site's folder (default: sites/NAME beside server/).")] = None,
    run: NextRun = None,
    json: JsonFlag = False,
) -> None:
    """Add a site. It may connect at once, and takes part from the next run on.

    While a run goes on, that run continues without the new site.

    Example: feddrm deploy add-site federation quito
    """
    require_flower()
    from feddrm.deploy.cluster_status import server_folder
    from feddrm.deploy.provision import members

    server = server_folder(folder)
    made, state = members.add_site(server, name, key, out, run)
    if json:
        print_json({"site": name, "folder": str(made), "own_key": key is not None, "run_goes_on": _goes_on(state)})
        return
    whose = "the site keeps its own private key" if key is not None else "its private key is in it: send it safely"
    typer.echo(f"wrote {made}: send it to {name} ({whose})")
    typer.echo(AT_ONCE)
    typer.echo(f"for secure aggregation every other site puts {name}'s node.pub into its folder as keys/{name}.pub")
    if _goes_on(state) and name in state.members:
        typer.echo(
            f"run '{state.folder.name}' began with another {name}: to go on in it, put 'runs' of that site's folder "
            f"into the new one; otherwise the run cannot end while {name} is a site"
        )
    elif _goes_on(state):
        typer.echo(f"run '{state.folder.name}' goes on without {name}, which takes part in the next run")
    _name_next_run(state, run)


def remove_site(folder: Project, name: SiteName, run: NextRun = None, json: JsonFlag = False) -> None:
    """Remove a site: its messages are not accepted any more. Its private part stays with it.

    While a run goes on, that run continues without the site, and fits no router.

    Example: feddrm deploy remove-site federation quito
    """
    require_flower()
    from feddrm.deploy.cluster_status import server_folder
    from feddrm.deploy.provision import members

    server = server_folder(folder)
    state = members.remove_site(server, name, run)
    leave = f"feddrm router leave {state.folder} {name} --in-place" if state.router else None
    left = server.parent / "sites" / name
    if json:
        about = {"folder": str(left) if left.exists() else None, "run_goes_on": _goes_on(state), "router": leave}
        print_json({"removed": name, **about})
        return
    typer.echo(f"removed {name}: its key is not accepted again, its private part stays with it")
    if left.exists():
        typer.echo(f"{left} stays, with its key and its private part; 'feddrm deploy up' does not start it any more")
        typer.echo(f"to remove it for good: feddrm deploy down {folder}; rm -r {left}")
    typer.echo(AT_ONCE)
    if _goes_on(state):
        typer.echo(f"run '{state.folder.name}' goes on without {name}; it fits no router, the next run does")
    if leave is not None:
        typer.echo(f"the router of '{state.folder.name}' still knows {name}: {leave}")
    _name_next_run(state, run)


def renew(
    folder: Project,
    host: Annotated[list[str] | None, typer.Option(help="Another name or address; may be repeated.")] = None,
    authority: Annotated[Path | None, typer.Option(help="The authority's folder (default: beside server/).")] = None,
    json: JsonFlag = False,
) -> None:
    """Renew the server's certificate, for all its names. Sites keep their ca.crt.

    While a run goes on, the server starts its SuperLink again with it, and the run continues.

    Example: feddrm deploy renew federation --host server.example --host 10.0.0.7
    """
    require_flower()
    from feddrm.deploy.cluster_status import server_folder
    from feddrm.deploy.provision import members

    server = server_folder(folder)
    names, end = members.renew(server, host or [], authority)
    if json:
        print_json({"hosts": names, "valid_until": end.isoformat()})
        return
    typer.echo(f"wrote {server / 'tls.crt'}: for {', '.join(names)}, valid to {end:%Y-%m-%d}")
    typer.echo(AT_ONCE)


def _goes_on(state: RunState) -> bool:
    return state.begun and not state.finished


def _name_next_run(state: RunState, run: str | None) -> None:
    if state.begun and run is None:
        typer.echo(
            "before the next run, give it a name: 'run' in federation.yaml (this command does it with --run NAME)"
        )


def require_flower() -> None:
    """Refuse to go on without Flower, which is an optional dependency."""
    if find_spec("flwr") is None:
        raise FeddrmError("deployment needs Flower: pip install 'feddrm[deploy]'")
