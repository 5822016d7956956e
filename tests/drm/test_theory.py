"""The paper's statements, one by one, as numbers. docs/theory.md says what each of them means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import null_space
from scipy.optimize import minimize
from scipy.special import gammaln, log_softmax, softmax
from scipy.stats import gamma, norm

from feddrm.drm import (
    DensityRatioFit,
    DensityRatioModel,
    profile_log_likelihood,
    reference_weights,
    solve_multipliers,
)
from feddrm.drm.basis import Floats, evaluate_basis
from feddrm.drm.logistic import information
from feddrm.paper.experiments.descent import Head
from feddrm.paper.experiments.drift import EMBEDDINGS, LABELS, measure_drift, random_federation
from feddrm.paper.experiments.tradeoff import World, tradeoff_experiment
from refusal import refused


def fitted(seed: int = 0) -> DensityRatioFit:
    rng = np.random.default_rng(seed)
    sizes, moves = (60, 110, 80), rng.normal(scale=0.5, size=(3, 2))
    return DensityRatioModel("identity").fit([rng.normal(size=(n, 2)) + c for n, c in zip(sizes, moves, strict=True)])


def retilted(fit: DensityRatioFit, slope: Floats) -> Floats:
    """The same populations against another reference: ``c + slope' h`` added to all log tilts, c normalising."""
    extra = fit.features @ slope
    mass = np.exp(-extra - fit.log_tilts[:, 0]) * fit.weights[:, 0]
    return np.asarray(fit.log_tilts + (extra + np.log(mass.sum()))[:, None])


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


def test_02_weights_meet_both_constraints() -> None:
    """They sum to one under every tilt, and give every population its own sample's mean of the basis."""
    fit = fitted()
    e = np.exp(fit.gamma_dagger + fit.features @ fit.xi.T)
    p = 1 / (e @ fit.counts)
    assert p.sum() == pytest.approx(1, abs=1e-10)
    np.testing.assert_allclose(p @ e, 1, atol=1e-10)
    np.testing.assert_allclose(p[:, None] * e, fit.weights, atol=1e-12)
    own = [fit.features[fit.owner == i].mean(0) for i in range(3)]
    np.testing.assert_allclose((p[:, None] * e).T @ fit.features, own, atol=1e-10)
    np.testing.assert_allclose(reference_weights(fit.log_tilts, fit.counts / fit.counts.sum()), p, atol=1e-14)


def test_03_multipliers_are_the_shares_of_the_samples() -> None:
    """Solved by Owen's dual, which knows nothing of n_l / N."""
    fit = fitted()
    shares = fit.counts / fit.counts.sum()
    for slope in (np.array([0.3, -0.2]), np.array([-0.5, 0.4])):
        np.testing.assert_allclose(solve_multipliers(retilted(fit, slope)), shares, atol=1e-8)
    # With a population as the reference its multiplier is free; it is given what the others leave.
    np.testing.assert_allclose(solve_multipliers(fit.log_tilts), shares, atol=1e-8)


def test_03_the_main_text_s_condition_lacks_one_plus() -> None:
    """Erratum: without ``1 +`` in the denominator, n_l / N is far from a solution."""
    fit = fitted()
    excess = np.expm1(retilted(fit, np.array([0.3, -0.2])))
    shares = fit.counts / fit.counts.sum()
    right = np.abs((excess / (1 + excess @ shares)[:, None]).sum(0)).max()
    printed = np.abs((excess / (excess @ shares)[:, None]).sum(0)).max()
    assert right < 1e-10
    assert printed > 10


def test_04_profile_likelihood_is_two_cross_entropies_and_a_constant() -> None:
    """The constant is ``-sum n_i log n_i``; the paper's lacks ``-N log N``."""
    fit = fitted()
    rng = np.random.default_rng(1)
    client_entropy = -fit.log_likelihood
    constant = -float((fit.counts * np.log(fit.counts)).sum())
    tilts = retilted(fit, np.array([0.3, -0.2]))
    assert profile_log_likelihood(tilts, fit.owner) == pytest.approx(-client_entropy + constant, abs=1e-8)
    assert fit.profile_log_likelihood == pytest.approx(-client_entropy + constant, abs=1e-8)
    # The class term: the joint log likelihood of (x, y), written out, less the part above.
    classes = log_softmax(rng.normal(size=(len(fit.owner), 4)), axis=1)
    label = rng.integers(0, 4, len(fit.owner))
    each = np.arange(len(fit.owner))
    joint = np.log(fit.weights[each, fit.owner] * np.exp(classes[each, label])).sum()
    class_entropy = -classes[each, label].sum()
    assert joint == pytest.approx(-client_entropy - class_entropy + constant, abs=1e-8)
    n = fit.counts.sum()
    papers = -float((fit.counts * np.log(fit.counts / n)).sum())
    assert fit.profile_log_likelihood - (-client_entropy + papers) == pytest.approx(-n * np.log(n), abs=1e-8)


