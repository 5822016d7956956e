"""The accuracies and metrics of a run: names, order and meaning, for tables, figures and pages; read from its files."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from feddrm.errors import FeddrmError
from feddrm.io.text import broken

REMEDY = "restore the file or train the run again"

RULES = {
    "vote": "vote",
    "averaged": "mean of all curves",
    "head_density": "head, density",
    "head_posterior": "head, posterior",
    "exact_density": "exact, density",
    "exact_posterior": "exact, posterior",
    "exact_competence": "competence",
    "consult_2": "consult 2",
    "consult_all": "consult all",
    "refit_density": "refitted heads, density",
    "refit_posterior": "refitted heads, posterior",
    "refit_competence": "refitted heads, competence",
    "refit_all": "refitted heads, consult all",
    "joint": "joint model",
    "joint_posterior": "joint model, posterior",
    "stacked": "stacked",
    "stacked_published": "stacked with published heads",
    "global": "global model",
    "global_probe": "global probe",
    "rival_confident": "rival: most confident",
    "rival_entropy": "rival: least entropy",
    "rival_nearest": "rival: nearest mean",
    "rival_cosine": "rival: cosine of means",
}
BESIDE = ("averaged", *(rule for rule in RULES if rule.endswith("_competence") or rule.startswith("rival_")))
KINDS = ("average", "system", "client", "global", "oracle")
BY_RULE = ("system", "client")
# The glossary's term for every kind.
TERM_OF_KIND = {kind: f"{kind} accuracy" for kind in KINDS} | {"global": "global model"}
# What the figures of a task measure, by the end of their names in files. The client is always told by accuracy.
QUANTITIES = {"accuracy": "accuracy", "c_index": "C-index"}
# The metrics of the answers after the last round, by whose answers they are.
ANSWERS = {
    "own": "Every client answers its own test samples. Probabilities are those of the trained models.",
    "system": "The exact router chooses one client by the density rule. Probabilities are calibrated.",
}
METRIC_LABELS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "auroc": "AUROC",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "brier": "Brier score",
    "ece": "calibration error (ECE)",
    "worst_client": "worst client's accuracy",
}
# The rule that stands for a run where only one can be shown. Fixed in advance: never the best one on test data.
HEADLINE = ("exact_density", "head_density", "vote", "averaged")


class Measure(NamedTuple):
    """One kind of accuracy, with a routing rule where the kind has rules."""

    kind: str
    rule: str = ""

    @property
    def label(self) -> str:
        """The name within its kind: the rule, or the kind itself."""
        return rule_label(self.rule) if self.rule else self.kind

    @property
    def title(self) -> str:
        """The full name, such as ``system (vote)``."""
        return f"{self.kind} ({rule_label(self.rule)})" if self.rule else self.kind

    def key(self, quantity: str) -> str:
        """Its name in files: ``system_accuracy``, ``average_c_index``."""
        return f"{self.kind}_{'accuracy' if self.kind == 'client' else quantity}"

    @property
    def order(self) -> tuple[int, int, str]:
        """The key that sorts measures as tables show them; unknown rules come last."""
        known = [BEST.rule, *RULES]
        return KINDS.index(self.kind), known.index(self.rule) if self.rule in known else len(known), self.rule


# The best answer of each method. It is chosen on the test data, so it is for comparing methods at their best only.
BEST = Measure("system", "best")


@dataclass(frozen=True)
class Score:
    """An accuracy as a fraction, with its standard deviation over the reporting window if it has one."""

    mean: float
    std: float | None = None

    @property
    def percent(self) -> str:
        """The mean in percent, to the two digits that every table shows."""
        return f"{100 * self.mean:.2f}"

    @property
    def spread(self) -> str:
        """``± 0.42``, or empty without a standard deviation."""
        return "" if self.std is None else f"± {100 * self.std:.2f}"

    def __str__(self) -> str:
        return f"{self.percent} {self.spread}".rstrip()


@dataclass(frozen=True)
class AnswerMetric:
    """One metric of the answers: of one run with its bootstrap interval, of several seeds with their deviation.

    Without either, a client's several test samples are of one subject.
    """

    value: float
    interval: tuple[float, float] | None = None
    std: float | None = None
    name: str = ""  # of the worst client
    error_bound: float | None = None  # of an AUROC from histograms

    def text(self, metric: str) -> tuple[str, str]:
        """The value in percent (the Brier score as it is), and what is to be known of it."""

        def figure(value: float) -> str:
            return f"{value:.4f}" if metric == "brier" else f"{100 * value:.2f}"

        notes = [
            f"[{figure(self.interval[0])}, {figure(self.interval[1])}]" if self.interval is not None else "",
            f"± {figure(self.std)}" if self.std is not None else "",
            self.name,
            "(no interval: one subject)" if self.interval is None and self.std is None else "",
            f"(error at most {figure(self.error_bound)})" if self.error_bound is not None else "",
        ]
        return figure(self.value), " ".join(filter(None, notes))


def rule_label(rule: str) -> str:
    """A rule in words; an unknown rule keeps its own name."""
    return RULES.get(rule, rule.replace("_", " "))


def headline(kind: str, measures: Collection[Measure]) -> Measure | None:
    """The measure that stands for its kind; None if there is none of the kind."""
    candidates = sorted((m for m in measures if m.kind == kind), key=lambda m: m.order)
    for rule in HEADLINE:
        if Measure(kind, rule) in candidates:
            return Measure(kind, rule)
    return candidates[0] if candidates else None


def read_scores(entry: Mapping[str, Any], path: Path) -> dict[Measure, Score]:
    """Every accuracy in a summary or a metrics line, of any rule; values that are null or absent are left out."""
    values: dict[Measure, Score | None] = {}
    for kind in KINDS:
        key = next((k for quantity in QUANTITIES if (k := Measure(kind).key(quantity)) in entry), "")
        value = entry.get(key)
        if kind in BY_RULE:
            rules = read_mapping(value, path, key)
            values |= {Measure(kind, rule): _score(given, path, f"{key}.{rule}") for rule, given in rules.items()}
        else:
            values[Measure(kind)] = _score(value, path, key)
    scores = {measure: score for measure, score in values.items() if score is not None}
    # A global model that answers for the whole system is stored under both names: show it once.
    pooled = scores.get(Measure("system", "global"))
    if pooled is not None and scores.setdefault(Measure("global"), pooled) == pooled:
        del scores[Measure("system", "global")]
    return scores


def _score(value: Any, path: Path, what: str) -> Score | None:
    if isinstance(value, dict):
        mean, std = (
            read_number(value.get("mean"), path, f"{what}.mean"),
            read_number(value.get("std"), path, f"{what}.std"),
        )
    else:
        mean, std = read_number(value, path, what), None
    if mean is None:
        return None
    if not -1e-6 <= mean <= 1 + 1e-6:
        raise broken_run(path, f"{what} should be a fraction between 0 and 1, found {mean:g}")
    return Score(mean, std)


def read_number(value: Any, path: Path, what: str) -> float | None:
    """A finite number; None for null, NaN and infinity (a diverged run)."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise broken_run(path, f"{what} should be a number, found {type(value).__name__}")
    return float(value) if math.isfinite(value) else None


def read_mapping(value: Any, path: Path, what: str) -> Mapping[str, Any]:
    """A mapping; an empty one for null."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise broken_run(path, f"{what} should be a mapping, found {type(value).__name__}")
    return {str(key): entry for key, entry in value.items()}


def broken_run(path: Path, why: str) -> FeddrmError:
    """The error for a file of a run that cannot be used."""
    return broken(path, why, REMEDY)
