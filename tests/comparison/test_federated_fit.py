"""Tests of the fit over clients: it equals the pooled one, and its questions are those of a router's fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from feddrm.comparison import FederatedFit, fit_federation
from feddrm.comparison.federated_fit import basis_feature
from feddrm.data import Federation
from feddrm.drm import DensityRatioModel, inference
from feddrm.drm.basis import Floats
from feddrm.drm.inference import Testing
from feddrm.router.fit.cohort import Facts
from feddrm.router.solver.client_statistics import Sample, client_gradient
from feddrm.router.solver.hessian import client_score_scatter
from feddrm.tables.column_kinds import NumberColumn
from feddrm.tables.table_schema import TableSchema
from populations import three
from refusal import refused


def single(x: Floats) -> Floats:
    """The values that a federation keeps of a sample: in single precision."""
    return x.astype(np.float32).astype(np.float64)


def fitted(samples: Mapping[str, Floats], basis: str) -> FederatedFit:
    pairs = {name: (x[:, None], np.arange(len(x)) % 2) for name, x in samples.items()}
    test = {name: (x[:2], y[:2]) for name, (x, y) in pairs.items()}
    return fit_federation(Federation.from_arrays(pairs, test=test, columns=["x"]), basis)


@pytest.mark.parametrize(
    ("basis", "shift"), [("normal", 0.0), ("normal", 40.0), ("gamma", 6.0), ("identity", 0.0), ("polynomial(3)", 20.0)]
)
def test_the_fit_over_clients_is_the_pooled_fit(basis: str, shift: float) -> None:
    samples = {name: x + shift for name, x in three().items()}
    found = fitted(samples, basis)
    fit = DensityRatioModel(basis).fit({name: single(x) for name, x in samples.items()})
    tilts = inference.tilts(fit)
    scale = np.abs(tilts.value).max()
    np.testing.assert_allclose(found.tilts.value, tilts.value, atol=1e-8 * scale)
    np.testing.assert_allclose(found.tilts.error, tilts.error, atol=1e-7 * scale)
    assert found.log_likelihood == pytest.approx(fit.log_likelihood, abs=1e-8)
    assert found.terms == fit.terms
    test = inference.homogeneity(fit, Testing(correction="none"))
    assert found.homogeneity.statistic == pytest.approx(test.statistic, abs=1e-7)
    assert found.homogeneity.degrees == test.degrees
    assert found.steps <= 12


def test_plain_values_name_populations_and_terms() -> None:
    found = fitted(three(), "normal").as_dict()
    assert found["populations"] == {"a": 80, "b": 50, "c": 120}
    assert found["terms"] == ["intercept", "x", "x^2"]
    assert found["tilts"]["a"] == [0, 0, 0]
    assert set(found["homogeneity"]) == {"statistic", "degrees", "p_value"}


def test_the_scatter_of_scores_is_the_covariance_of_single_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    x, point = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((7, 2), (3, 3)))
    sample = Sample(x, torch.ones(7, dtype=torch.int64))
    scores = [client_gradient(sample.rows(torch.tensor([i])), point)["gradient"][1:].flatten() for i in range(7)]
    expected = 7 * torch.cov(torch.stack(scores).T)
    torch.testing.assert_close(client_score_scatter(sample, point, torch.arange(7))["scatter"], expected)


Visits = Mapping[str, tuple[Floats, np.ndarray]]


def of_subjects(visits: Visits, basis: str = "identity", known: bool = True) -> FederatedFit:
    """The fit to a column of values, whose subjects are ``known`` or not."""
    pairs, test = {}, {}
    for name, (x, subject) in visits.items():
        pairs[name] = (x[:, None], np.arange(len(x)) % 2, subject)[: 2 + known]
        test[name] = (np.zeros((2, 1)), np.arange(2), np.array([-1, -2]))[: 2 + known]
    return fit_federation(Federation.from_arrays(pairs, test=test, columns=["x"]), basis)


def test_the_error_of_a_log_odds_ratio_is_that_of_subjects() -> None:
    """Of zeros and ones the tilt is a log odds ratio. Its variance by hand, from what patients differ by in sum."""
    visits = {
        "a": (np.array([1.0, 1, 0, 0, 1, 0, 0, 1, 1, 0]), np.array([7, 7, 7, 2, 2, 2, 2, 5, 5, 9])),
        "b": (np.array([1.0, 1, 1, 0, 1, 1, 0, 1]), np.array([1, 1, 1, 3, 4, 4, 4, 4])),
    }
    found, plain = of_subjects(visits), of_subjects(visits, known=False)
    # a: 5 of 10, patients' sums around 1/2 are 1/2, -1, 1, -1/2. b: 6 of 8, around 3/4 they are 3/4, -3/4, 0.
    by_patient = 4 / 3 * (2 * 0.25 + 2 * 1) / (10 / 4) ** 2 + 3 / 2 * (2 * 9 / 16) / (8 * 3 / 16) ** 2
    by_visit = 10 / 9 * (10 / 4) / (10 / 4) ** 2 + 8 / 7 * (8 * 3 / 16) / (8 * 3 / 16) ** 2
    assert found.tilts.value[1, 1] == pytest.approx(np.log(3), rel=1e-7)
    assert found.tilts.error[1, 1] == pytest.approx(np.sqrt(by_patient), rel=1e-7)
    assert plain.tilts.error[1, 1] == pytest.approx(np.sqrt(by_visit), rel=1e-7)
    assert np.array_equal(found.tilts.value, plain.tilts.value)
    # The test's factor: the variance relative to that of single visits, of as many patients.
    apart = 4 / 3 / (10 / 4) + 3 / 2 / (8 * 3 / 16)
    test = found.homogeneity
    assert (test.correction, test.degrees, test.statistic) == ("subjects", 1, plain.homogeneity.statistic)
    assert test.factor == pytest.approx(by_patient / apart, rel=1e-7)
    assert test.p_value == pytest.approx(chi2.sf(test.statistic / test.factor, 1), rel=1e-7)
    assert found.as_dict()["homogeneity"]["factor"] == test.factor


def correlated(seed: int, patients: int = 30) -> Visits:
    """Patients of two equal populations with one or ten visits, half of whose variance is the patient's own."""
    rng = np.random.default_rng(seed)
    out = {}
    for name in "ab":
        subject = np.repeat(np.arange(patients), rng.choice([1, 10], patients))
        out[name] = ((rng.normal(size=patients)[subject] + rng.normal(size=len(subject))) / np.sqrt(2), subject)
    return out


