"""Tests of whole analyses: facts equal the library's functions, warnings of a bad basis, the summary."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from scipy.stats import ttest_ind

from feddrm.comparison.analysis_page import tables
from feddrm.drm import AnalysisSettings, BasisWarning, DensityRatioModel, TwoPartFit, analyse, inference
from feddrm.drm.inference import Testing
from populations import three
from refusal import refused

QUICK = Testing(correction="none")


def test_facts_are_what_the_functions_say() -> None:
    settings = AnalysisSettings(levels=(0.1, 0.5), confidence=0.9, testing=QUICK, absent=("x^2",))
    analysis = analyse(three(), "normal", settings)
    facts = json.loads(json.dumps(analysis.facts()))
    fit = DensityRatioModel().fit(three())
    assert facts["homogeneity"]["p_value"] == inference.homogeneity(fit, QUICK).p_value
    names = [test["hypothesis"] for test in facts["tests"]]
    assert names == ["a = b = c", "no x^2", "a = b", "a = c", "b = c"] + [
        f"quantile {level}: a = b = c" for level in (0.1, 0.5)
    ]
    assert facts["tests"][2]["holm_p_value"] == inference.pairwise(fit, QUICK)[0][1]
    low, high = inference.quantile_interval(fit, (0.1, 0.5), 0.9)
    b = facts["populations"][1]
    assert [q["low"] for q in b["quantiles"]] == low[1].tolist()
    assert [q["high"] for q in b["quantiles"]] == high[1].tolist()
    assert b["mean_interval"]["x"] == [float(limit[1, 0]) for limit in inference.mean(fit).interval(0.9)]
    assert facts["dominance"]["value"] == inference.dominance(fit).value.tolist()
    assert facts["quantile_differences"]["value"][0] == [0, 0]
    by_model, welch = inference.mean_differences(fit), ttest_ind(three()["c"], three()["b"], equal_var=False)
    difference = facts["mean_differences"][2]
    assert [difference[key] for key in ("population", "less", "column")] == ["c", "b", "x"]
    assert [difference[key] for key in ("low", "high")] == [float(limit[2, 0]) for limit in by_model.interval(0.9)]
    theirs = welch.confidence_interval(0.9)
    assert [difference["welch"][key] for key in ("low", "high")] == pytest.approx([theirs.low, theirs.high])
    assert facts["warnings"] == []
    assert facts["basis_scores"] is None


def test_a_bad_basis_is_warned_of() -> None:
    """Normal on lognormal data, whose intervals cover far less than they claim."""
    rng = np.random.default_rng(1)
    samples = [np.exp(rng.normal(m, 1, 200)) for m in (0.0, 0.5, 1.0)]
    with pytest.warns(BasisWarning) as caught:
        analysis = analyse(samples, "normal", AnalysisSettings(testing=QUICK))
    texts = [str(warning.message) for warning in caught]
    assert texts == analysis.doubts == analysis.facts()["warnings"]
    assert any("predicts held-out observations worse than" in text for text in texts)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BasisWarning)
        chosen = analyse(samples, settings=AnalysisSettings(testing=QUICK))
    assert chosen.fit.model.basis == "lognormal"
    assert chosen.facts()["basis_scores"]["lognormal"] == max(chosen.facts()["basis_scores"].values())


@pytest.mark.slow
def test_a_right_basis_is_seldom_warned_of() -> None:
    rng = np.random.default_rng(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BasisWarning)
        worse = [
            any("worse" in doubt for doubt in analyse([rng.gamma(2, 1, 60), rng.gamma(3, 1, 60)], "gamma").doubts)
            for _ in range(60)
        ]
    assert sum(worse) <= 2


def test_the_bootstrap_interval_of_a_large_sample_is_not_widened_for_a_small_one() -> None:
    rng = np.random.default_rng(0)
    samples = {"few": rng.normal(0, 1, 8), "many": rng.normal(0.5, 1, 300)}
    settings = AnalysisSettings(levels=(0.5,), testing=QUICK, bootstrap=400)
    analysis = analyse(samples, "identity", settings)
    formula = inference.mean(analysis.fit).interval()
    _, _, low, high = analysis.means
    assert (high - low)[1, 0] == pytest.approx((formula[1] - formula[0])[1, 0], rel=0.1)  # it was 37 % wider
    assert analysis.quantiles is not None
    _, low, high = analysis.quantiles
    woodruff = inference.quantile_interval(analysis.fit, 0.5)
    assert (high - low)[1, 0] == pytest.approx((woodruff[1] - woodruff[0])[1, 0], rel=0.2)


def test_bootstrap_intervals_are_those_of_the_bootstrap() -> None:
    analysis = analyse(three(), "normal", AnalysisSettings(levels=(0.5,), testing=QUICK, bootstrap=60))
    x = analysis.fit.values[:, 0]
    drawn = inference.bootstrap(analysis.fit, lambda w: w.T @ x, 60)
    limits = drawn.interval(sizes=analysis.fit.counts)
    for i, population in enumerate(analysis.facts()["populations"]):
        assert population["mean_interval"]["x"] == pytest.approx([limit[i] for limit in limits])
        assert population["mean_standard_error"]["x"] == pytest.approx(drawn.error[i])
        (median,) = population["quantiles"]
        assert median["low"] <= median["value"] <= median["high"]


def test_small_samples_are_analysed_where_the_basis_cannot_be_judged() -> None:
    # Without a fifth of them, and in many replicates, these samples are separated. The fit itself is finite.
    samples = {"a": [0.0, 1.0, 2.0, 3.0, 3.2], "b": [3.0, 4.0, 5.0, 6.0, 7.0]}
    with pytest.warns(BasisWarning, match="goodness of fit of basis identity is not known: in .* of 199"):
        analysis = analyse(samples, "identity", AnalysisSettings(levels=(0.5,), testing=QUICK))
    facts = analysis.facts()
    assert facts["goodness_of_fit"] is None
    assert facts["homogeneity"]["p_value"] == inference.homogeneity(analysis.fit, QUICK).p_value
    assert "Homogeneity:" in analysis.summary()


def test_a_level_beyond_the_observations_leaves_the_others_alone() -> None:
    rng = np.random.default_rng(0)
    samples = {"a": rng.normal(0, 1, 100), "b": rng.normal(0.3, 1, 100)}
    whole = analyse(samples, "normal", AnalysisSettings((0.5,))).facts()
    facts = analyse(samples, "normal", AnalysisSettings((0.0001, 0.5, 0.9999))).facts()
    assert facts["warnings"] == [
        f"quantile {level} has neither test nor interval: of 200 observations, 0.02 are expected beyond it: "
        "choose a level nearer to 0.5"
        for level in (0.0001, 0.9999)
    ]
    assert facts["tests"] == whole["tests"]
    for mine, alone in zip(facts["populations"], whole["populations"], strict=True):
        assert [q["low"] for q in mine["quantiles"]] == [None, alone["quantiles"][0]["low"], None]
        assert mine["quantiles"][0]["value"] == min(map(np.min, samples.values()))
    assert facts["quantile_differences"]["high"][1][::2] == [None, None]
    assert "(no interval)" in str(tables(facts))
    # Where many share the smallest value, it is the quantile.
    shared = {name: np.maximum(x, -0.5) for name, x in samples.items()}
    assert not analyse(shared, "identity", AnalysisSettings((0.0001, 0.5))).unreached


def test_zeros_apart() -> None:
    rng = np.random.default_rng(3)
    draws = {name: np.exp(rng.normal(m, 1, 90)) for name, m in (("a", 0.0), ("b", 0.2))}
    samples = {name: np.where(rng.random(90) < 0.3, 0, x) for name, x in draws.items()}
    analysis = analyse(samples, "lognormal", AnalysisSettings(zeros=True, testing=QUICK))
    both = TwoPartFit.of(DensityRatioModel("lognormal"), samples)
    facts = analysis.facts()
    assert facts["homogeneity"]["p_value"] == both.homogeneity(QUICK).p_value
    assert facts["populations"][0]["n"] == 90
    assert facts["populations"][0]["zeros"]["share"] == both.shares[0]
    assert facts["populations"][1]["mean"]["x"] == both.mean().value[1, 0]
    (difference,) = facts["mean_differences"]
    theirs = ttest_ind(samples["b"], samples["a"], equal_var=False).confidence_interval()
    assert [difference["welch"][key] for key in ("low", "high")] == pytest.approx([theirs.low, theirs.high])
    assert difference["value"] == both.mean_differences().value[0, 0]
    assert facts["dominance"]["value"] == both.dominance().value.tolist()
    assert facts["dominance"]["low"][0][1] == both.dominance().interval()[0][0, 1]
    samples["c"] = draws["a"] + 0.1  # without a zero
    more = analyse(samples, "lognormal", AnalysisSettings(zeros=True, testing=QUICK))
    names = [test.hypothesis for test, _ in more.tests]
    assert names[:2] == ["a = b = c, zeros included", "a = b, without zeros"]
    assert more.facts()["populations"][2]["zeros"]["low"] == 0


def test_samples_too_small_to_compare_bases_are_analysed() -> None:
    analysis = analyse([[1.0, 2.0, 3.0, 6.0], np.arange(1.0, 9)], "identity", AnalysisSettings(testing=QUICK))
    assert analysis.doubts == []


def test_a_ridge_leaves_tests_out() -> None:
    analysis = analyse(three(), "normal", ridge=1.0)
    assert analysis.tests == []
    assert analysis.goodness is None
    assert "Goodness" not in analysis.summary()


def test_the_summary_has_every_coefficient() -> None:
    analysis = analyse(three(), "normal", AnalysisSettings(testing=QUICK))
    text = analysis.summary()
    tilts = inference.tilts(analysis.fit)
    for i in (1, 2):
        for value, error in zip(tilts.value[i], tilts.error[i], strict=True):
            assert f"{value:.4f}{error:10.3f}{value / error:9.3f}" in text
    assert "No. Observations:                  250" in text
    assert f"{analysis.fit.log_likelihood:.4f}" in text
    assert max(map(len, text.splitlines())) == 78


def test_bad_settings_are_refused() -> None:
    with refused("quantile levels [0.5, 2.0]"):
        AnalysisSettings(levels=(0.5, 2.0))
    with refused("quantile levels []"):
        AnalysisSettings(levels=())
    with refused("confidence 95"):
        AnalysisSettings(confidence=95)
    with refused("3 bootstrap samples are too few"):
        AnalysisSettings(bootstrap=3)
    with refused("with zeros apart, intervals are large-sample ones: give bootstrap 0"):
        AnalysisSettings(bootstrap=99, zeros=True)
    with refused("absent term 'x': a fit with a ridge has no tests"):
        analyse(three(), "normal", AnalysisSettings(absent=("x",)), ridge=1.0)
