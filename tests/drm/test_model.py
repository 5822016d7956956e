"""The fit itself: exact, indifferent to what must not matter, and honest where there is no optimum."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

import feddrm.drm
from feddrm.drm import DensityRatioFit, DensityRatioModel
from feddrm.drm.basis import Floats, evaluate_basis
from feddrm.drm.logistic import information
from feddrm.drm.separation import separated_pairs
from refusal import refused


def three(seed: int = 0, sizes: tuple[int, ...] = (80, 50, 120)) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(mean, sd, n)
        for name, mean, sd, n in zip("abc", (0.0, 0.6, -0.3), (1.0, 1.2, 0.8), sizes, strict=True)
    }


def score(fit: DensityRatioFit, ridge: float = 0.0) -> float:
    """The largest component of the derivative, from the definition, in the basis as it was given."""
    design = np.hstack([np.ones((len(fit.features), 1)), fit.features])
    logits = design @ np.vstack([fit.gamma_ddagger, fit.xi.T])
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    pull = np.hstack([np.zeros((len(fit.names), 1)), ridge * (fit.xi - fit.xi.mean(0))])
    return float(np.abs((p - np.eye(len(fit.names))[fit.owner]).T @ design + pull).max())


@pytest.mark.parametrize("basis", ["normal", "identity", lambda x: np.column_stack([np.sin(x), np.abs(x)])])
def test_the_score_vanishes_at_the_optimum(basis: object) -> None:
    assert score(DensityRatioModel(basis).fit(three())) < 1e-10  # type: ignore[arg-type]


def test_gamma_basis_and_several_columns() -> None:
    rng = np.random.default_rng(1)
    fit = DensityRatioModel("gamma").fit([rng.gamma(2, 1, 90), rng.gamma(3, 1.5, 70)])
    assert score(fit) < 1e-10
    assert fit.terms == ("x", "log x")
    fit = DensityRatioModel("normal").fit([rng.normal(size=(60, 2)), rng.normal(0.5, 1, (70, 2))])
    assert fit.terms == ("x1", "x2", "x1^2", "x1*x2", "x2^2")
    x = np.array([[2.0, 3.0]])
    assert evaluate_basis("normal", x).tolist() == [[2, 3, 4, 6, 9]]
    assert score(fit) < 1e-9


@pytest.mark.parametrize("ridge", [0.01, 1.0, 30.0])
def test_ridge_on_coefficients_is_scikit_learn_s(ridge: float) -> None:
    fit = DensityRatioModel("normal", ridge=ridge, penalty="coefficients").fit(three())
    assert score(fit, ridge) < 1e-10
    theirs = LogisticRegression(C=1 / ridge, tol=1e-9, max_iter=10_000).fit(fit.features, fit.owner)
    np.testing.assert_allclose(fit.xi, theirs.coef_ - theirs.coef_[0], atol=1e-5)
    np.testing.assert_allclose(fit.gamma_ddagger, theirs.intercept_ - theirs.intercept_[0], atol=1e-5)


def test_conjugate_gradients_agree_with_the_factorised_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = DensityRatioModel().fit(three())
    monkeypatch.setattr("feddrm.drm.logistic.MOST_DENSE", 1)
    iterative = DensityRatioModel().fit(three())
    np.testing.assert_allclose(iterative.xi, dense.xi, atol=1e-10)
    assert score(iterative) < 1e-9


def test_the_information_is_the_second_derivative_in_whatever_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    z, p = rng.normal(size=(50, 3)), rng.dirichlet(np.ones(4), 50)
    penalty = np.diag([0.0, 1.0, 2.0])
    share = np.eye(4) - 1 / 4
    expected = sum(
        np.kron(np.diag(row) - np.outer(row, row), np.outer(x, x)) for row, x in zip(p[:, 1:], z, strict=True)
    ) + np.kron(share[1:, 1:], penalty)
    np.testing.assert_allclose(information(z, p, penalty), expected, atol=1e-12)
    monkeypatch.setattr("feddrm.drm.logistic.MOST_CELLS", 100)
    np.testing.assert_allclose(information(z, p, penalty), expected, atol=1e-12)


def test_the_two_intercepts_differ_by_the_log_of_the_sizes() -> None:
    fit = DensityRatioModel().fit(three())
    np.testing.assert_allclose(fit.gamma_ddagger - fit.gamma_dagger, np.log(np.array([80, 50, 120]) / 80), atol=1e-14)
    x = np.linspace(-2, 2, 7)
    by_hand = fit.gamma_dagger + evaluate_basis("normal", x) @ fit.xi.T
    np.testing.assert_allclose(fit.log_ratio(x), by_hand, atol=1e-12)
    np.testing.assert_allclose(fit.log_ratio(x, against="b"), by_hand - by_hand[:, [1]], atol=1e-12)
    even = fit.posterior(x, priors=[1, 1, 1])
    np.testing.assert_allclose(even, np.exp(by_hand) / np.exp(by_hand).sum(1, keepdims=True), atol=1e-12)


@given(st.permutations(["a", "b", "c"]), st.integers(0, 1000), st.sampled_from([0.0, 2.0]))
def test_the_order_of_populations_does_not_matter(order: list[str], seed: int, ridge: float) -> None:
    """So neither does the reference, which is the first one."""
    samples = three(seed)
    model = DensityRatioModel(ridge=ridge)
    fit, other = model.fit(samples), model.fit({name: samples[name] for name in order})
    x = np.linspace(-1.5, 1.5, 5)
    at = [order.index(name) for name in "abc"]
    np.testing.assert_allclose(other.log_ratio(x, against="a")[:, at], fit.log_ratio(x), atol=1e-9)
    np.testing.assert_allclose(other.posterior(x)[:, at], fit.posterior(x), atol=1e-10)
    assert other.profile_log_likelihood == pytest.approx(fit.profile_log_likelihood, abs=1e-9)


@given(
    st.lists(st.floats(-3, 3), min_size=6, max_size=6),
    st.floats(0.3, 30),
    st.integers(0, 1000),
    st.sampled_from([0.0, 2.0]),
)
def test_an_affine_change_of_the_basis_does_not_matter(
    entries: list[float], scale: float, seed: int, ridge: float
) -> None:
    """With the variance penalty not even under a ridge."""
    matrix = scale * (np.array(entries[:4]).reshape(2, 2) + 7 * np.eye(2))  # diagonally dominant: invertible
    shift = np.array(entries[4:])

    def changed(x: Floats) -> Floats:
        return evaluate_basis("normal", x) @ matrix + shift

    samples = three(seed)
    fit = DensityRatioModel("normal", ridge=ridge).fit(samples)
    other = DensityRatioModel(changed, ridge=ridge).fit(samples)
    x = np.linspace(-1.5, 1.5, 5)
    np.testing.assert_allclose(other.log_ratio(x), fit.log_ratio(x), atol=1e-8)
    np.testing.assert_allclose(other.weights, fit.weights, atol=1e-10)
    np.testing.assert_allclose(matrix @ other.xi.T, fit.xi.T, atol=1e-8)


def test_an_offset_of_a_thousand_deviations_costs_few_digits() -> None:
    samples = three()
    fit = DensityRatioModel().fit(samples)
    far = DensityRatioModel().fit({name: 1e4 + 10 * x for name, x in samples.items()})
    assert far.log_likelihood == pytest.approx(fit.log_likelihood, abs=1e-8)


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ({"a": [0.0, 1, 2], "b": [5.0, 6, 7]}, "'a' and 'b'"),  # complete
        ({"a": [0.0, 1, 2], "b": [2.0, 3, 4]}, "'a' and 'b'"),  # touching in one point
        ({"a": [0.0, 1, 2, 3], "b": [0.5, 1.5, 2.5], "far": [9.0, 9.5, 10]}, "'a' and 'far'"),  # one of three
        ({"a": [0.0, 1, 2], "b": [5.0, 6, 7], "c": [9.0, 9.5, 10]}, "all populations"),
    ],
)
def test_separated_data_are_refused_with_the_remedy(samples: dict[str, list[float]], says: str) -> None:
    with refused(says, "no finite optimum", "--ridge 1.0"):
        DensityRatioModel("identity").fit(samples)
    fit = DensityRatioModel("identity", ridge=1.0).fit(samples)
    assert np.isfinite(fit.xi).all()
    np.testing.assert_allclose(fit.weights.sum(0), 1, atol=1e-12)


def test_separation_is_seen_in_data_too_large_for_the_programme(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the direction that is followed: the same words within 25 steps, where 200 ended in none of them."""
    monkeypatch.setattr("feddrm.drm.separation.MOST_CELLS", 1)
    rng = np.random.default_rng(0)
    samples = {name: rng.normal(size=(300, 3)) for name in ("a", "b", "far", "c")}
    samples["far"] = samples["far"] + [20, 0, 0]
    with refused("'a' and 'far' (and 2 more pairs)", "no finite optimum", "--ridge 1.0"):
        DensityRatioModel("identity").fit(samples)
    with refused("'a' and 'b' apart", "no finite optimum"):
        DensityRatioModel("identity").fit({"a": [0.0, 1, 2], "b": [2.0, 3, 4]})  # touching


