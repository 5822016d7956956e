"""A group of commands that imports the module of a command when that command is needed, and no other."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import typer
import typer.core
import typer.main

if TYPE_CHECKING:  # newer versions of typer have their own copy of click and do not install it
    import click


class LazyGroup(typer.core.TyperGroup):
    """Builds its commands one by one. To build all of them takes longer than most commands take to answer.

    ``places`` says where each command is defined: ``train:evaluate`` is the function ``evaluate`` of
    ``feddrm.cli.train``, ``data:app`` a group there.
    """

    places: ClassVar[Mapping[str, str]]
    command_classes: ClassVar[Mapping[str, type[typer.core.TyperCommand]]] = {}  # where it is not typer's own

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands(self.places, self.command_classes)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        # Not commands.get: it would take a KeyError in a module that is imported for an unknown command.
        return self.commands[cmd_name] if cmd_name in self.commands else None  # noqa: SIM401


class _Commands(UserDict[str, Any]):
    """Commands by name. ``data`` has the place of a command until it is asked for."""

    def __init__(self, places: Mapping[str, str], command_classes: Mapping[str, type[typer.core.TyperCommand]]) -> None:
        super().__init__(places)
        self.command_classes = command_classes

    def __getitem__(self, name: str) -> click.Command:
        place = self.data[name]
        if isinstance(place, str):
            self.data[name] = _build(name, place, self.command_classes.get(name))
        command: click.Command = self.data[name]
        return command


def _build(name: str, place: str, kind: type[typer.core.TyperCommand] | None) -> click.Command:
    module, _, attribute = place.partition(":")
    target = getattr(import_module(f"feddrm.cli.{module}"), attribute)
    if isinstance(target, typer.Typer):
        group = typer.main.get_group(target)
        group.name = name
        return group
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    single.command(name, cls=kind)(target)
    return typer.main.get_command(single)
