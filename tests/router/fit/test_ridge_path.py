"""The path of ridge strengths."""

from __future__ import annotations

import pytest
import torch

from feddrm.router.fit.ridge_path import RidgePath


@pytest.mark.parametrize(
    ("losses", "kept", "tried"),
    [
        ((5, 5, 3, 4, 1), 2, 4),  # the first two so strong that nothing moved; ends at the first worse one
        ((5, 3, 3, 3), 1, 4),  # of equal ones the strongest
        ((5, 6), 0, 2),
    ],
)
def test_the_path_of_strengths(losses: tuple[int, ...], kept: int, tried: int) -> None:
    path = RidgePath([10.0**-k for k in range(5)], folds=1)
    for number, loss in enumerate(losses):
        if path.ridge is None:
            break
        assert path.ridge == 10.0**-number
        score = {"count": torch.tensor(2.0), "loss": torch.tensor(2.0 * loss), "correct": torch.tensor(1.0)}
        path.take([torch.full((1, 1), float(number))], [score])
    assert len(path.chosen.path) == tried
    assert (path.chosen.ridge, path.chosen.loss) == (10.0**-kept, losses[kept])
    assert float(path.chosen.folds[0]) == kept
