"""The figures of a router's fit for the terminal: rows in groups, and a sentence that says which of them to look at."""

from __future__ import annotations

from feddrm.report.accuracy_measures import Measure, rule_label
from feddrm.report.run_record import RunRecord

# What the rows of each group say, and the rules in it; all others are there for comparison.
SYSTEM = {
    "one client asked": ("exact_density", "exact_posterior", "exact_competence", "head_density", "head_posterior"),
    "several asked": ("consult_2", "consult_all", "vote", "averaged"),
    "heads of this fit": (
        *("refit_density", "refit_posterior", "refit_competence", "refit_all"),
        *("joint", "stacked", "stacked_published", "global_probe"),
    ),
}
OTHERS = "for comparison"
UNNAMED = {"global": "global model", "oracle": "own heads"}  # the kinds without rules
KINDS = {"client": "right client named", "global": "one model for all", "oracle": "own client asked"}
PLACES = ("client", "system", "global", "oracle")  # of the kinds that a router concerns
LOOKED_AT = {"exact_density": "one client asked", "consult_all": "all consulted", "stacked": "stacked heads"}


def fit_rows(record: RunRecord) -> list[list[str]]:
    """Group, rule and percent of every figure; a group stands in its first row."""
    order = [rule for rules in SYSTEM.values() for rule in rules]

    def place(measure: Measure) -> tuple[int, int, tuple[int, int, str]]:
        known = order.index(measure.rule) if measure.rule in order else len(order)
        return PLACES.index(measure.kind), known, measure.order

    rows = [
        [_group(m), UNNAMED.get(m.kind, rule_label(m.rule)), record.scores[m].percent]
        for m in sorted((m for m in record.scores if m.kind in PLACES), key=place)
    ]
    return [["" if i and row[0] == rows[i - 1][0] else row[0], *row[1:]] for i, row in enumerate(rows)]


def _group(measure: Measure) -> str:
    system = next((group for group, rules in SYSTEM.items() if measure.rule in rules), OTHERS)
    return f"{measure.kind}: {KINDS.get(measure.kind, system)}"


def fit_sentence(record: RunRecord) -> str:
    """What the main rows say: queries of unknown origin, answered in three ways, beside the ceiling.

    All figures are of the last round, after which the router was fitted.
    """

    def figure(kind: str, rule: str = "") -> str:
        measure = Measure(kind, rule)
        return f"{100 * record.after_last_round(measure):.1f}" if measure in record.scores else ""

    ways = [f"{words} {value}" for rule, words in LOOKED_AT.items() if (value := figure("system", rule))]
    rounds = (record.summary or {}).get("rounds")
    noun = "C-index over" if record.quantity == "c_index" else "right answers to"
    noun = f"after round {rounds}, {noun}" if rounds else noun
    text = f"{noun[0].upper()}{noun[1:]} queries of unknown origin, in percent: {', '.join(ways)}"
    text += f"; {ceiling} if each went to its own client" if (ceiling := figure("oracle")) else ""
    named = figure("client", "exact_density")
    return f"{text}. The router names that client for {named} %." if named else f"{text}."