def test_04_the_profile_is_the_largest_likelihood_over_all_weights() -> None:
    """The primal problem as it is stated, off the best tilts: the weights are allowed, and no others do better."""
    fit, rng = fitted(), np.random.default_rng(2)
    tilts = retilted(fit, np.array([0.3, -0.2])) + rng.normal(scale=0.05, size=3)
    tilts = tilts + fit.features @ rng.normal(scale=0.05, size=(2, 3))
    e = np.exp(tilts)
    p = reference_weights(tilts, solve_multipliers(tilts))
    assert p.min() > 0
    np.testing.assert_allclose(np.append(p @ e, p.sum()), 1, atol=1e-10)
    allowed = null_space(np.column_stack([e, np.ones(len(e))]).T)  # changes that keep to the constraints
    np.testing.assert_allclose((1 / p) @ allowed, 0, atol=1e-6)  # log is concave: no slope there means the maximum
    for change in rng.normal(size=(20, allowed.shape[1])) @ allowed.T:
        assert np.log(p + 0.1 * p.min() * change).sum() < np.log(p).sum()
    likelihood = np.log(p[:, None] * e)[np.arange(len(p)), fit.owner].sum()
    assert profile_log_likelihood(tilts, fit.owner) == pytest.approx(likelihood, abs=1e-9)
    assert likelihood < fit.profile_log_likelihood - 0.01


def test_05_derivative_of_the_profile_off_the_optimum() -> None:
    """``d pl / d gamma_l = n_l - N rho_l``, where rho is not n / N."""
    fit = fitted()
    rng = np.random.default_rng(2)
    tilts = retilted(fit, np.array([0.3, -0.2])) + rng.normal(scale=0.05, size=3)
    tilts = tilts + fit.features @ rng.normal(scale=0.05, size=(2, 3))
    expected = fit.counts - len(tilts) * solve_multipliers(tilts)
    assert np.abs(expected).max() > 1
    for population in range(3):
        step = np.zeros(3)
        step[population] = 1e-4
        up, down = (profile_log_likelihood(tilts + sign * step, fit.owner) for sign in (1, -1))
        assert (up - down) / 2e-4 == pytest.approx(expected[population], rel=1e-5, abs=1e-5)


@given(st.lists(st.floats(-0.6, 0.6), min_size=2, max_size=2), st.integers(0, 50))
def test_06_the_reference_is_not_identified(slope: list[float], seed: int) -> None:
    """Another reference: the same softmax, the same profile likelihood, the same routing."""
    fit = fitted(seed)
    tilts = retilted(fit, np.array(slope))
    before, after = (softmax(t + np.log(fit.counts), axis=1) for t in (fit.log_tilts, tilts))
    np.testing.assert_allclose(after, before, atol=1e-12)
    assert (tilts.argmax(1) == fit.log_tilts.argmax(1)).all()
    profile = profile_log_likelihood(tilts, fit.owner)
    assert profile == pytest.approx(fit.profile_log_likelihood, abs=1e-7)


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(0.3, 3)), min_size=2, max_size=2))
def test_07_normal_populations(pair: list[tuple[float, float]]) -> None:
    (m1, s1), (m2, s2) = pair
    x = np.linspace(-3, 3, 9)
    theta = (np.log(s2 / s1) - (m1**2 / s1**2 - m2**2 / s2**2) / 2, m1 / s1**2 - m2 / s2**2, (s2**-2 - s1**-2) / 2)
    by_formula = theta[0] + evaluate_basis("normal", x) @ np.array(theta[1:])
    np.testing.assert_allclose(by_formula, norm.logpdf(x, m1, s1) - norm.logpdf(x, m2, s2), rtol=1e-10, atol=1e-10)


