"""The density ratio model when every population is a client of a federation: sums travel, no observation does.

The basis functions are features, and the questions are those of a router's fit without a ridge. So the clients may be
in this process or at sites of a deployed federation. Newton's method finds the optimum in about ten messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigh
from scipy.stats import chi2
from torch import Tensor

from feddrm.data import Federation
from feddrm.drm.basis import BASES, Floats, check_basis, terms
from feddrm.drm.inference import Estimate, HypothesisTest
from feddrm.errors import FeddrmError, SettingError
from feddrm.registry import check_choice
from feddrm.router import BasisFeature, Holdout, Recipe, RouterSettings
from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.fit.cohort import Cohort, Facts, FitRequest, Trunk
from feddrm.router.fit.local_cohort import LocalCohort
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.router.solver.hessian import Hessian
from feddrm.router.solver.problem import Problem, Whitening, add
from feddrm.tables.column_kinds import NumberColumn

HOLDOUT = Holdout(2, 2)  # the cohort's moments come in parts; this fit holds out none
MOST_STEPS = 100  # of Newton's method; ten are usual
LARGEST_SPREAD = 50.0  # of log ratios, in pooled standard deviations: populations that the basis separates
ALL_CLASSIFIED = np.log(2)  # a smaller loss: every observation's own population has a probability above a half
SETTLED = 1e-10  # the largest change of a log ratio in the last step


class IncomparableError(FeddrmError):
    """Populations to which the basis cannot be fitted."""


@dataclass(frozen=True, eq=False)
class FederatedFit:
    """Tilts against the first population with errors, and the test that all are equal; from sums alone."""

    names: tuple[str, ...]
    counts: Floats
    terms: tuple[str, ...]
    tilts: Estimate  # one row (gamma dagger, xi) per population
    log_likelihood: float
    steps: int  # of Newton's method, each a message to every client
    subject_effects: Floats  # variances of slopes over those of independent samples, along common axes

    @property
    def homogeneity(self) -> HypothesisTest:
        """The likelihood ratio with its chi-square limit. A correction for small samples would need the observations.

        Where subjects have several samples, the limit is a weighted sum of chi-squares. It is replaced by a multiple of
        one with the same mean and variance (Rao and Scott, 1984).
        """
        null = float((self.counts * np.log(self.counts / self.counts.sum())).sum())
        statistic, effects = max(0.0, 2 * (self.log_likelihood - null)), self.subject_effects
        scale = float(np.square(effects).sum() / effects.sum())
        p_value = float(chi2.sf(statistic / scale, effects.sum() / scale))
        how, factor = "none" if np.all(effects == 1) else "subjects", float(effects.mean())
        return HypothesisTest(" = ".join(self.names), statistic, len(effects), p_value, how, factor)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as the folder of a run holds them."""
        test = self.homogeneity
        how = {} if test.correction == "none" else {"correction": test.correction, "factor": test.factor}
        return {
            "populations": dict(zip(self.names, self.counts.astype(int).tolist(), strict=True)),
            "terms": ["intercept", *self.terms],
            "tilts": dict(zip(self.names, self.tilts.value.tolist(), strict=True)),
            "standard_errors": dict(zip(self.names, self.tilts.error.tolist(), strict=True)),
            "log_likelihood": self.log_likelihood,
            "homogeneity": {"statistic": test.statistic, "degrees": test.degrees, "p_value": test.p_value, **how},
        }


def fit_federation(federation: Federation, basis: str, columns: str | Sequence[str] | None = None) -> FederatedFit:
    """Compare the clients of a federation that is here, on columns of their training samples; None means all."""
    return fit_populations(LocalCohort(federation, RouterSettings()), basis, columns)


def fit_populations(cohort: Cohort, basis: str, columns: str | Sequence[str] | None = None) -> FederatedFit:
    """Fit by questions to the clients. The basis must be a named one: ``auto`` would have to see the observations."""
    facts = cohort.facts
    feature, names = basis_feature(facts, basis, columns)
    labels = tuple(terms(basis, names, len(BASES[basis][0](np.full((1, len(names)), 0.5))[0])))
    if len(facts.names) < 2:
        raise IncomparableError(f"a density ratio needs two populations, but there is {len(facts.names)}: add a client")
    if (size := 1 + len(labels)) > min(facts.sizes):
        name = facts.names[int(np.argmin(facts.sizes))]
        raise IncomparableError(
            f"client '{name}' has {min(facts.sizes)} observations for the {size} parameters of its tilt: give more, or "
            f"a basis with fewer functions"
        )
    recipe = Recipe((feature,))
    cohort.measure(recipe, Trunk(None, {}), HOLDOUT)
    design = cohort.design(recipe)
    assert design.whitening is not None
    if float(design.whitening.values.min()) < 1e-10:
        raise IncomparableError("the basis functions are dependent on these samples: choose one with fewer functions")
    request = FitRequest(design, "client", Problem(len(facts.names), len(labels), ridge=0.0), fold=None)
    point, sums, steps = _maximum(cohort, request, design.whitening)
    tilts, effects = _tilts(cohort, request, point, sums)
    return FederatedFit(facts.names, np.array(facts.sizes, float), labels, tilts, -float(sums["loss"]), steps, effects)


def check_common_basis(basis: str) -> None:
    """Refuse a basis that would have to see the observations of all clients."""
    check_basis(basis)
    if basis not in BASES:
        raise SettingError(f"basis '{basis}' cannot be agreed on over clients: give one of {', '.join(BASES)}")


