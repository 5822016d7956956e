"""The accuracies and metrics of a run: names, order and meaning, for tables, figures and pages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

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
    """One metric of the answers: of one run with its bootstrap interval, of several seeds with their deviation."""

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
