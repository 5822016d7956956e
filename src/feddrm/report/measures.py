"""What a run is measured by: names, order and plain words, shared by tables, figures and pages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

RULES = {
    "vote": "vote",
    "head_density": "head, density",
    "head_posterior": "head, posterior",
    "exact_density": "exact, density",
    "exact_posterior": "exact, posterior",
    "consult_2": "consult 2",
    "consult_all": "consult all",
    "refit_density": "refitted heads, density",
    "refit_posterior": "refitted heads, posterior",
    "refit_all": "refitted heads, consult all",
    "joint": "joint model",
    "joint_posterior": "joint model, posterior",
    "stacked": "stacked",
    "stacked_published": "stacked with published heads",
    "global": "global model",
    "global_probe": "global probe",
}
KINDS = ("average", "system", "client", "global", "oracle")
BY_RULE = ("system", "client")
MEANINGS = {
    "average": "Every client answers its own test samples; the mean over clients, by training samples.",
    "system": "All test samples together, each answered the way the rule says, its origin unknown.",
    "client": "How often the router finds the client a test sample came from; the same mean over clients.",
    "global": "The shared model alone answers every test sample; nobody is asked.",
    "oracle": "All test samples together, each answered by the client it came from: perfect routing.",
}
# Which rule stands for a run where only one can be shown: fixed beforehand, never the best on test data.
HEADLINE = ("exact_density", "head_density", "vote")


class Measure(NamedTuple):
    """One kind of accuracy, by one rule where the kind has rules."""

    kind: str
    rule: str = ""

    @property
    def label(self) -> str:
        """The name within its kind: the rule, or the kind itself."""
        return rule_label(self.rule) if self.rule else self.kind

    @property
    def title(self) -> str:
        """The name on its own: ``system (vote)``."""
        return f"{self.kind} ({rule_label(self.rule)})" if self.rule else self.kind

    @property
    def order(self) -> tuple[int, int, str]:
        known = list(RULES)
        return KINDS.index(self.kind), known.index(self.rule) if self.rule in known else len(known), self.rule


@dataclass(frozen=True)
class Score:
    """An accuracy as a fraction, with its standard deviation over the reporting window where there is one."""

    mean: float
    std: float | None = None

    def __str__(self) -> str:
        spread = "" if self.std is None else f" ± {100 * self.std:.2f}"
        return f"{100 * self.mean:.2f}{spread}"


def rule_label(rule: str) -> str:
    """A rule in words; one that is not known here by its own name."""
    return RULES.get(rule, rule.replace("_", " "))


def headline(kind: str, measures: Collection[Measure]) -> Measure | None:
    """The measure that stands for its kind."""
    candidates = sorted((m for m in measures if m.kind == kind), key=lambda m: m.order)
    for rule in HEADLINE:
        if Measure(kind, rule) in candidates:
            return Measure(kind, rule)
    return candidates[0] if candidates else None
