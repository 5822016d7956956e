"""The choices around the class heads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from feddrm.router import Recipe, RouterSettings
from feddrm.router.fit.cohort import Facts
from feddrm.router.fit.fit_heads import JOINT_WORK, head_candidates, joint_left_out


def test_heads_try_the_routers_recipe_the_projection_and_all_features() -> None:
    base, measured = Recipe.parse("colour"), Recipe.parse("raw+multiscale+colour+hidden")
    assert head_candidates(base, measured) == ["colour", "colour+hidden", "raw+multiscale+colour+hidden"]
    assert head_candidates(base, base) == ["colour"]


@pytest.mark.parametrize(("joint", "wanted"), [(True, True), (False, False), (None, None)])
def test_the_joint_model_is_fitted_where_asked_or_affordable(joint: bool | None, wanted: bool | None) -> None:
    facts = Facts(("oslo", "lima"), (600, 400), ("a", "b"), (3,), ((), ()))
    cohort: Any = SimpleNamespace(facts=facts, crops=1, like=torch.empty(0))
    affordable = int(JOINT_WORK["cpu"] / (1000 * 2 * 2))
    for width, small in ((affordable, True), (affordable + 1, False)):
        left_out = joint_left_out(cohort, width, RouterSettings(joint=joint))
        assert (left_out is None) is (small if wanted is None else wanted)


def test_a_joint_model_that_is_too_large_is_left_out_with_a_line_that_says_so() -> None:
    facts = Facts(("oslo", "lima"), (600, 400), ("a", "b"), (3,), ((), ()))
    cohort: Any = SimpleNamespace(facts=facts, crops=1, like=torch.empty(0))
    assert joint_left_out(cohort, 3, RouterSettings(part_bytes=8 * 4**2)) is None
    line = joint_left_out(cohort, 3, RouterSettings(part_bytes=8 * 4**2 - 1))
    assert line is not None
    assert line.startswith("joint model of 4 pairs of client and class: left out")
    assert "part_bytes" in line
