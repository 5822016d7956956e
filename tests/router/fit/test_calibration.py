"""A router's temperature, percentiles and thresholds from held-out samples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddrm.router.fit.calibration import MISSES, STRANGER, calibrate, quantiles
from feddrm.router.fit.local_cohort import LocalHeldOut
from feddrm.rules import RULES


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_quantiles_are_those_of_torch(values: list[float]) -> None:
    x, grid = torch.tensor(values, dtype=torch.float64), torch.linspace(0, 1, 11, dtype=torch.float64)
    torch.testing.assert_close(quantiles(x, grid), torch.quantile(x, grid), rtol=0, atol=1e-12)


def held_out(scale: float) -> LocalHeldOut:
    """Logits of three clients, ``scale`` times those that the samples are drawn from."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(9000, 3, generator=g, dtype=torch.float64)
    origin = torch.multinomial(logits.softmax(1), 1, generator=g)[:, 0]
    rows = torch.randn(9000, 4, generator=g)
    parts = [origin == client for client in range(3)]
    unseen = torch.full((1, 3), torch.nan, dtype=torch.float64)
    return LocalHeldOut(
        [torch.cat([rows[part], 100 + rows[:1]]) for part in parts],
        [torch.cat([scale * logits[part], unseen]) for part in parts],
    )


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_the_temperature_undoes_the_scale_and_unseen_samples_do_not_count(scale: float) -> None:
    calibration = calibrate(held_out(scale), torch.full((3,), 1 / 3, dtype=torch.float64).log())
    assert calibration.temperature == pytest.approx(scale, rel=0.05)
    assert calibration.unlike_above < STRANGER * 50, "the sample that no fit held out is not the strangest"
    assert set(calibration.conformal) == {f"{rule}_{miss}" for rule in RULES for miss in MISSES}
    for rule in RULES:
        assert list(calibration.confidence[rule]) == sorted(calibration.confidence[rule])
        assert calibration.conformal[f"{rule}_0.01"] <= calibration.conformal[f"{rule}_0.2"]