@given(st.lists(st.tuples(st.floats(0.3, 5), st.floats(0.3, 5)), min_size=2, max_size=2))
def test_07_gamma_populations(pair: list[tuple[float, float]]) -> None:
    (a1, b1), (a2, b2) = pair
    x = np.linspace(0.1, 5, 9)
    theta = (gammaln(a2) - gammaln(a1) + a1 * np.log(b1) - a2 * np.log(b2), b2 - b1, a1 - a2)
    by_formula = theta[0] + evaluate_basis("gamma", x) @ np.array(theta[1:])
    direct = gamma.logpdf(x, a1, scale=1 / b1) - gamma.logpdf(x, a2, scale=1 / b2)
    np.testing.assert_allclose(by_formula, direct, rtol=1e-10, atol=1e-10)


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


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("embedding", EMBEDDINGS)
def test_09_the_client_head_drifts_more_than_the_class_head(labels: str, embedding: str) -> None:
    """In every round of every setting; the amount depends on the setting, so only the sign is claimed."""
    drift = measure_drift(labels, embedding, rounds=30)
    assert (drift.squared["client"] > drift.squared["class"]).all()
    assert (drift.relative["client"] > drift.relative["class"]).all()


def test_09_relative_drift_is_g_over_the_length_of_the_pooled_gradient() -> None:
    x, label, client = random_federation("skewed", "shifted", 5)
    head = Head.of(x, label, client, 10)
    each = head.gradients(head.start()[None])
    pooled = np.average(each, axis=0, weights=head.client_weights)
    apart = sum(w * ((g - pooled) ** 2).sum() for w, g in zip(head.client_weights, each, strict=True))
    drift = measure_drift("skewed", "shifted", rounds=2, seed=5)
    assert drift.squared["class"][0] == pytest.approx(apart, rel=1e-12)
    assert drift.relative["class"][0] == pytest.approx(float(np.sqrt(apart) / np.linalg.norm(pooled)), rel=1e-12)


def heads() -> tuple[Head, Head, Floats, Floats]:
    x, label, client = random_federation("skewed", "shifted", 0, samples=60)
    client[:20] = 1  # unequal sizes
    rng = np.random.default_rng(3)
    first, second = Head.of(x, client, client, 3), Head.of(x, label, client, 10)
    return first, second, rng.normal(size=first.start().shape), rng.normal(size=second.start().shape)


@pytest.mark.parametrize("lam", [0.1, 0.5, 0.9])
def test_10_drift_splits_into_the_two_heads(lam: float) -> None:
    """``G^2 = (1 - lambda)^2 G_client^2 + lambda^2 G_class^2``, the joint gradient written out."""
    client, label, gamma_weights, beta = heads()
    each = [
        np.concatenate([(1 - lam) * a.ravel(), lam * b.ravel()])
        for a, b in zip(client.gradients(gamma_weights[None]), label.gradients(beta[None]), strict=True)
    ]
    mean = np.average(each, axis=0, weights=client.client_weights)
    joint = float(sum(w * ((g - mean) ** 2).sum() for w, g in zip(client.client_weights, each, strict=True)))
    split = (1 - lam) ** 2 * client.drift(gamma_weights) + lam**2 * label.drift(beta)
    assert joint == pytest.approx(float(split), rel=1e-12)


def test_10_gradients_are_those_of_the_cross_entropy() -> None:
    """Erratum: d loss_i / d gamma_k is the mean of ``p_k - 1(i = k)``: the other sign, and no factor x."""
    client, _, weights, _ = heads()

    def loss(i: int, w: Floats) -> float:
        logs = log_softmax(client.features[i] @ w.T, axis=1)
        return float(-(logs[:, i] * client.share[i]).sum())

    for i in range(3):
        for k in range(3):
            step = np.zeros_like(weights)
            step[k, 0] = 1e-5  # the intercept, gamma_k
            slope = (loss(i, weights + step) - loss(i, weights - step)) / 2e-5
            p = softmax(client.features[i] @ weights.T, axis=1)[:, k]
            assert slope == pytest.approx(float(((p - (i == k)) * client.share[i]).sum()), abs=1e-8)
            assert slope == pytest.approx(float(client.gradients(weights[None])[i, k, 0]), abs=1e-8)


def test_11_fedavg_ends_nearer_the_optimum_the_larger_lambda() -> None:
    """The floor falls with lambda and stays below the theorem's bound, which is loose."""
    result = tradeoff_experiment(rounds=60, size=300, worlds=1)
    assert (np.diff(result.floor) < 0).all()
    assert result.floor[0] > 10 * result.floor[-1]
    assert (result.floor < result.bound).all()
    assert (result.drift_client > result.drift_class).all()


