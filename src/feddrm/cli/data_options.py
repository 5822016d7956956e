"""Options that several commands share: those that select a federation, ``--set`` and ``--plugin``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
import typer.core

from feddrm.errors import SettingError
from feddrm.plugins import load_plugin

if TYPE_CHECKING:
    from feddrm.data import Federation

DatasetName = Annotated[str, typer.Argument(metavar="DATASET", help="The name of a dataset, from 'feddrm datasets'.")]
Clients = Annotated[int | None, typer.Option(help="The number of clients.")]
Partition = Annotated[str | None, typer.Option(help="How samples are divided by label: iid, dirichlet or shards.")]
Alpha = Annotated[float | None, typer.Option(help="The Dirichlet parameter. Small: clients have few classes.")]
Shards = Annotated[int | None, typer.Option(help="The number of shards per client (for partition shards).")]
Shift = Annotated[str | None, typer.Option(help="The covariate shift: none, low, mid, high or pool.")]
Seed = Annotated[int | None, typer.Option(help="The seed of the division (the paper uses 2025).")]
DataDir = Annotated[str | None, typer.Option(help="The folder with the dataset's files, searched before FEDDRM_DATA.")]
Download = Annotated[bool, typer.Option("--download", help="Download missing files.")]
Extra = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of the dataset, for example --set path=scans."),
]


def open_federation(name: str, extra: Sequence[str] | None, **given: Any) -> Federation:
    """Load a dataset with the given options. The others keep their defaults."""
    from feddrm.data import load

    settings = given_settings(**given) | keyed_settings(extra)
    check_partition(settings.get("partition"), given.get("alpha"), given.get("shards"))
    return load(name, **settings)


def check_partition(partition: str | None, alpha: float | None, shards: int | None) -> None:
    """Raise an error for an option that the partition would ignore. Without a name, the partition is Dirichlet."""
    if shards is not None and partition in (None, "dirichlet", "iid"):
        raise SettingError(f"--shards {shards} is for --partition shards: give both, or neither")
    if alpha is not None and partition in ("shards", "iid"):
        raise SettingError(f"--alpha {alpha} is for --partition dirichlet: give both, or leave --alpha out")


def given_settings(**options: Any) -> dict[str, Any]:
    """The options that were given: those that are neither None nor, for flags, False."""
    return {key: value for key, value in options.items() if value is not None and value is not False}


def keyed_settings(extra: Sequence[str] | None) -> dict[str, str]:
    """``KEY=VALUE`` words as settings. Values stay text: the types of the fields decide whether 1 is a number."""
    settings: dict[str, str] = {}
    for item in extra or ():
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise SettingError(f"--set {item!r}: write it as KEY=VALUE")
        if (name := key.replace("-", "_")) in settings:
            raise SettingError(f"--set {name} is given twice: give it once, several values as a list, {name}=[a,b]")
        settings[name] = value
    return settings


def _load(context: click.Context, _: click.Parameter, paths: tuple[str, ...]) -> None:
    if not context.resilient_parsing:  # a shell that completes words executes nothing
        for path in paths:
            load_plugin(path)


class PluginCommand(typer.core.TyperCommand):
    """A command with ``--plugin``: the files are executed before the command, and in no other case."""

    def __init__(self, *words: Any, **settings: Any) -> None:
        super().__init__(*words, **settings)
        option = click.Option(
            ["--plugin"],
            multiple=True,
            metavar="FILE",
            expose_value=False,
            callback=_load,
            help="Python file with a method, model or dataset of your own; it is executed. Repeatable.",
        )
        self.params.append(option)
