"""A whole analysis of several samples: fit, goodness of fit, tests, estimates with intervals; as values and as text."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from feddrm.drm.basis import AUTO, Basis, Floats, as_rows
from feddrm.drm.basis_choice import CANDIDATES, FOLDS, choose_basis
from feddrm.drm.density_ratio import DensityRatioFit, DensityRatioModel, Samples
from feddrm.drm.inference import estimates
from feddrm.drm.inference.estimates import check_levels, normal_quantile, single_column, weighted_quantiles
from feddrm.drm.inference.goodness_of_fit import GoodnessOfFit, goodness_of_fit
from feddrm.drm.inference.hypothesis_tests import HypothesisTest, Testing, homogeneity, pairwise, without_terms
from feddrm.drm.inference.mean_differences import mean_differences, pairs, welch_differences
from feddrm.drm.inference.quantile_tests import equal_quantiles, quantile_difference_interval, require_reached
from feddrm.drm.inference.resampling import bootstrap, check_replicates
from feddrm.drm.summary_text import coefficient_block, heading, two_columns
from feddrm.drm.zero_excess import TwoPartFit
from feddrm.errors import FeddrmError, SettingError
from feddrm.typed_settings import typed_arguments

QUARTILES = (0.25, 0.5, 0.75)
CLEAR_GAIN = 5.0  # of held-out log likelihood; by chance a basis that is no better gains about 1
MOST_COMPARED = 6000  # observations; with more, the distributions tell a wrong basis by themselves


class BasisWarning(UserWarning):
    """The basis fits badly, so intervals and p-values may be wrong."""


@dataclass(frozen=True)
class AnalysisSettings:
    """What to report: quantile levels, confidence, how to test, bootstrap intervals, zeros apart."""

    levels: tuple[float, ...] = QUARTILES
    confidence: float = 0.95
    testing: Testing = field(default_factory=Testing)
    bootstrap: int = 0  # samples for intervals of quantiles and means; 0: large-sample intervals
    zeros: bool = False  # model the share of zeros apart from the positive observations
    absent: tuple[str, ...] = ()  # terms that are tested to be zero

    def __post_init__(self) -> None:
        check_levels(self.levels)
        normal_quantile(self.confidence)
        if self.bootstrap:
            check_replicates(self.bootstrap)
            if self.zeros:
                raise SettingError("with zeros apart, intervals are large-sample ones: give bootstrap 0")


@dataclass(frozen=True, eq=False)
class Analysis:
    """The results. ``two_part`` is there if zeros are modelled apart; ``fit`` is then that of the positive ones."""

    fit: DensityRatioFit
    settings: AnalysisSettings
    two_part: TwoPartFit | None = None

    @property
    def tested(self) -> bool:
        """Whether there are tests: a ridge biases them."""
        return self.fit.model.ridge == 0

    @property
    def single(self) -> bool:
        """Whether there is one column, so that quantiles and distribution functions are defined."""
        return len(self.fit.columns) == 1

    @cached_property
    def _judged(self) -> GoodnessOfFit | FeddrmError | None:
        try:
            return goodness_of_fit(self.fit, seed=self.settings.testing.seed) if self.tested else None
        except FeddrmError as error:
            return error

    @property
    def goodness(self) -> GoodnessOfFit | None:
        """How well the basis fits; None for a fit with a ridge, or if too few replicates have a finite fit."""
        return self._judged if isinstance(self._judged, GoodnessOfFit) else None

    @cached_property
    def doubts(self) -> list[str]:
        """What speaks against the basis: the distributions, or another basis that predicts much better."""
        basis = self.fit.model.basis
        doubts = [self.goodness.warning(basis)] if self.goodness and self.goodness.doubtful else []
        if isinstance(self._judged, FeddrmError):
            doubts.append(f"goodness of fit of basis {basis} is not known: {self._judged}")
        scores = self._held_out
        if isinstance(basis, str) and basis in scores:
            best = max(scores, key=lambda name: scores[name])
            gain = (scores[best] - scores[basis]) * len(self.fit.owner)
            if gain > CLEAR_GAIN:
                doubts.append(
                    f"basis {basis} predicts held-out observations worse than {best} (log likelihood lower by "
                    f"{gain:.1f}): its intervals and p-values may be wrong; choose {best}, or 'auto'"
                )
        return doubts

    @cached_property
    def _held_out(self) -> Mapping[str, float]:
        """The held-out log likelihood of the basis and of others that can be fitted to four fifths of the samples."""
        basis = self.fit.model.basis
        if self.fit.choice or not isinstance(basis, str) or not self._comparable:
            return self.fit.choice.scores if self.fit.choice else {}
        others = [name for name in CANDIDATES if name not in ("identity", "normal" if "poly" in basis else basis)]
        try:
            return choose_basis(self.fit.samples, (basis, *others)).scores
        except FeddrmError:
            return {}  # small samples may be separated without a fifth of them

    @property
    def _comparable(self) -> bool:
        """Whether other bases can be tried: no ridge, one column, enough observations and not too many."""
        enough = self.fit.counts.min() >= FOLDS and len(self.fit.owner) <= MOST_COMPARED
        return self.tested and self.single and bool(enough)

    @cached_property
    def tests(self) -> list[tuple[HypothesisTest, float | None]]:
        """Homogeneity, absent terms, every pair with Holm's p-value, and every quantile level."""
        if not self.tested:
            return []
        how = self.settings.testing
        whole = self.two_part.homogeneity(how) if self.two_part else homogeneity(self.fit, how)
        results: list[tuple[HypothesisTest, float | None]] = [(whole, None)]
        if self.settings.absent:
            results.append((without_terms(self.fit, self.settings.absent, how), None))
        if len(self.fit.names) > 2:
            part = ", without zeros" if self.two_part else ""
            pairs = pairwise(self.fit, how)
            results += [(replace(test, hypothesis=test.hypothesis + part), adjusted) for test, adjusted in pairs]
        if self.single and not self.two_part:
            each = [self._quantile_tests[level] for level in self.settings.levels]
            results += [(test, None) for test in each if isinstance(test, HypothesisTest)]
        return results

    @cached_property
    def _quantile_tests(self) -> dict[float, HypothesisTest | FeddrmError]:
        """The test of every quantile level, or why it has none."""
        results: dict[float, HypothesisTest | FeddrmError] = {}
        for level in self.settings.levels:
            try:
                results[level] = equal_quantiles(self.fit, level, None, self.settings.testing.statistic)
            except FeddrmError as error:
                results[level] = error
        return results

    @cached_property
    def unreached(self) -> dict[float, str]:
        """Quantile levels beyond the observations, which have neither test nor interval, and why."""
        reasons = {}
        for level in self.settings.levels if self.single and not self.two_part else ():
            try:
                require_reached(self.fit, level, range(len(self.fit.names)))
            except FeddrmError as error:
                reasons[level] = str(error)
        return reasons

    @property
    def warnings(self) -> list[str]:
        """The doubts, and every quantile level without a test or an interval."""
        tests = self._quantile_tests if self.tested and self.single and not self.two_part else {}
        failed = {level: str(error) for level, error in tests.items() if isinstance(error, FeddrmError)}
        return [*self.doubts, *(failed | self.unreached).values()]

    @cached_property
    def means(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Values, standard errors, lower and upper limits, by population and column."""
        estimate = self.two_part.mean() if self.two_part else estimates.mean(self.fit)
        limits = estimate.interval(self.settings.confidence)
        if self.settings.bootstrap:
            drawn = bootstrap(self.fit, lambda w: w.T @ self.fit.values, self.settings.bootstrap, self._seed)
            return estimate.value, drawn.error, *drawn.interval(self.settings.confidence, self.fit.counts)
        return estimate.value, estimate.error, *limits

    @cached_property
    def quantiles(self) -> tuple[Floats, Floats, Floats] | None:
        """Values, lower and upper limits, by population and level; None for several columns."""
        levels, confidence = self.settings.levels, self.settings.confidence
        if not self.single:
            return None
        if self.two_part:
            return self.two_part.quantile(levels), *self.two_part.quantile_interval(levels, confidence)
        value = estimates.quantile(self.fit, levels)
        if not self.settings.bootstrap:
            return value, *estimates.quantile_interval(self.fit, levels, confidence)
        x, wanted = single_column(self.fit), np.tile(levels, (len(self.fit.names), 1))
        drawn = bootstrap(self.fit, lambda w: weighted_quantiles(x, w, wanted), self.settings.bootstrap, self._seed)
        return value, *drawn.interval(confidence, self.fit.counts)

    @property
    def _seed(self) -> int:
        return self.settings.testing.seed

    def facts(self) -> dict[str, Any]:
        """All results as plain values."""
        fit = self.fit
        tests = [asdict(test) | ({} if holm is None else {"holm_p_value": holm}) for test, holm in self.tests]
        facts: dict[str, Any] = {
            "basis": fit.model.basis if isinstance(fit.model.basis, str) else repr(fit.model.basis),
            "basis_scores": dict(fit.choice.scores) if fit.choice else None,
            "ridge": fit.model.ridge,
            "reference": fit.names[0],
            "terms": ["1", *fit.terms],
            "confidence": self.settings.confidence,
            "log_likelihood": fit.log_likelihood,
            "profile_log_likelihood": fit.profile_log_likelihood,
            "goodness_of_fit": asdict(self.goodness) if self.goodness else None,
            "warnings": self.warnings,
            "homogeneity": tests[0] if tests else None,
            "tests": tests,
            "populations": [self._population(i) for i in range(len(fit.names))],
        }
        facts["mean_differences"] = self._mean_differences()
        if self.single:
            dominance = self.two_part.dominance() if self.two_part else estimates.dominance(fit)
            facts["dominance"] = _interval_facts(dominance, self.settings.confidence)
            if not self.two_part:
                facts["quantile_differences"] = _difference_facts(fit, self.settings, self.unreached)
        return facts

    def _population(self, i: int) -> dict[str, Any]:
        fit, tilts = self.fit, estimates.tilts(self.fit)
        mean, error, low, high = ([*map(float, part[i])] for part in self.means)
        facts: dict[str, Any] = {
            "name": fit.names[i],
            "n": int(self.two_part.sizes[i] if self.two_part else fit.counts[i]),
            "tilt": tilts.value[i].tolist(),
            "standard_error": tilts.error[i].tolist(),
            "mean": dict(zip(fit.columns, mean, strict=True)),
            "mean_standard_error": dict(zip(fit.columns, error, strict=True)),
            "mean_interval": {c: [a, b] for c, a, b in zip(fit.columns, low, high, strict=True)},
        }
        if self.two_part:
            limits = [float(limit[i]) for limit in self.two_part.share_interval(self.settings.confidence)]
            facts["zeros"] = {"count": int(self.two_part.zeros[i]), "share": float(self.two_part.shares[i])}
            facts["zeros"] |= dict(zip(("low", "high"), limits, strict=True))
        if self.quantiles is not None:
            columns = zip(self.settings.levels, *(part[i].tolist() for part in self.quantiles), strict=True)
            facts["quantiles"] = [
                dict(zip(("level", "value", "low", "high"), column, strict=True))
                | (dict.fromkeys(("low", "high")) if column[0] in self.unreached else {})
                for column in columns
            ]
        return facts

    def _mean_differences(self) -> list[dict[str, Any]]:
        """Every two populations' difference of means, by the model and by Welch's interval, column by column.

        The intervals are large-sample ones, also where others are by the bootstrap.
        """
        fit, two_part, level = self.fit, self.two_part, self.settings.confidence
        by_model = two_part.mean_differences() if two_part else mean_differences(fit)
        welch = welch_differences(two_part.whole_samples() if two_part else [as_rows(x) for x in fit.samples])
        both = [np.stack([estimate.value, *estimate.interval(level)], axis=-1) for estimate in (by_model, welch)]
        return [
            {"population": fit.names[j], "less": fit.names[i], "column": name}
            | _limits(both[0][row, column])
            | {"welch": _limits(both[1][row, column])}
            for row, (i, j) in enumerate(pairs(len(fit.names)))
            for column, name in enumerate(fit.columns)
        ]

    def summary(self) -> str:
        """The fit as a page of text, in the form that statsmodels prints."""
        fit, tilts = self.fit, estimates.tilts(self.fit)
        rows = [
            ("Basis:", f"{fit.model.basis}", "No. Observations:", f"{len(fit.owner)}"),
            ("Reference:", fit.names[0], "No. Populations:", f"{len(fit.names)}"),
            ("Ridge:", f"{fit.model.ridge:g}", "Df Model:", f"{fit.xi[1:].size}"),
            ("Log-Likelihood:", f"{fit.log_likelihood:.4f}", "Profile log EL:", f"{fit.profile_log_likelihood:.4f}"),
        ]
        if self.tested:
            test = self.tests[0][0]
            rows.append(("Homogeneity:", f"{test.statistic:.3f}", "p-value:", f"{test.p_value:.3g}"))
        if good := self.goodness:
            rows.append(("Goodness of fit:", f"{good.statistic:.3f}", "p-value:", f"{good.p_value:.3g}"))
        blocks = [
            coefficient_block(name, ("1", *fit.terms), tilts.value[i], tilts.error[i], self.settings.confidence)
            for i, name in enumerate(fit.names)
            if i
        ]
        return "\n".join([heading("Density Ratio Model Results"), two_columns(rows), *blocks])


@typed_arguments
def analyse(
    samples: Samples,
    basis: Basis = AUTO,
    settings: AnalysisSettings | None = None,
    columns: Sequence[str] | None = None,
    ridge: float = 0.0,
) -> Analysis:
    """Fit, test and estimate. Warns with :class:`BasisWarning` if the basis fits badly."""
    settings, model = settings or AnalysisSettings(), DensityRatioModel(basis, ridge=ridge)
    if settings.absent and ridge:
        raise SettingError(f"absent term '{settings.absent[0]}': a fit with a ridge has no tests: give ridge 0")
    two_part = TwoPartFit.of(model, samples, columns) if settings.zeros else None
    analysis = Analysis(two_part.positive if two_part else model.fit(samples, columns), settings, two_part)
    for doubt in analysis.doubts:
        warnings.warn(doubt, BasisWarning, stacklevel=3)
    return analysis


def _limits(numbers: Floats) -> dict[str, float]:
    return dict(zip(("value", "low", "high"), numbers.tolist(), strict=True))


def _interval_facts(estimate: estimates.Estimate, confidence: float) -> dict[str, Any]:
    low, high = estimate.interval(confidence)
    return {"value": estimate.value.tolist(), "low": low.tolist(), "high": high.tolist()}


def _difference_facts(
    fit: DensityRatioFit, settings: AnalysisSettings, unreached: Mapping[float, str]
) -> dict[str, Any]:
    values = estimates.quantile(fit, settings.levels)
    low, high = quantile_difference_interval(fit, settings.levels, settings.confidence)
    facts: dict[str, Any] = {"value": (values - values[0]).tolist(), "low": low.tolist(), "high": high.tolist()}
    for row in (*facts["low"], *facts["high"]):
        row[:] = [None if level in unreached else limit for level, limit in zip(settings.levels, row, strict=True)]
    return facts
