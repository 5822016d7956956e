"""Recipes: named training settings that are filled in where a run is given none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feddrm.engine.schedule import Plan
from feddrm.errors import SettingError
from feddrm.registry import check_choice

SMALL = {"rounds": 40, "batch_size": 32, "lr": 0.05}  # tables and small images, of which the paper has none
# The settings in which a recipe differs from Plan, for photographs and for small samples. How they were found:
# docs/recipes.md.
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {"photographs": {}, "small samples": SMALL},
    "tuned": {"photographs": {"lr": 0.3, "clip": 1.0}, "small samples": SMALL},
}
DEFAULT = "tuned"


def check_recipe(recipe: str | None, given: Mapping[str, Any]) -> None:
    """Refuse a recipe that does not exist, or that could change nothing."""
    if recipe is None:
        return
    check_choice("recipe", recipe, RECIPES)
    if _is_whole(given):
        raise SettingError(f"recipe={recipe}: every training setting is given already: leave out the recipe")


def fill_in(given: Mapping[str, Any], small: bool, recipe: str | None = None) -> Plan:
    """The plan of the given settings, with the recipe's for the others."""
    check_recipe(recipe, given)
    if _is_whole(given):
        return Plan(**given)
    return Plan(**{**RECIPES[recipe or DEFAULT]["small samples" if small else "photographs"], **given})


def _is_whole(given: Mapping[str, Any]) -> bool:
    """Whether the settings are those of a run's ``config.yaml``, which leaves out clip and warm-up if they are off."""
    return Plan().as_dict().keys() <= given.keys()