@pytest.mark.parametrize("most", [1, 20_000_000])
def test_a_direction_that_harms_one_observation_separates_nothing(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddrm.drm.separation.MOST_CELLS", most)
    z = np.array([-2.0, -1, 0.01, 1, 2, -0.01])
    design, owner = np.column_stack([np.ones(6), z]), np.repeat([0, 1], 3)
    assert separated_pairs(design, owner, np.array([[0.0, 0], [0, 1]])) == []
    z[2], z[5] = -0.01, 0.01
    assert separated_pairs(np.column_stack([np.ones(6), z]), owner, np.array([[0.0, 0], [0, 1]])) == [(0, 1)]


def test_a_large_overlap_is_not_taken_for_separation() -> None:
    """One exchanged observation is enough for a finite optimum, however steep."""
    a, b = np.append(np.arange(200.0), 203), np.append(np.arange(201.0, 400), 199.5)
    fit = DensityRatioModel("identity").fit([a, b])
    assert score(fit) < 1e-8
    assert fit.log_ratio([300.0])[0, 1] > 20


def test_dependent_functions_are_refused_without_a_ridge() -> None:
    samples = [np.array([0.0, 1, 1, 0, 1]), np.array([0.0, 1, 0, 0])]
    with refused("only 1 of the 2 basis functions", "ridge"):
        DensityRatioModel("normal").fit(samples)
    fit = DensityRatioModel("normal", ridge=0.5, penalty="coefficients").fit(samples)
    assert score(fit, 0.5) < 1e-12
    assert fit.xi[1, 0] == pytest.approx(fit.xi[1, 1])


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([[1.0, 2.0]], "two populations"),
        ({"a": [1.0, 2.0], "b": [1.0]}, "population 'b' has 1 observations"),
        ({"a": [1.0, 2.0], "b": [1.0, np.nan]}, "population 'b': a sample has a value that is missing"),
        ({"a": [1.0, 2.0], "b": np.ones((2, 2))}, "population 'b' has 5 basis functions"),
        ({"a": [1.0, 2.0], "b": ["x", "y"]}, "population 'b': a sample must be an array of numbers"),
        ({"a": np.ones((2, 2, 2)), "b": np.ones((2, 2, 2))}, "a function as basis"),
    ],
)
def test_bad_samples_are_refused(samples: object, says: str) -> None:
    with refused(says):
        DensityRatioModel().fit(samples)  # type: ignore[arg-type]


