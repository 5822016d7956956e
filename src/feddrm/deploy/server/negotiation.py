"""What sites hold and what the consortium has settled on, brought together into one brief."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feddrm.data.sources.labelled_samples import SPELLING_REMEDY, spelling_variants
from feddrm.deploy.privacy import Demand, Privacy
from feddrm.deploy.server.federation_settings import ServerSettings
from feddrm.deploy.site.site_dataset import in_order
from feddrm.deploy.wire.run_spec import RunSpec, stand_in
from feddrm.engine import Plan
from feddrm.errors import FeddrmError
from feddrm.runs.config import resolve


def make_brief(settings: ServerSettings, told: Mapping[str, Mapping[str, Any]]) -> RunSpec:
    """From what the sites hold and what the consortium has settled on."""
    first_name, first = next(iter(told.items()))
    for name, other in told.items():
        for key in ("shape", "dtype", "columns", "crop", "version"):
            if other[key] != first[key]:
                raise FeddrmError(
                    f"{name} has {key} {other[key]}, {first_name} {first[key]}: bring all sites to one form"
                )
        if other["scale"] != first["scale"] and settings.router and settings.privacy is None:
            raise FeddrmError(
                f"{name} scales its pixels by {other['scale']}, {first_name} by {first['scale']}: a router could not "
                "tell whose a raw query is: scale all alike (dataset retina: 'normalise: common' in every site.yaml), "
                "or fit none ('router: false' in federation.yaml)"
            )
        if other["privacy"] is not None:  # it would answer no letter of such a run
            Demand(**other["privacy"]).admit(settings.privacy, name)
    shared_names = all(other["classes"] == first["classes"] for other in told.values())
    union = {label for other in told.values() for label in other["classes"]}
    classes = tuple(first["classes"]) if shared_names else in_order(union)
    if not shared_names and (pair := spelling_variants(classes)) is not None:
        here, there = (next(name for name, other in told.items() if label in other["classes"]) for label in pair)
        raise FeddrmError(f"the classes '{pair[0]}' at {here} and '{pair[1]}' at {there} {SPELLING_REMEDY}")
    if len(classes) < 2:
        raise FeddrmError(f"all sites together have one class ({', '.join(classes)}): there is nothing to tell apart")
    names = tuple(told)
    config = resolve(
        stand_in(names, classes, first["shape"], first["dtype"]), **{**settings.training, "device": "cpu", "data": {}}
    )
    if settings.privacy is not None:
        Privacy(**settings.privacy).check(config.method)
    values = config.as_dict()
    return RunSpec.of(
        {
            "run": settings.run,
            "names": names,
            "sizes": [other["samples"] for other in told.values()],
            "classes": classes,
            "shape": first["shape"],
            "dtype": first["dtype"],
            "columns": first["columns"],
            "crop": first["crop"],
            "scale": first["scale"],
            "method": values["method"],
            "model": values["model"],
            "plan": {key: values[key] for key in Plan.__dataclass_fields__},
            "privacy": None if settings.privacy is None else dict(settings.privacy),
        }
    )