def test_subjects_with_one_sample_each_change_no_figure() -> None:
    rng = np.random.default_rng(0)
    visits = {name: (x, rng.permutation(len(x))) for name, x in three().items()}
    assert of_subjects(visits, "normal").as_dict() == of_subjects(visits, "normal", known=False).as_dict()


def test_repeated_samples_of_every_subject_change_nothing() -> None:
    visits = correlated(1)
    once, thrice = of_subjects(visits, "normal"), {}
    for name, (x, subject) in visits.items():
        thrice[name] = (x.repeat(3), subject.repeat(3))
    again = of_subjects(thrice, "normal")
    np.testing.assert_allclose(again.tilts.value, once.tilts.value, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(again.tilts.error, once.tilts.error, rtol=1e-7)
    assert again.homogeneity.statistic == pytest.approx(3 * once.homogeneity.statistic, rel=1e-7)
    assert again.homogeneity.p_value == pytest.approx(once.homogeneity.p_value, rel=1e-6)


def test_the_limit_of_the_test_has_the_mean_and_the_variance_of_a_weighted_sum() -> None:
    found = of_subjects(correlated(2), "normal")
    effects = found.subject_effects
    assert effects[1] > 1.2 * effects[0] > 1.2
    test, scale = found.homogeneity, (effects @ effects) / effects.sum()
    assert test.factor == effects.mean()
    limit = chi2(effects.sum() / scale, scale=scale)
    assert (limit.mean(), limit.var()) == pytest.approx((effects.sum(), 2 * effects @ effects))
    assert test.p_value == pytest.approx(limit.sf(test.statistic))


@pytest.mark.slow
def test_errors_cover_and_tests_reject_as_often_as_they_say_where_samples_are_correlated() -> None:
    runs = 150
    covered, rejected = dict.fromkeys((True, False), 0.0), dict.fromkeys((True, False), 0.0)
    for seed in range(runs):
        visits = correlated(seed)
        for known in covered:
            found = of_subjects(visits, known=known)
            covered[known] += float(abs(found.tilts.value[1, 1]) < 1.96 * found.tilts.error[1, 1]) / runs
            rejected[known] += float(found.homogeneity.p_value < 0.05) / runs
    assert covered[True] > 0.9
    assert rejected[True] < 0.1
    assert covered[False] < 0.75
    assert rejected[False] > 0.25


def test_a_population_of_fewer_subjects_than_parameters_is_refused() -> None:
    visits = correlated(3)
    visits = {**visits, "c": (visits["a"][0], np.arange(len(visits["a"][0])) % 2)}
    of_subjects(visits)
    with refused("of 1 of the clients are of fewer subjects than the 3 parameters of a tilt"):
        of_subjects(visits, "normal")


SCHEMA = TableSchema((NumberColumn("age", centre=50, scale=10), NumberColumn("chol", missing=True, centre=240)))


def test_columns_are_compared_in_their_own_units() -> None:
    facts = Facts(("a", "b"), (9, 9), ("no", "yes"), (3,), ((), ()), columns=SCHEMA.encoded, schema=SCHEMA)
    feature, names = basis_feature(facts, "identity")
    assert names == ["age"]
    x = torch.tensor([[0.5, 1.0, 0.0], [-1.0, 1.0, 0.0]])
    assert feature(None, {"input": x}).tolist() == [[55.0], [40.0]]
    with refused("column 'chol' misses values, which were filled in: give some of age"):
        basis_feature(facts, "identity", ["chol"])
    with refused("unknown column 'agee'; did you mean 'age'?"):
        basis_feature(facts, "identity", ["agee"])
    assert basis_feature(facts, "identity", "age") == basis_feature(facts, "identity", ["age"])
    with refused("column 'age' is given twice: give every column once"):
        basis_feature(facts, "identity", ["age", "age"])
    with refused("columns=[], so nothing can be compared"):
        basis_feature(facts, "identity", [])
    gaps = TableSchema(SCHEMA.columns[1:])
    with refused("every column misses values, so nothing can be compared"):
        basis_feature(replace(facts, shape=(2,), columns=gaps.encoded, schema=gaps), "identity")


def test_what_cannot_be_fitted_over_clients_is_refused() -> None:
    good = np.random.default_rng(0).normal(size=30)
    with refused("basis 'auto' cannot be agreed on over clients"):
        fitted({"a": good, "b": good}, "auto")
    with refused("unknown basis 'norml'"):
        fitted({"a": good, "b": good}, "norml")
    with refused("client 'b' has 2 observations for the 3 parameters"):
        fitted({"a": good, "b": good[:2]}, "normal")
    with refused("dependent on these samples"):
        fitted({"a": np.ones(9), "b": np.ones(9)}, "normal")
    with refused("no finite optimum"):
        fitted({"a": good, "b": good + 100}, "identity")
    with refused("the gamma basis has no finite value for some samples") as caught:
        fitted({"a": good, "b": good}, "gamma")
    assert not any(f"{x:g}"[:5] in str(caught.value) for x in good), "no observation is named"
    with refused("samples of shape [1, 8, 8] are no rows of a table"):
        basis_feature(Facts(("a", "b"), (9, 9), ("0", "1"), (1, 8, 8), ((0.5,), (0.5,))), "normal")


@pytest.mark.parametrize(("distance", "basis"), [(20, "identity"), (50, "normal"), (200, "normal")])
def test_populations_far_apart_have_no_fit_over_clients(distance: float, basis: str) -> None:
    # Probabilities of 1 have gradients of 0: the method must not take them for an optimum.
    rng = np.random.default_rng(distance)
    with refused("no finite optimum"):
        fitted({"a": rng.normal(0, 1, 20), "b": rng.normal(distance, 1, 20)}, basis)