def test_bad_settings_are_refused() -> None:
    with refused("unknown basis 'norml'; did you mean 'normal'?"):
        DensityRatioModel("norml")
    with refused("ridge=-1"):
        DensityRatioModel(ridge=-1)
    with refused("penalty 'l1'"):
        DensityRatioModel(penalty="l1")  # type: ignore[arg-type]
    with refused("gamma basis takes logarithms", "-1"):
        DensityRatioModel("gamma").fit([[1.0, 2.0], [-1.0, 2.0]])
    with refused("2 names for 1 columns"):
        DensityRatioModel().fit(three(), ["x", "y"])
    with refused("one row for each"):
        DensityRatioModel(lambda x: np.ones((3, 1))).fit(three())
    fit = DensityRatioModel().fit(three())
    with refused("no population 'z'"):
        fit.log_ratio([0.0], against="z")
    with refused("no population 3"):
        fit.log_ratio([0.0], against=3)
    for odd in (0, np.inf, np.nan):
        with refused("give 3 positive numbers"):
            fit.posterior([0.0], priors=[1, odd, 1])
    for size in (1e80, 1e160):  # the square of the one, and the other itself, would overflow on the way
        with refused("beyond 1e+150", "scale the data"):
            DensityRatioModel().fit({name: size * x for name, x in three().items()})
    with refused("give the same columns"):
        fit.log_ratio(np.ones((2, 2)))


def test_an_embedding_of_images_can_be_the_basis() -> None:
    rng = np.random.default_rng(0)
    images = [rng.random((40, 3, 4, 4)), rng.random((30, 3, 4, 4)) ** 1.3]
    fit = DensityRatioModel(lambda x: x.mean((2, 3))).fit(images)
    assert fit.terms == ("h1", "h2", "h3")
    assert fit.log_ratio(images[0][:5]).shape == (5, 2)


def test_the_package_stands_alone() -> None:
    """No module of it needs torch, or more of this project than errors, kinds of values and suggestions."""
    modules = [f"feddrm.drm.{module.name}" for module in pkgutil.iter_modules(feddrm.drm.__path__)]
    assert len(modules) > 8
    script = (
        f"import sys, {', '.join(modules)}; print(*(m for m in sys.modules if m.split('.')[0] in ('feddrm', 'torch')))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    others = {m for m in run.stdout.split() if not m.startswith("feddrm.drm")}
    assert others == {"feddrm", "feddrm.errors", "feddrm.registry", "feddrm.typed_settings"}
    assert feddrm.DensityRatioModel is DensityRatioModel