def basis_feature(
    facts: Facts, basis: str, columns: str | Sequence[str] | None = None
) -> tuple[BasisFeature, list[str]]:
    """The basis functions of raw columns that never miss a value, and the names of the columns.

    A text is the name of one column, not its letters.
    """
    check_common_basis(basis)
    if len(facts.shape) != 1:
        raise SettingError(f"samples of shape {list(facts.shape)} are no rows of a table: a comparison needs columns")
    inputs = list(facts.columns or (f"x{i}" for i in range(facts.shape[0])))
    described = {} if facts.schema is None else {name: c for c in facts.schema.columns for name in c.outputs}
    whole = [name for name in inputs if facts.schema is None or (name in described and not described[name].missing)]
    chosen = [columns] if isinstance(columns, str) else list(whole if columns is None else columns)
    if not chosen:
        given = "every column misses values" if columns is None else "columns=[]"
        raise SettingError(f"{given}, so nothing can be compared: give a column without gaps, or no comparison")
    for name in chosen:
        if name in described and described[name].missing:
            raise SettingError(f"column '{name}' misses values, which were filled in: give some of {', '.join(whole)}")
        check_choice("column", name, whole)
    if twice := [name for name in chosen if chosen.count(name) > 1]:
        raise SettingError(f"column '{twice[0]}' is given twice: give every column once")
    scales = [(c.centre, c.scale) if isinstance(c := described.get(name), NumberColumn) else (0, 1) for name in chosen]
    centre, scale = ([float(value) for value in values] for values in zip(*scales, strict=True))
    return BasisFeature(basis, tuple(map(inputs.index, chosen)), tuple(centre), tuple(scale)), chosen


def _maximum(cohort: Cohort, request: FitRequest, whitening: Whitening) -> tuple[Tensor, ClientSums, int]:
    """The optimum by Newton's method, with the clients' sums there, and the number of questions."""
    point = torch.zeros(request.problem.outputs, request.problem.features + 1, dtype=torch.float64)
    sums, step, best = None, torch.zeros_like(point), np.inf
    for number in range(1, MOST_STEPS):
        answers, _ = cohort.evaluate({"fit": request}, {"fit": point + step}, ["fit"])
        found = add(list(answers["fit"].values()))
        loss = float(found["loss"])
        if loss > best + 1e-9 * abs(best):
            step = step / 2  # too far: ask again on the way
            continue
        point, sums, best = point + step, found, min(loss, best)
        if best < ALL_CLASSIFIED:
            break  # larger tilts are always better, until rounding hides it
        step = torch.zeros_like(point)
        step[1:] = torch.linalg.solve(_information(request.problem, sums), -sums["gradient"][1:].flatten()).view(
            -1, point.shape[1]
        )
        if _spread(whitening, step) < SETTLED:
            return point, sums, number
        if _spread(whitening, point) > LARGEST_SPREAD:
            break
    raise IncomparableError(
        "the fit over clients has no finite optimum: the basis may separate populations perfectly: choose a basis with "
        "fewer functions"
    )


def _information(problem: Problem, sums: Mapping[str, Tensor]) -> Tensor:
    """The second derivative of the loss in all but the first population's parameters."""
    size = (problem.outputs - 1) * (problem.features + 1)
    return Hessian.of(dict(sums), problem).values[1:, :, 1:].reshape(size, size) * sums["count"]


def _spread(whitening: Whitening, point: Tensor) -> float:
    """How far log ratios reach from zero. Slopes of nearly dependent functions may be larger."""
    slopes = whitening.turn(point)[:, :-1] * whitening.values.sqrt()
    return float(torch.hypot(slopes.norm(dim=1), point[:, -1]).max())


def _tilts(cohort: Cohort, request: FitRequest, point: Tensor, sums: ClientSums) -> tuple[Estimate, Floats]:
    """Coefficients of the basis itself with sandwich errors, scores centred within populations and added by subject.

    And the effects of subjects on the variances of the slopes.
    """
    inverse = torch.linalg.inv(_information(request.problem, sums)).numpy()
    scatter = cohort.score_scatter(request, point)
    if few := int(scatter["few"]):
        raise IncomparableError(
            f"the training samples of {few} of the clients are of fewer subjects than the {point.shape[1]} parameters "
            "of a tilt: give more subjects, or a basis with fewer functions"
        )
    counts = np.array(cohort.facts.sizes, float)
    back = _back(request.design)
    value = point.numpy() @ back.T
    value[:, 0] -= np.log(counts / counts[0])
    whole = np.kron(np.eye(len(counts) - 1), back)
    error = np.zeros_like(value)
    covariance, independent = (
        whole @ inverse @ scatter[key].numpy() @ inverse @ whole.T for key in ("scatter", "sample_scatter")
    )
    error[1:] = np.sqrt(np.diag(covariance)).reshape(len(counts) - 1, -1)
    slope = np.arange(len(whole)) % point.shape[1] > 0
    slopes = [matrix[slope][:, slope] for matrix in (covariance, independent)]
    effects = np.ones(len(slopes[0])) if np.array_equal(*slopes) else eigh(*slopes, eigvals_only=True).clip(min=0)
    return Estimate(value, error), effects


def _back(design: DesignMatrix) -> Floats:
    """From (slopes of standardised functions, intercept) to (intercept, slopes of the functions)."""
    scale, mean = design.scaler.scale.double().numpy(), design.scaler.mean.double().numpy()
    slopes = np.column_stack([np.diag(1 / scale), np.zeros(len(scale))])
    return np.vstack([np.append(-mean / scale, 1.0), slopes])
