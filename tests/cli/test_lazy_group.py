from __future__ import annotations

import importlib
from typing import ClassVar

import click
import pytest
import typer.core
import typer.main
from click.testing import CliRunner

from feddrm.cli import lazy_group
from feddrm.cli.lazy_group import LazyGroup


class OwnCommand(typer.core.TyperCommand):
    """A command of another class than typer's."""


class Group(LazyGroup):
    places: ClassVar = {"listings": "listings:methods", "data": "data:app", "gone": "no_such_module:f"}
    command_classes: ClassVar = {"listings": OwnCommand}


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> click.Group:
    app = typer.Typer(cls=Group, add_completion=False, rich_markup_mode=None)
    app.callback()(lambda: None)
    built = typer.main.get_command(app)
    assert isinstance(built, Group)
    return built


def test_only_the_command_that_is_called_is_imported(group: click.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    real = importlib.import_module
    monkeypatch.setattr(lazy_group, "import_module", lambda name: imported.append(name) or real(name))
    assert group.list_commands(click.Context(group)) == ["listings", "data", "gone"]
    assert imported == []
    for _ in range(2):
        assert CliRunner().invoke(group, ["listings", "--help"]).output.startswith("Usage: root listings")
    assert imported == ["feddrm.cli.listings"]


def test_a_command_has_its_class_and_a_group_its_commands(group: click.Group) -> None:
    assert isinstance(group.commands["listings"], OwnCommand)
    below = group.commands["data"]
    assert isinstance(below, typer.core.TyperGroup)
    assert (below.name, "info" in below.commands) == ("data", True)


def test_an_error_in_a_module_is_not_taken_for_an_unknown_command(
    group: click.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy_group, "import_module", lambda _: {}["a bug"])
    assert isinstance(CliRunner().invoke(group, ["listings"]).exception, KeyError)


def test_an_unknown_command_is_a_wrong_call(group: click.Group) -> None:
    result = CliRunner().invoke(group, ["dance"])
    assert result.exit_code == 2
    assert "No such command 'dance'" in result.output
