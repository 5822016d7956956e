"""The commands of ``feddrm deploy`` that look at a training: ``audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feddrm.cli.deploy.members import require_flower
from feddrm.cli.output import JsonFlag, print_json


def audit(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of 'init', the server's own, or a run's.")],
    site: Annotated[
        list[Path] | None, typer.Option(help="A site's folder: the trail must hold what it knows; may be repeated.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Verify the audit trail of a run: its hash chain, its end and the model of its last round.

    The end is compared with summary.json and with the event logs of sites, those of the project or of --site.

    Example: feddrm deploy audit federation
    """
    require_flower()
    from feddrm.deploy.local_cluster import run_folder, site_folders
    from feddrm.deploy.server.audit_check import audit_run

    result = audit_run(run_folder(folder), site or site_folders(folder))
    if json:
        print_json(result)
        return
    places = ", ".join(result["compared_with"]) or "nothing: give --site, or wait for the end of the run"
    typer.echo(f"{result['run']}: {result['lines']} lines are one chain, up to {result['hash']}")
    typer.echo(f"its end was compared with {places}")
