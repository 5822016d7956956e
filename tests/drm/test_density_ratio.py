"""Tests of the density ratio model: an exact optimum, invariances, the routing rules, and refused input."""

from __future__ import annotations

import math
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

import feddrm.drm
from feddrm.drm import DensityRatioModel, choose_basis, inference
from feddrm.drm.basis import Floats, evaluate_basis
from populations import score, three
from refusal import refused


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
    """The reference is the first one, so it does not matter either."""
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
    """With the variance penalty, this holds under a ridge, too."""
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


def test_dependent_functions_are_refused_without_a_ridge() -> None:
    samples = [np.array([0.0, 1, 1, 0, 1]), np.array([0.0, 1, 0, 0])]
    with refused("only 1 of the 2 basis functions", "ridge"):
        DensityRatioModel("normal").fit(samples)
    fit = DensityRatioModel("normal", ridge=0.5, penalty="coefficients").fit(samples)
    assert score(fit, 0.5) < 1e-12
    assert fit.xi[1, 0] == pytest.approx(fit.xi[1, 1])


def test_arguments_of_a_wrong_type_are_refused_in_one_line() -> None:
    rng = np.random.default_rng(0)
    fit = DensityRatioModel("normal").fit([rng.normal(0, 1, 40), rng.normal(1, 1, 40)])
    for wrong in ("x", None):
        with refused(f"ridge={wrong!r}: give 0 or a positive number"):
            DensityRatioModel("normal", ridge=wrong)  # type: ignore[arg-type]
    calls: dict[str, Callable[[], Any]] = {
        "population=None: give a name or a whole number": lambda: fit.log_ratio([1.0], against=None),  # type: ignore[arg-type]
        "how='x': give a Testing": lambda: inference.homogeneity(fit, "x"),  # type: ignore[arg-type]
        "populations='1': give a list": lambda: inference.equality(fit, "1"),
        "fit of type ndarray: give a DensityRatioFit": lambda: inference.mean(np.zeros(3)),  # type: ignore[arg-type]
        "quantile levels 'x': give numbers": lambda: inference.quantile(fit, "x"),
        "samples=None: give a list": lambda: choose_basis(None),  # type: ignore[arg-type]
    }
    for problem, call in calls.items():
        with refused(problem):
            call()


def test_masked_observations_are_missing() -> None:
    """The values behind a mask were taken for observations."""
    sample = np.ma.masked_greater(np.arange(20.0), 15.0)
    with refused("population 'b': observation 17 is missing"):
        DensityRatioModel("identity").fit({"a": np.arange(20.0), "b": sample})


def test_rows_with_labels_are_refused_with_the_call_that_fits_them() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    x = rng.normal(0, 1, (60, 2)) + y[:, None] / 2
    with refused("rows X with labels y are {name: X[y == name] for name in np.unique(y)}"):
        DensityRatioModel("identity").fit(x, y)  # type: ignore[arg-type]
    assert DensityRatioModel("identity").fit({name: x[y == name] for name in np.unique(y)}).names == ("0", "1")
    with refused("table of type ndarray: give a data frame, or a dict from column names to values"):
        DensityRatioModel("identity").fit_table(x, "y")
    with refused("columns of type ndarray: give a list, each item text"):
        DensityRatioModel("identity").fit([x[:30], x[30:]], y)  # type: ignore[arg-type]


@pytest.mark.parametrize(("basis", "far"), [("normal", 1e8), ("normal", 1e9), ("polynomial(3)", 1e7)])
def test_powers_that_differ_by_rounding_alone_are_refused(basis: str, far: float) -> None:
    rng = np.random.default_rng(0)
    with refused("basis functions are independent", "subtract their mean first"):
        DensityRatioModel(basis).fit([far + rng.normal(0, 1, 200), far + rng.normal(0.3, 1.4, 150)])


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([[1.0, 2.0]], "two populations"),
        (3, "samples=3: give a dict or a list"),
        (np.ones((2, 9)), "give one array per population, as [a, b] or {name: array}"),
        ({"a": [1.0, 2.0], "b": [1.0]}, "population 'b' has 1 observations"),
        ({"a": [1.0, 2.0], "b": [1.0, np.nan]}, "population 'b': observation 2 is missing or infinite"),
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
    for size in (1e80, 1e160):  # the square of the first, and the second itself, would overflow
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


