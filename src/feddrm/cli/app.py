"""The ``feddrm`` command: its verbs, and one place where mistakes become one line."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import click
import typer
import typer.core

from feddrm._version import __version__
from feddrm.cli import bench, data, deploy, drm, paper, serve
from feddrm.cli import report as reports
from feddrm.cli import router as routing
from feddrm.cli import train as training
from feddrm.cli.output import JsonFlag, print_json, print_table
from feddrm.errors import INTERRUPTED, FeddrmError

_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # click before 8.2 prints the help itself
typer.core.HAS_RICH = False  # with rich it escapes brackets in help even where rich does not print it

app = typer.Typer(
    name="feddrm",
    help="Federated learning that guides every new query to the client best equipped for it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data.app, name="data")
app.add_typer(routing.app, name="router")
app.add_typer(bench.app, name="bench")
app.add_typer(drm.app, name="drm")
app.add_typer(paper.app, name="paper")
app.add_typer(deploy.app, name="deploy")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"feddrm {__version__}")
        raise typer.Exit


@app.callback()
def feddrm(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Federated learning that guides every new query to the client best equipped for it."""


@app.command()
def datasets(json: JsonFlag = False) -> None:
    """List the datasets.

    Example: feddrm datasets
    """
    from feddrm.data import Dataset

    _list(Dataset.family, json)


@app.command()
def models(json: JsonFlag = False) -> None:
    """List the networks.

    Example: feddrm models
    """
    from feddrm.models import Model

    _list(Model.family, json)


@app.command()
def methods(json: JsonFlag = False) -> None:
    """List the methods.

    Example: feddrm methods
    """
    from feddrm.methods import Method

    _list(Method.family, json)


app.command()(training.train)
app.command()(training.evaluate)
app.command()(training.demo)
app.command()(reports.report)
app.command(name="fit-router")(routing.fit_router)
app.command()(routing.route)
app.command()(serve.serve)
app.command(name="serve-client")(serve.serve_client)
app.command(name="serve-key")(serve.serve_key)
app.command()(serve.query)


def _list(family: dict[str, type], json: bool) -> None:
    rows = {name: member.summary() for name, member in family.items()}  # type: ignore[attr-defined]
    if json:
        print_json(rows)
    else:
        print_table(["name", "what it is"], rows.items())


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error, never a stack trace."""
    try:
        code = app(prog_name="feddrm", standalone_mode=False)  # by python -m too: completion goes by the name
        sys.stdout.flush()  # a full disk shows here, not after the end
        if code == INTERRUPTED:  # typer has swallowed the KeyboardInterrupt
            _complain("interrupted", INTERRUPTED)
    except FeddrmError as error:
        code = _complain(str(error), error.exit_code)
    except _NO_ARGUMENTS as error:  # help, not a mistake's one line
        print(error.format_message(), file=sys.stderr)
        code = 2
    except click.UsageError as error:
        where = f" (see: {error.ctx.command_path} --help)" if error.ctx else ""
        code = _complain(error.format_message() + where, 2)
    except click.ClickException as error:
        code = _complain(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        sys.stderr.close()
        code = 0
    except OSError as error:
        if error.filename is not None:  # a file of the command's own, which should have been a FeddrmError
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer goes nowhere
        code = _complain(f"cannot write the output ({error.strerror}): free the disk or write elsewhere", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(text: str, code: int) -> int:
    one_line = " ".join(text.split())
    print(f"feddrm: error: {one_line}", file=sys.stderr)
    return code
