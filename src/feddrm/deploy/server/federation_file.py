"""``federation.yaml`` in the server's folder, as far as it says who takes part in which run.

This much can be read without torch. ``federation_settings.py`` has all settings, and checks them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from feddrm.errors import SettingError
from feddrm.io.text import read_config
from feddrm.typed_settings import typed

CONFIG = "federation.yaml"
FIRST_RUN = "first"


class RunMembers(NamedTuple):
    """The name of the current run, and its sites."""

    run: str
    clients: tuple[str, ...]


def read_federation(folder: Path) -> dict[str, Any]:
    """All values of the file, unchecked but for the run and the list of sites."""
    path = folder / CONFIG
    values = read_config(path)
    if not isinstance(values.get("clients"), list):
        raise SettingError(f"{path}: 'clients' must list the names of the sites")
    try:
        members = typed(RunMembers, {name: values.get(name, FIRST_RUN) for name in RunMembers._fields})
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from error
    return {**values, **members, "clients": tuple(members["clients"])}


def read_members(folder: Path) -> RunMembers:
    """The current run and its sites."""
    values = read_federation(folder)
    return RunMembers(values["run"], values["clients"])
