"""The ``feddrm`` command: all commands, and the one place where an error becomes one line and an exit code."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, ClassVar

import typer
import typer.core

from feddrm._version import __version__
from feddrm.cli.data_options import PluginCommand
from feddrm.cli.lazy_group import LazyGroup
from feddrm.errors import INTERRUPTED, FeddrmError
from feddrm.plugins import plugin_failure

_errors: Any = sys.modules[typer.BadParameter.__module__]  # click's, or those of the copy that typer 0.27 has
_NO_ARGUMENTS: Any = getattr(_errors, "NoArgsIsHelpError", ())  # before 8.2, click prints the help itself
typer.core.HAS_RICH = False  # with rich, typer escapes brackets in help texts that rich does not print
WITH_PLUGINS = (
    *("datasets", "models", "methods", "train", "fit", "tune", "evaluate", "report", "fit-router", "route", "predict"),
    *("serve", "serve-client", "replay"),
)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # of a scheduler or a supervisor; of a terminal that closes


class Stopped(KeyboardInterrupt):
    """Raised at a stop signal.

    A KeyboardInterrupt itself may end the process by SIGINT, although it was caught: Python remembers one that has
    passed through ``exec``, which imports use.
    """


class Commands(LazyGroup):
    """All commands, in the order of the help."""

    places: ClassVar = {
        "datasets": "listings:datasets",
        "models": "listings:models",
        "methods": "listings:methods",
        "train": "train:train",
        "fit": "fit:fit",
        "tune": "tune:tune",
        "evaluate": "train:evaluate",
        "demo": "train:demo",
        "report": "report:report",
        "fit-router": "router:fit_router",
        "route": "router:route",
        "predict": "router:predict",
        "serve": "serve:serve",
        "serve-client": "serve:serve_client",
        "serve-key": "serve:serve_key",
        "serve-promote": "feedback:serve_promote",
        "serve-rollback": "feedback:serve_rollback",
        "outcomes": "feedback:outcomes",
        "replay": "feedback:replay",
        "query": "serve:query",
        "doctor": "doctor:doctor",
        "data": "data:app",
        "router": "router:app",
        "bench": "bench:app",
        "drm": "drm:app",
        "paper": "paper:app",
        "deploy": "deploy:app",
    }
    command_classes: ClassVar = dict.fromkeys(WITH_PLUGINS, PluginCommand)


app = typer.Typer(
    name="feddrm",
    cls=Commands,
    help="Federated learning that routes every new query to the client best equipped for it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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


def main() -> None:
    """Run the command line. A user's mistake is one line on standard error, never a stack trace."""
    atexit.register(gc.freeze)  # spares the last search for garbage, which is slow once torch is loaded
    with _stopping_as_ctrl_c() as received:
        code = _run()
    sys.exit(128 + received[0] if received and code == INTERRUPTED else code)


@contextmanager
def _stopping_as_ctrl_c() -> Iterator[list[int]]:
    """Treat stop signals as Ctrl-C, so that work is saved; yields those that came.

    A signal that is ignored, as by nohup, stays so. A server replaces these handlers by its own.
    """
    received: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        raise Stopped

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run() -> int:
    """Run the command that the arguments name; its exit code is returned."""
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
    except _errors.UsageError as error:
        where = f" (see: {error.ctx.command_path} --help)" if error.ctx else ""
        code = _print_error(error.format_message() + where, 2)
    except _errors.ClickException as error:
        code = _print_error(error.format_message(), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        code = _print_error("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader (head, less) has closed the pipe
        sys.stderr.close()
        code = 0
    except Exception as error:
        code = _print_other_error(error)
    return code if isinstance(code, int) else 0


def _print_other_error(error: Exception) -> int:
    """Print the failure of a plugin or of the output. Any other error is a bug: a command raises FeddrmErrors."""
    if (failure := plugin_failure(error)) is not None:
        return _print_error(failure, 1)
    if isinstance(error, OSError) and error.filename is None:
        return _print_system_error(error)
    raise error


def _print_system_error(error: OSError) -> int:
    """Print an error that names no file: of tempfile, which wants a folder when torch is imported, or of the output."""
    if isinstance(error, FileNotFoundError):
        return _print_error(f"{error.strerror}: name a folder that can be written in TMPDIR", 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards the rest of the buffer
    return _print_error(f"cannot write the output ({error.strerror}): free the disk or write elsewhere", 1)


def _print_error(text: str, code: int) -> int:
    """Print an error as one line; the exit code is returned."""
    one_line = " ".join(text.split())
    print(f"feddrm: error: {one_line}", file=sys.stderr)
    return code
