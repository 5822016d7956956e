"""Basis functions as a feature: raw units, float64, no observation in an error."""

from __future__ import annotations

import numpy as np
import torch

from feddrm.drm.basis import evaluate_basis
from feddrm.router.features.base import Recipe, extract
from feddrm.router.features.basis_functions import BasisFeature
from refusal import refused

X = torch.tensor([[0.5, 9.0, 1.0], [-0.5, 9.0, 2.0]])
FEATURE = BasisFeature("gamma", columns=(2, 0), centre=(0.0, 50.0), scale=(1.0, 10.0))


def test_rows_are_the_basis_of_raw_columns_in_double_precision() -> None:
    rows = extract(Recipe((FEATURE,)), None, {}, X)["basis"]
    assert rows.dtype == torch.float64
    np.testing.assert_array_equal(rows, evaluate_basis("gamma", [[1.0, 55.0], [2.0, 45.0]]))


def test_a_recipe_with_it_survives_a_message() -> None:
    assert Recipe.of([{**FEATURE.__dict__, "name": "basis", "columns": [2, 0]}]) == Recipe((FEATURE,))
    assert Recipe.of(Recipe((FEATURE,)).as_list()) == Recipe((FEATURE,))


def test_an_error_names_no_observation() -> None:
    with refused("the gamma basis has no finite value for some samples") as caught:
        extract(Recipe((FEATURE,)), None, {}, torch.tensor([[0.5, 9.0, -123.0]]))
    assert "123" not in str(caught.value)


def test_it_routes_no_query_and_needs_a_table() -> None:
    assert BasisFeature().unfit((3,), None) == "it names no columns"
    assert FEATURE.unfit((1, 8, 8), None) == "samples are no rows of a table"