def test_11_the_bound_is_the_theorems() -> None:
    """``eta^2 E^2 G^2 / (1 - (1 - eta mu)^E)`` with mu the ridge and eta = 1 / (4 L E)."""
    result = tradeoff_experiment(rounds=2, local_steps=3, ridge=0.1, size=200, worlds=1)
    world = World.draw(200, 0, 0)
    moments = [world.x[world.client == i] for i in range(3)]
    steepest = max(np.linalg.eigvalsh(x.T @ x / len(x)).max() for x in moments) / 2
    for i, lam in enumerate(result.lambdas):
        eta = 1 / (4 * (steepest * max(lam, 1 - lam) + 0.1) * 3)
        drift = (1 - lam) ** 2 * result.drift_client[i] + lam**2 * result.drift_class[i]
        assert result.bound[i] == pytest.approx(9 * eta**2 * drift / (1 - (1 - 0.1 * eta) ** 3), rel=1e-12)


def test_11_the_smoothness_is_never_exceeded_and_reached_by_two_even_outcomes() -> None:
    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(40), rng.normal(size=(40, 2))])
    head = Head.of(x, rng.integers(0, 2, 40), np.repeat([0, 1], 20), 2)

    def steepest(weights: Floats) -> float:
        columns = []
        for step in np.eye(6).reshape(6, 2, 3) * 1e-5:
            columns.append((head.gradients((weights + step)[None]) - head.gradients((weights - step)[None])) / 2e-5)
        each = np.stack(columns, axis=1).reshape(2, 6, 6)
        return float(max(np.linalg.eigvalsh((h + h.T) / 2).max() for h in each))

    assert steepest(head.start()) == pytest.approx(head.smoothness(), rel=1e-6)
    assert steepest(rng.normal(size=(2, 3))) < head.smoothness()


def joint_minimiser(world: World, lam: float, ridge: float) -> Floats:
    """Both heads at once by a general-purpose solver; rows centred, since only differences matter at ridge 0."""
    shapes = (world.true_client.shape, world.true_class.shape)
    cut = shapes[0][0] * shapes[0][1]
    targets = [np.eye(s[0])[o] for s, o in zip(shapes, (world.client, world.label), strict=True)]

    def loss(zeta: Floats) -> tuple[float, Floats]:
        value, slope = 0.5 * ridge * float(zeta @ zeta), ridge * zeta
        for part, shape, target, share in zip(
            (slice(0, cut), slice(cut, None)), shapes, targets, (1 - lam, lam), strict=True
        ):
            logs = log_softmax(world.x @ zeta[part].reshape(shape).T, axis=1)
            value -= share * float((target * logs).sum()) / len(world.x)
            slope[part] += share * ((np.exp(logs) - target).T @ world.x).ravel() / len(world.x)
        return value, slope

    options = {"maxiter": 20_000, "maxfun": 50_000, "gtol": 1e-11, "ftol": 0.0, "maxcor": 50}
    found = minimize(loss, np.zeros(cut + shapes[1][0] * shapes[1][1]), jac=True, method="L-BFGS-B", options=options).x
    parts = found[:cut].reshape(shapes[0]), found[cut:].reshape(shapes[1])
    return np.concatenate([(part - part.mean(0)).ravel() for part in parts])


def test_12_without_a_ridge_the_optimum_does_not_depend_on_lambda() -> None:
    """Erratum: the blocks separate, so the lemma's variance ``((1 - lambda) I)^-1`` cannot be right."""
    world = World.draw(500, 0, 0)
    base = joint_minimiser(world, 0.5, 0.0)
    for lam in (0.1, 0.9):
        np.testing.assert_allclose(joint_minimiser(world, lam, 0.0), base, atol=2e-6)
    exact = np.concatenate([part.ravel() for part in world.minimisers(0.5, 0.0)])
    np.testing.assert_allclose(exact, base, atol=2e-6)


def test_12_with_a_ridge_lambda_matters_through_bias() -> None:
    world = World.draw(500, 0, 0)
    ends = [joint_minimiser(world, lam, 0.01) for lam in (0.1, 0.9)]
    assert np.abs(ends[0] - ends[1]).max() > 0.1
    for lam, joint in zip((0.1, 0.9), ends, strict=True):
        exact = np.concatenate([part.ravel() for part in world.minimisers(lam, 0.01)])
        np.testing.assert_allclose(exact, joint, atol=1e-6)


def test_12_the_bias_of_a_fixed_ridge_stays_as_data_grow() -> None:
    worlds = [World.draw(size, 0, 1) for size in (2_000, 50_000)]
    plain, held = (
        [float(((w.minimisers(0.9, ridge)[0] - w.true_client) ** 2).sum()) for w in worlds] for ridge in (0.0, 0.05)
    )
    assert plain[1] < plain[0] / 3
    assert held[1] > 0.8 * held[0]
    assert held[1] > 100 * plain[1]


