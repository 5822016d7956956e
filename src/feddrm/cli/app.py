"""The ``feddrm`` command: all commands, and the one place where an error becomes one line and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import click
import typer
import typer.core

from feddrm._version import __version__
from feddrm.cli import bench, data, deploy, doctor, drm, feedback, fit, paper, report, router, serve, train, tune
from feddrm.cli.data_options import PluginCommand
from feddrm.cli.output import JsonFlag, print_json, print_table
from feddrm.errors import INTERRUPTED, FeddrmError
from feddrm.plugins import load_configured
from feddrm.registry import built_in

_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # before 8.2, click prints the help itself
typer.core.HAS_RICH = False  # with rich, typer escapes brackets in help texts that rich does not print

app = typer.Typer(
    name="feddrm",
    help="Federated learning that routes every new query to the client best equipped for it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data.app, name="data")
app.add_typer(router.app, name="router")
app.add_typer(bench.app, name="bench")
app.add_typer(drm.app, name="drm")
app.add_typer(paper.app, name="paper")
app.add_typer(deploy.app, name="deploy")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"feddrm {__version__}")
        raise typer.Exit


@app.callback()
def feddrm(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning that routes every new query to the client best equipped for it."""


@app.command(cls=PluginCommand)
def datasets(json: JsonFlag = False) -> None:
    """List the datasets.

    Example: feddrm datasets
    """
    _list("feddrm.data", "Dataset", "data/datasets", json)


@app.command(cls=PluginCommand)
def models(json: JsonFlag = False) -> None:
    """List the networks.

    Example: feddrm models
    """
    _list("feddrm.models", "Model", "models", json)


@app.command(cls=PluginCommand)
def methods(json: JsonFlag = False) -> None:
    """List the methods.

    Example: feddrm methods
    """
    _list("feddrm.methods", "Method", "methods", json)


app.command(cls=PluginCommand)(train.train)
app.command(cls=PluginCommand)(fit.fit)
app.command(cls=PluginCommand)(tune.tune)
app.command(cls=PluginCommand)(train.evaluate)
app.command()(train.demo)
app.command(cls=PluginCommand)(report.report)
app.command(name="fit-router", cls=PluginCommand)(router.fit_router)
app.command(cls=PluginCommand)(router.route)
app.command(cls=PluginCommand)(router.predict)
app.command(cls=PluginCommand)(serve.serve)
app.command(name="serve-client", cls=PluginCommand)(serve.serve_client)
app.command(name="serve-key")(serve.serve_key)
app.command(name="serve-promote")(feedback.serve_promote)
app.command(name="serve-rollback")(feedback.serve_rollback)
app.command()(feedback.outcomes)
app.command(cls=PluginCommand)(feedback.replay)
app.command()(serve.query)
app.command()(doctor.doctor)


def _list(module: str, root: str, source: str, json: bool) -> None:
    """Print a family. It is imported only if a plugin, which may add to it, has done so."""
    for line in load_configured():
        print(f"feddrm: warning: {line}", file=sys.stderr)
    rows = built_in(source)
    if module in sys.modules:
        rows |= {name: member.summary() for name, member in getattr(sys.modules[module], root).family.items()}
    if json:
        print_json(dict(sorted(rows.items())))
    else:
        print_table(["name", "what it is"], sorted(rows.items()))


def main() -> None:
    """Run the command line. A user's mistake is one line on standard error, never a stack trace."""
    try:
        code = app(prog_name="feddrm", standalone_mode=False)  # also by python -m: shell completion depends on the name
        sys.stdout.flush()  # so that a full disk raises here, not at exit
        if code == INTERRUPTED:  # typer turned the KeyboardInterrupt into this code
            _print_error("interrupted", INTERRUPTED)
    except FeddrmError as error:
        code = _print_error(str(error), error.exit_code)
    except _NO_ARGUMENTS as error:  # its message is the help text
        print(error.format_message(), file=sys.stderr)
        code = 2
    except click.UsageError as error:
        where = f" (see: {error.ctx.command_path} --help)" if error.ctx else ""
        code = _print_error(error.format_message() + where, 2)
    except click.ClickException as error:
        code = _print_error(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = _print_error("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader (head, less) has closed the pipe
        sys.stderr.close()
        code = 0
    except OSError as error:
        if error.filename is not None:  # not standard output: a bug, the command should have raised a FeddrmError
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards the rest of the buffer
        code = _print_error(f"cannot write the output ({error.strerror}): free the disk or write elsewhere", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _print_error(text: str, code: int) -> int:
    """Print an error as one line; the exit code is returned."""
    one_line = " ".join(text.split())
    print(f"feddrm: error: {one_line}", file=sys.stderr)
    return code
