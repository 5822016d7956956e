"""Options that several commands share: those that select a federation, ``--recipe``, ``--set`` and ``--plugin``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from feddrm.errors import SettingError
from feddrm.plugins import load_plugin
from feddrm.registry import nearest

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
Recipe = Annotated[str | None, typer.Option(help="Settings for what is not given: tuned (the default) or paper.")]
Extra = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="data.KEY=VALUE", help="Any other setting of the dataset, as in data.path=scans."),
]


def open_federation(name: str, extra: Sequence[str] | None, **given: Any) -> Federation:
    """Load a dataset with the given options. The others keep their defaults."""
    from feddrm.data import load

    settings = given_settings(**given) | sectioned_settings(extra, {"data": ()})["data"]
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


def sectioned_settings(
    extra: Sequence[str] | None, sections: Mapping[str, Collection[str]]
) -> dict[str, dict[str, str]]:
    """The settings of every section from ``--set`` words: ``data.KEY=VALUE``, or ``KEY=VALUE`` if one section has KEY.

    ``sections`` has the names of each section's settings; a single one may leave them out. Values stay text: the types
    of the fields decide whether 1 is a number.
    """
    settings: dict[str, dict[str, str]] = {section: {} for section in sections}
    for item in extra or ():
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise SettingError(f"--set {item!r}: write it as {next(iter(sections))}.KEY=VALUE")
        section, dot, name = key.replace("-", "_").partition(".")
        if not dot:
            section, name = _section_of(section, sections), section
        elif section not in sections:
            known = " or ".join(f"{known}.{name}" for known in sections)
            raise SettingError(f"--set {key}=...: there are no settings of '{section}' here: write {known}")
        if name in settings[section]:
            raise SettingError(f"--set {name} is given twice: give it once, several values as a list, {name}=[a,b]")
        settings[section][name] = value
    return settings


def _section_of(key: str, sections: Mapping[str, Collection[str]]) -> str:
    """The section that has a setting of this name."""
    owners = [section for section, names in sections.items() if key in names or len(sections) == 1]
    if len(owners) == 1:
        return owners[0]
    if owners:
        ways = " or ".join(f"{owner}.{key}" for owner in owners)
        raise SettingError(f"--set {key}=...: it could be {ways}: write one of them")
    names = {name for members in sections.values() for name in members}
    raise SettingError(
        f"--set {key}=...: no such setting{nearest(key, names)} (of {', '.join(sections)}): "
        f"write it as {next(iter(sections))}.KEY=VALUE"
    )


def _load(context: typer.Context, _: object, paths: Sequence[str]) -> None:
    if not context.resilient_parsing:  # a shell that completes words executes nothing
        for path in paths:
            load_plugin(path)


class PluginCommand(typer.core.TyperCommand):
    """A command with ``--plugin``: the files are executed before the command, and in no other case."""

    def __init__(self, *words: Any, **settings: Any) -> None:
        super().__init__(*words, **settings)
        option = typer.core.TyperOption(
            param_decls=["--plugin"],
            multiple=True,
            metavar="FILE",
            expose_value=False,
            callback=_load,
            help="Python file with a method, model or dataset of your own; it is executed. Repeatable.",
        )
        self.params.append(option)
