"""A site's own settings: ``site.yaml`` in its folder."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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
from feddrm.io.text import read_config
from feddrm.registry import known_fields


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
        values["privacy"] = _read_privacy(path, values.get("privacy"))
        values["share"] = _read_share(path, values.get("share"))
        values["floors"] = _read_floors(path, values.get("floors"), values["share"])
        try:
            settings = cls(**known_fields(cls, values, "site"))
            settings.check()
        except FeddrmError as error:
            raise SettingError(f"{path}: {error}") from error
        return settings

    def check(self) -> None:
        """Refuse settings that cannot be, or that let out more than others of them allow."""
        check_site_name(self.name)
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
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise SettingError(f"device '{self.device}' cannot be used here ({reason}): use cpu") from error


def _read_privacy(path: Path, given: Any) -> dict[str, float] | None:
    if given is None:
        return None
    try:
        demand = known_fields(PrivacyDemand, dict(given), "privacy")
        PrivacyDemand(**demand).check()
    except (TypeError, ValueError, SettingError) as error:
        raise SettingError(f"{path}: privacy: {error} (as in 'privacy: {{clip: 1, noise: 3}}')") from error
    return demand


def _read_share(path: Path, given: Any) -> Sharing:
    try:
        return Sharing(**known_fields(Sharing, dict(given or {}), "share"))
    except (TypeError, ValueError, SettingError) as error:
        raise SettingError(f"{path}: share: {error} (as in 'share: {{metrics: false}}')") from error


def _read_floors(path: Path, given: Any, share: Sharing) -> Floors:
    try:
        floors = Floors(**known_fields(Floors, dict(given or {}), "floors"))
        floors.check()
    except (TypeError, ValueError, SettingError) as error:
        raise SettingError(f"{path}: floors: {error} (as in 'floors: {{per_class: 5, per_sum: 20}}')") from error
    if floors.is_set and share.features:
        raise SettingError(
            f"{path}: 'share: {{features: true}}' lets single samples' features out: remove it, or floors"
        )
    return floors
