"""Options that say which federation to load, shared by every command that loads one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddrm.errors import SettingError

if TYPE_CHECKING:
    from feddrm.data import Federation

DatasetName = Annotated[str, typer.Argument(metavar="DATASET", help="A name from 'feddrm datasets'.")]
Clients = Annotated[int | None, typer.Option(help="Number of clients.")]
Partition = Annotated[str | None, typer.Option(help="How labels are divided: iid, dirichlet, shards.")]
Alpha = Annotated[float | None, typer.Option(help="Dirichlet parameter: small is skewed.")]
Shards = Annotated[int | None, typer.Option(help="Shards per client (partition shards).")]
Shift = Annotated[str | None, typer.Option(help="Covariate shift: none, low, mid, high, pool.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the division (the paper's: 2025).")]
DataDir = Annotated[str | None, typer.Option(help="Folder with the dataset's files, before FEDDRM_DATA.")]
Download = Annotated[bool, typer.Option("--download", help="Allow fetching missing files.")]
Extra = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of the dataset, e.g. --set path=scans."),
]


def open_federation(name: str, extra: Sequence[str] | None, **given: Any) -> Federation:
    """Load a dataset with the options that were given; what was not given keeps its default."""
    from feddrm.data import load

    settings = given_settings(**given) | keyed_settings(extra)
    check_partition(settings.get("partition"), given.get("alpha"), given.get("shards"))
    return load(name, **settings)


def check_partition(partition: str | None, alpha: float | None, shards: int | None) -> None:
    """Refuse an option that this partition would ignore; where none is named, it is Dirichlet."""
    if shards is not None and partition in (None, "dirichlet", "iid"):
        raise SettingError(f"--shards {shards} is for --partition shards: give both, or neither")
    if alpha is not None and partition in ("shards", "iid"):
        raise SettingError(f"--alpha {alpha} is for --partition dirichlet: give it with that, or leave it out")


def given_settings(**options: Any) -> dict[str, Any]:
    """Options that were given; the others are None, or False for flags."""
    return {key: value for key, value in options.items() if value is not None and value is not False}


def keyed_settings(extra: Sequence[str] | None) -> dict[str, str]:
    """``KEY=VALUE`` words as settings, the values as they stand: their fields say whether 1 is a number or a name."""
    settings: dict[str, str] = {}
    for item in extra or ():
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise SettingError(f"--set {item!r}: write it as KEY=VALUE")
        if (name := key.replace("-", "_")) in settings:
            raise SettingError(f"--set {name} is given twice: give it once, several values as a list, {name}=[a,b]")
        settings[name] = value
    return settings