@pytest.mark.slow
def test_the_package_stands_alone() -> None:
    """No module of the package imports torch, or much of feddrm: errors, registry, plugins, settings, text files."""
    modules = [f"feddrm.drm.{module.name}" for module in pkgutil.iter_modules(feddrm.drm.__path__)]
    assert len(modules) == 13
    script = (
        f"import sys, {', '.join(modules)}; print(*(m for m in sys.modules if m.split('.')[0] in ('feddrm', 'torch')))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    others = {m for m in run.stdout.split() if not m.startswith("feddrm.drm")}
    allowed = ("_version", "errors", "io", "io.text", "plugins", "registry", "typed_settings")
    assert others == {"feddrm", *(f"feddrm.{name}" for name in allowed)}
    assert feddrm.DensityRatioModel is DensityRatioModel


def test_01_marginals_of_the_clients_obey_a_density_ratio_model() -> None:
    """Theorem 2.1, on a finite support; the tilt is between the classes 1 of client and reference (eq. 3)."""
    rng = np.random.default_rng(0)
    points, classes, clients = 40, 5, 4
    h = rng.normal(size=(points, 3))
    alpha, beta = rng.normal(size=classes), rng.normal(size=(classes, 3))
    alpha[0], beta[0] = 0, 0  # eq. (2) needs class 1 to be the base
    conditional = softmax(alpha + h @ beta.T, axis=1)  # shared by the reference too
    base = rng.dirichlet(np.ones(points))  # P_X of the reference
    prior = base @ conditional
    class_one = base * conditional[:, 0] / prior[0]
    for _ in range(clients):
        xi = rng.normal(size=3)
        tilted = class_one * np.exp(h @ xi)
        gamma_l = -np.log(tilted.sum())
        marginal = tilted / tilted.sum() / conditional[:, 0]
        marginal /= marginal.sum()
        own_prior = marginal @ conditional
        ratio = np.log(marginal / base)
        np.testing.assert_allclose(ratio, gamma_l + np.log(own_prior[0] / prior[0]) + h @ xi, atol=1e-12)
        for k in range(classes):  # eq. (2), within the client
            between = (marginal * conditional[:, k] / own_prior[k]) / (marginal * conditional[:, 0] / own_prior[0])
            expected = alpha[k] + np.log(own_prior[0] / own_prior[k]) + h @ beta[k]
            np.testing.assert_allclose(np.log(between), expected, atol=1e-12)


@pytest.mark.slow
def test_08_density_rule_finds_the_largest_density_and_posterior_rule_the_bayes_client() -> None:
    """Known normal populations of unequal sizes, more and more data."""
    means, deviations, shares = np.array([-0.8, 0.9, 0.2]), np.array([0.9, 1.1, 1.6]), np.array([0.15, 0.6, 0.25])
    x = np.linspace(-4, 4, 4001)
    density = norm.logpdf(x[:, None], means, deviations)
    truth = {"density": density.argmax(1), "posterior": (density + np.log(shares)).argmax(1)}
    assert (truth["density"] != truth["posterior"]).mean() > 0.05
    wrong: dict[str, list[float]] = {"density": [], "posterior": []}
    for size in (300, 3_000, 300_000):
        rng = np.random.default_rng(size)
        sizes = (shares * size).astype(int)
        fit = DensityRatioModel().fit([rng.normal(*p) for p in zip(means, deviations, sizes, strict=True)])
        wrong["density"].append(float((fit.log_ratio(x).argmax(1) != truth["density"]).mean()))
        wrong["posterior"].append(float((fit.posterior(x).argmax(1) != truth["posterior"]).mean()))
        assert (fit.posterior(x, priors=[1, 1, 1]).argmax(1) == fit.log_ratio(x).argmax(1)).all()
    for rule in wrong.values():
        assert rule[-1] < 0.01
        assert rule[-1] < rule[0]


def test_estimates_equal_statsmodels() -> None:
    """A multinomial regression by others: coefficients, log likelihood and the information."""
    discrete = pytest.importorskip("statsmodels.discrete.discrete_model")
    fit = DensityRatioModel().fit(three())
    design = np.column_stack([np.ones(len(fit.owner)), fit.features])
    theirs = discrete.MNLogit(fit.owner, design).fit(method="newton", tol=1e-14, maxiter=100, disp=False)
    np.testing.assert_allclose(np.vstack([fit.gamma_ddagger, fit.xi.T])[:, 1:], theirs.params, atol=1e-8)
    assert fit.log_likelihood == pytest.approx(theirs.llf, abs=1e-8)
    wald = inference.linear_hypothesis(fit, [[1, 0, 0, 0]], how=inference.Testing("wald", "none"))
    assert wald.statistic == pytest.approx(float(np.asarray(theirs.tvalues)[1, 0]) ** 2, abs=1e-8)


def test_a_long_table_is_divided_by_its_group() -> None:
    samples = three()
    table = {
        "site": np.repeat(list(samples), [len(x) for x in samples.values()]),
        "x": np.concatenate(list(samples.values())),
    }
    fit, wanted = DensityRatioModel().fit_table(table, "site"), DensityRatioModel().fit(samples)
    assert (fit.names, fit.columns) == (wanted.names, ("x",))
    np.testing.assert_array_equal(fit.xi, wanted.xi)
    frame = pandas.DataFrame(table).astype({"site": "category"})
    frame["site"] = frame["site"].cat.add_categories("nowhere")  # a category without rows is no population
    np.testing.assert_array_equal(DensityRatioModel().fit_table(frame, "site").xi, wanted.xi)
    order = np.random.default_rng(0).permutation(len(table["x"]))
    mixed = DensityRatioModel().fit_table({name: column[order] for name, column in table.items()}, "site", ["x"])
    np.testing.assert_allclose(mixed.log_ratio([0.2], "a")[0, mixed.index("c")], fit.log_ratio([0.2])[0, 2], atol=1e-9)
    with refused("no column 'hospital' (there are: site, x)"):
        DensityRatioModel().fit_table(table, "hospital")
    with refused("no column but 'site'"):
        DensityRatioModel().fit_table({"site": table["site"]}, "site")
    with refused("column 'x', row 3: 'oops' is not a finite number: correct it"):
        DensityRatioModel().fit_table({"site": ["a", "a", "b", "b"], "x": [1, 2, "oops", 4]}, "site")
    for gap in (None, math.nan, "", pandas.NA, pandas.NaT):
        with refused("column 'site', row 4: the group is missing: complete or remove the row"):
            DensityRatioModel().fit_table({"site": ["a", "a", "b", gap], "x": [1, 2, 3, 4]}, "site")


@pytest.mark.parametrize(
    ("samples", "basis", "says"),
    [
        ({"a": [1.0, 2.0, 4.0], "b": [1.0, 3.0]}, "normal", "'b' has 2 observations for the 3 parameters of its tilt"),
        ({"a": [1.0, 2.0, 4.0], "b": [3.0, 3.0, 3.0]}, "identity", "'b' is constant: all its 3 observations are equal"),
        ({"a": [0.1, 0.2, 0.4], "b": [0.3, 1.5, 0.2]}, "beta", "samples between 0 and 1, but observation 2 is 1.5"),
        ({"a": [1.0, 2.0, 4.0], "b": [0.0, 1.0, 3.0]}, "lognormal", "takes logarithms, but observation 1 is 0"),
    ],
)
def test_degenerate_samples_are_refused(samples: dict[str, list[float]], basis: str, says: str) -> None:
    with refused("population 'b'", says):
        DensityRatioModel(basis).fit(samples)
