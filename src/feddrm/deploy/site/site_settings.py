"""A site's own settings: ``site.yaml`` in its folder."""

from __future__ import annotations

import math
import re
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from feddrm.data.sources.csv_tables import AUTO
from feddrm.deploy.privacy import PrivacyDemand
from feddrm.deploy.site.floors import Floors
from feddrm.deploy.site.site_status import CONFIG
from feddrm.deploy.wire.masks import FEWEST_SITES
from feddrm.deploy.wire.run_spec import check_site_name
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.text import as_in_yaml, read_config
from feddrm.registry import known_fields

HOST = re.compile(r"[A-Za-z0-9.-]+")
EXAMPLES = {
    "privacy": "{clip: 1, noise: 3}",
    "share": "{metrics: false}",
    "floors": "{per_class: 5, per_sum: 20}",
}


@dataclass(frozen=True)
class Sharing:
    """What a site lets out beside what training and the router need.

    ``metrics``: counts and sums of its answers to test samples. ``features``: of held-out training samples the
    features one by one, which all other sites get and answer.
    """

    metrics: bool = True
    features: bool = False


@dataclass(frozen=True)
class SiteSettings:
    """What only this site decides. ``privacy`` is the least that it demands, whatever the server's run spec says.

    With ``require_secure_aggregation`` it takes part in runs whose server learns sums only. A sum has at least
    ``fewest_sites`` sites.
    """

    name: str
    server: str
    data: dict[str, Any]
    device: str = "cpu"
    insecure: bool = False
    poll_seconds: float = 0.25
    privacy: dict[str, float] | None = None
    share: Sharing = field(default_factory=Sharing)
    floors: Floors = field(default_factory=Floors)
    require_secure_aggregation: bool = False
    fewest_sites: int = FEWEST_SITES

    @classmethod
    def read(cls, folder: Path) -> SiteSettings:
        path = folder / CONFIG
        values = read_config(path)
        if values.pop("resident", True) is not True:  # 'resident: true' was the only other value, and the default
            raise SettingError(f"{path}: 'resident: false' is not supported any more: remove the line")
        if missing := [key for key in ("name", "server", "data") if values.get(key) in (None, "", {})]:
            raise SettingError(f"{path}: '{missing[0]}' is missing (there are: {', '.join(cls.__dataclass_fields__)})")
        if not isinstance(values["data"], dict):
            raise SettingError(f"{path}: data '{values['data']}' must be a setting like 'folder: PATH' (see the file)")
        try:
            for name, kind in (("privacy", PrivacyDemand), ("share", Sharing), ("floors", Floors)):
                if values.get(name) is not None:
                    values[name] = _read_part(name, kind, values[name])
            values["share"] = Sharing(**(values.get("share") or {}))
            values["floors"] = Floors(**(values.get("floors") or {}))
            settings = cls(**known_fields(cls, values, "site"))
            settings.check()
        except FeddrmError as error:
            known = {f.name for kind in (cls, PrivacyDemand, Sharing, Floors) for f in fields(kind)}
            raise SettingError(f"{path}: {as_in_yaml(str(error), known)}") from error
        return settings

    def check(self) -> None:
        """Refuse settings that cannot be, or that let out more than others of them allow."""
        check_site_name(self.name)
        host, _, port = self.server.rpartition(":")
        if not HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise SettingError(f"server={self.server!r}: give host and port, as in server.example.org:8000")
        if not 0 < self.poll_seconds < math.inf:
            raise SettingError(f"poll_seconds={self.poll_seconds:g}: give seconds above zero")
        if self.fewest_sites < FEWEST_SITES:
            raise SettingError(
                f"fewest_sites={self.fewest_sites}: give a whole number from {FEWEST_SITES} up: of two sites, each "
                "would know the other's value from the sum"
            )
        if self.data.get("schema") == AUTO and self.privacy is not None:
            raise SettingError(f"'schema: {AUTO}' sends sums that privacy does not cover: give a schema file")
        if self.data.get("schema") == AUTO and self.require_secure_aggregation:
            raise SettingError(f"'schema: {AUTO}' sends sums of this site alone: give a schema file")
        if self.floors.is_set and self.share.features:
            raise SettingError("'share: {features: true}' lets single samples' features out: remove it, or floors")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise SettingError(f"device '{self.device}' cannot be used here ({reason}): use cpu") from error


def _read_part(name: str, kind: type[Any], given: Any) -> dict[str, Any]:
    """The settings of a part of the file, checked; an error shows how the part is written."""
    try:
        if not isinstance(given, dict):
            raise SettingError(f"{given!r}: give settings")
        values = known_fields(kind, given, name)
        if missing := [f.name for f in fields(kind) if f.default is MISSING and f.name not in values]:
            raise SettingError(f"'{missing[0]}' is missing")
        part = kind(**values)
        if not isinstance(part, Sharing):  # any combination can be
            part.check()
    except SettingError as error:
        raise SettingError(f"{name}: {error} (as in '{name}: {EXAMPLES[name]}')") from error
    return values
