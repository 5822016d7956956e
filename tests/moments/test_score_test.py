from __future__ import annotations

import numpy as np
import pytest

from feddrm.drm import DensityRatioModel
from feddrm.drm.inference import homogeneity
from feddrm.drm.inference.hypothesis_tests import Testing
from feddrm.moments.score_test import SampleMoments, score_test


def moments(*samples: np.ndarray) -> tuple[SampleMoments, ...]:
    return tuple(SampleMoments.of(sample) for sample in samples)


def test_the_statistic_is_the_sample_size_times_the_r_squared_of_the_population_on_the_columns() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(300, 3)), rng.normal(0.2, 1.3, size=(80, 3))
    found = score_test(*moments(first, second))
    owner = np.repeat([0.0, 1.0], [300, 80])
    design = np.column_stack([np.ones(380), np.vstack([first, second])])
    fitted = design @ np.linalg.lstsq(design, owner, rcond=None)[0]
    expected = 380 * (1 - ((owner - fitted) ** 2).sum() / ((owner - owner.mean()) ** 2).sum())
    assert found.statistic == pytest.approx(expected)
    assert found.degrees == 3


def test_it_is_close_to_the_likelihood_ratio_test_of_the_density_ratio_model() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2000, 2)), rng.normal(0.08, 1, size=(2000, 2))
    fit = DensityRatioModel(basis="identity").fit([first, second])
    ratio = homogeneity(fit, Testing(correction="none"))
    found = score_test(*moments(first, second))
    assert found.statistic == pytest.approx(ratio.statistic, rel=0.01)
    assert found.p_value == pytest.approx(ratio.p_value, rel=0.05)


def test_its_level_is_kept_and_units_do_not_matter() -> None:
    rng = np.random.default_rng(2)
    reference = rng.exponential(size=(1000, 4))
    samples = [rng.exponential(size=(100, 4)) for _ in range(1000)]
    p_values = np.array([score_test(*moments(reference, sample)).p_value for sample in samples])
    assert (p_values < 0.05).mean() == pytest.approx(0.05, abs=0.03)  # one reference for all: they are dependent
    scale = np.array([1e-6, 1, 1e6, 3])
    first = score_test(*moments(reference, samples[0]))
    assert score_test(*moments(reference * scale + 5, samples[0] * scale + 5)).statistic == pytest.approx(
        first.statistic, rel=1e-3
    )


def test_a_column_that_depends_on_others_or_is_constant_adds_no_degree() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(300, 2)), rng.normal(size=(50, 2))
    wider = [np.column_stack([rows, rows.sum(1), np.ones(len(rows))]) for rows in (first, second)]
    plain, more = score_test(*moments(first, second)), score_test(*moments(*wider))
    assert more.degrees == plain.degrees == 2
    assert more.statistic == pytest.approx(plain.statistic)


@pytest.mark.parametrize("constant", [0.1, -3.3, 1e8 + 0.1, 0.0])
def test_the_rounding_of_a_constant_column_is_no_difference(constant: float) -> None:
    rng = np.random.default_rng(4)
    first, second = rng.normal(size=(1000, 1)), rng.normal(size=(537, 1))
    wider = [np.column_stack([rows, np.full(len(rows), constant)]) for rows in (first, second)]
    plain, more = score_test(*moments(first, second)), score_test(*moments(*wider))
    assert more.degrees == 1
    assert more.statistic == pytest.approx(plain.statistic)
    alone = score_test(*moments(*(rows[:, 1:] for rows in wider)))
    assert (alone.statistic, alone.degrees, alone.p_value) == (0.0, 0, 1.0)
