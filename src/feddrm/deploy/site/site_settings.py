"""A site's own settings: ``site.yaml`` in its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from feddrm.data.sources.csv_tables import AUTO
from feddrm.deploy.privacy import PrivacyDemand
from feddrm.deploy.site.floors import Floors
from feddrm.deploy.site.site_status import CONFIG
from feddrm.deploy.wire.masks import FEWEST_SITES
from feddrm.errors import SettingError
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
        unknown = [key for key in values if key not in cls.__dataclass_fields__]
        missing = [key for key in ("name", "server", "data") if not values.get(key)]
        if unknown or missing:
            reason = f"no setting '{unknown[0]}'" if unknown else f"'{missing[0]}' is missing"
            raise SettingError(f"{path}: {reason} (there are: {', '.join(cls.__dataclass_fields__)})")
        if not isinstance(values["data"], dict):
            raise SettingError(f"{path}: data '{values['data']}' must be a setting like 'folder: PATH' (see the file)")
        if not float(values.get("poll_seconds", 1)) > 0:
            raise SettingError(f"{path}: poll_seconds={values['poll_seconds']}: give seconds above zero")
        if values.get("privacy") is not None:
            try:
                PrivacyDemand(**known_fields(PrivacyDemand, values["privacy"], "privacy")).check()
            except (TypeError, SettingError) as error:
                raise SettingError(f"{path}: privacy: {error} (as in 'privacy: {{clip: 1, noise: 3}}')") from error
            if values["data"].get("schema") == AUTO:
                raise SettingError(
                    f"{path}: 'schema: {AUTO}' sends sums that privacy does not cover: give a schema file"
                )
        _check_secure_aggregation(path, values)
        try:
            values["share"] = Sharing(**known_fields(Sharing, dict(values.get("share") or {}), "share"))
        except (TypeError, ValueError, SettingError) as error:
            raise SettingError(f"{path}: share: {error} (as in 'share: {{metrics: false}}')") from error
        values["floors"] = _read_floors(path, values.get("floors"), values["share"])
        try:
            torch.empty(0, device=values.get("device", "cpu"))
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise SettingError(
                f"{path}: device '{values['device']}' cannot be used here ({reason}): use cpu"
            ) from error
        return cls(**values)


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


def _check_secure_aggregation(path: Path, values: dict[str, Any]) -> None:
    required, fewest = values.get("require_secure_aggregation", False), values.get("fewest_sites", FEWEST_SITES)
    if not isinstance(required, bool):
        raise SettingError(f"{path}: require_secure_aggregation={required!r}: give true or false")
    if not isinstance(fewest, int) or fewest < FEWEST_SITES:
        raise SettingError(
            f"{path}: fewest_sites={fewest!r}: give a whole number from {FEWEST_SITES} up: of two sites, each would "
            "know the other's value from the sum"
        )
    if required and values["data"].get("schema") == AUTO:
        raise SettingError(f"{path}: 'schema: {AUTO}' sends sums of this site alone: give a schema file")
