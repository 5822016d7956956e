"""The command ``feddrm doctor``: whether this machine has what feddrm needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddrm.cli.data_options import DataDir
from feddrm.cli.output import JsonFlag, print_findings, print_json
from feddrm.errors import FeddrmError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feddrm.checks.findings import Finding


def doctor(
    runs: Annotated[Path, typer.Option(help="The folder in which runs will be written.")] = Path("runs"),
    data_dir: DataDir = None,
    certificates: Annotated[
        Path | None, typer.Option(help="Also look at the dates of all certificates (.crt) in this folder.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Check this machine: one line each, with the remedy. It changes nothing, and does not load torch.

    Python, torch and the other packages, extras, cores, GPU, datasets and their checksums, the folder of runs, disk,
    clock, ports, certificates. A note names something optional. The exit code is 1 if there is a problem.

    Example: feddrm doctor --runs runs
    """
    from feddrm.checks import data_check, machine
    from feddrm.checks.findings import PROBLEM, collect

    steps = {
        "Python": machine.check_python,
        "extras": machine.check_extras,
        "cores": machine.check_cores,
        "GPU": machine.check_gpu,
        "data": lambda: data_check.check_data(None if data_dir is None else Path(data_dir)),
        "runs": lambda: machine.check_runs(runs),
        "ports": machine.check_ports,
    }
    if certificates is not None:
        steps["certificates"] = lambda: _certificates(certificates)
    findings = collect(steps)
    if json:
        print_json([vars(finding) for finding in findings])
    else:
        print_findings(findings)
    if any(finding.level == PROBLEM for finding in findings):
        raise typer.Exit(1)


def _certificates(folder: Path) -> Iterator[Finding]:
    from feddrm.checks.certificate_finding import certificate_finding

    paths = sorted(folder.glob("*.crt"))
    if not paths:
        raise FeddrmError(f"--certificates {folder}: there is no .crt in it: give a folder of 'feddrm deploy init'")
    for path in paths:
        yield certificate_finding(path, "renew it ('feddrm deploy renew'), or get a new one from its owner")