def test_12_the_sandwich_of_a_weighted_loss_is_free_of_the_weight() -> None:
    """Variance over many data sets equals the inverse information, not that divided by 1 - lambda."""
    squares = []
    for number in range(150):
        world = World.draw(500, 4, number)
        fit = DensityRatioModel("identity").fit([world.x[world.client == i, 1:] for i in range(3)])
        found = np.column_stack([fit.gamma_ddagger, fit.xi])
        squares.append(((found - found.mean(0) - world.true_client) ** 2).sum())
    world = World.draw(20_000, 4, 0)
    inverse_information = world.lemma_variance()[0] * 20_000 / 500
    assert np.mean(squares) == pytest.approx(inverse_information, rel=0.25)
    assert np.mean(squares) < inverse_information / (1 - 0.9) / 5


def test_12_the_information_of_an_overparameterised_softmax_is_singular() -> None:
    """Erratum: the smallest eigenvalue that the theorem divides by is zero at ridge 0."""
    world = World.draw(300, 0, 0)
    p = softmax(world.x @ world.true_client.T, axis=1)
    full = np.einsum("nab,nk,nl->akbl", p[:, :, None] * (np.eye(3) - p[:, None, :]), world.x, world.x)
    size = 3 * world.x.shape[1]
    assert np.linalg.eigvalsh(full.reshape(size, size))[0] == pytest.approx(0, abs=1e-9)
    reduced = information(world.x, p, np.zeros((world.x.shape[1],) * 2))
    assert np.linalg.eigvalsh(reduced)[0] > 1


def residual_of_tilt(log_ratio: Floats, h: Floats) -> float:
    design = np.column_stack([np.ones(len(h)), h])
    return float(np.abs(log_ratio - design @ np.linalg.lstsq(design, log_ratio, rcond=None)[0]).max())


def test_erratum_label_shift_is_not_an_exponential_tilt() -> None:
    """With shared class densities and other class shares the marginal ratio is one of mixtures, not linear in h."""
    x = np.linspace(-3, 3, 61)
    classes = norm.pdf(x[:, None], [-1.5, 0.0, 1.5], 0.7)
    ratio = np.log(classes @ [0.7, 0.1, 0.2]) - np.log(classes @ [0.2, 0.4, 0.4])
    assert residual_of_tilt(ratio, evaluate_basis("normal", x)) > 0.1
    tilted = norm.logpdf(x, 0.5, 1.2) - norm.logpdf(x, 0, 1)  # the check itself can succeed
    assert residual_of_tilt(tilted, evaluate_basis("normal", x)) < 1e-10


def test_erratum_inner_weight_of_the_drift() -> None:
    """Printed with n_i for n_l, the inner sum is no mean: it counts client i's share for every client."""
    client, _, weights, _ = heads()
    each = client.gradients(weights[None])
    w = client.client_weights
    assert np.ptp(w) > 0
    meant = sum(w[i] * ((each[i] - client.average(each)) ** 2).sum() for i in range(3))
    printed = sum(w[i] * ((each[i] - w[i] * each.sum(0)) ** 2).sum() for i in range(3))
    assert client.drift(weights) == pytest.approx(float(meant), rel=1e-12)
    assert printed != pytest.approx(float(meant), rel=1e-3)


def test_erratum_the_contraction_proof_drops_a_cross_term() -> None:
    """``||a + b||^2 <= ||a||^2 + ||b||^2`` fails at clients; the chain before it needs a smaller rate too."""
    world = World.draw(300, 0, 0)
    ridge = 0.05
    head = Head.of(world.x, world.client, world.client, 3)
    smooth = head.smoothness() + ridge
    rate = 1 / smooth
    optimum = world.minimisers(0.0001, ridge)[0]
    point = optimum + 0.01 * np.random.default_rng(0).normal(size=optimum.shape)
    pooled = head.gradient(point)
    fails: list[bool] = []
    for own in head.gradients(point[None]):
        after = ((point - rate * (own + ridge * point) - optimum) ** 2).sum()
        claimed = (1 - rate * ridge) * ((point - optimum) ** 2).sum() + rate**2 * ((pooled - own) ** 2).sum()
        fails.append(bool(after > claimed))
    assert any(fails)
    assert 1 - 2 * rate * ridge + rate**2 * smooth**2 > 1 - rate * ridge  # the printed chain at the rate 1 / L
    small = ridge / smooth**2
    assert 1 - 2 * small * ridge + small**2 * smooth**2 <= 1 - small * ridge + 1e-15


def test_impossible_tilts_are_refused() -> None:
    with refused("no reference on these observations"):
        solve_multipliers(np.full((5, 2), 1.0))
