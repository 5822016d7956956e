"""The reference of all commands, from the program's own help."""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer

from feddrm.cli.app import app
from markdown_table import table


def command_reference() -> str:
    """Every command: what it does, an example, its arguments and options."""
    program = typer.main.get_command(app)
    return "\n\n".join(part for path, command in _commands(program, "feddrm") for part in _parts(path, command)) + "\n"


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, member in command.commands.items():
            if not member.hidden:
                yield from _commands(member, f"{path} {name}")


def _parts(path: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield f"{'##' if path.count(' ') < 2 else '###'} {path}"
    text, _, example = (command.help or "").partition("Example:")
    yield " ".join(text.split())
    if example:
        yield f"```shell\n{' '.join(example.split())}\n```"
    if isinstance(command, click.Group):
        members = [(f"{path} {name}", member.get_short_help_str(200)) for name, member in command.commands.items()]
        linked = [(f"[{name}](#{name.replace(' ', '-')})", what) for name, what in members]
        yield table(("command", "what it does"), linked)
    else:
        yield f"```text\n{command.get_usage(context)}\n```"
        rows = [record for parameter in command.get_params(context) if (record := parameter.get_help_record(context))]
        yield table(("argument or option", "meaning"), [(f"`{names}`", meaning) for names, meaning in rows])
