"""Why a client was chosen, in words: one sentence of an explanation's plain values, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STRANGE = "unlike the training data"
ROUGHER, SMOOTHER = (f"far {side} than all training pictures" for side in ("rougher", "smoother"))
FEW, LEAST = 4, 0.005  # terms in a sentence, and the least share of the others that it mentions


def explanation_sentence(entry: Mapping[str, Any] | None) -> str:
    """The largest terms in words: "oslo over lima +2.31: age 82 +1.31, chol missing +0.80, everything else +0.20".

    ``entry`` is of :meth:`feddrm.router.Explanation.as_dicts` or a gateway's ``why``; without one, it is empty.
    """
    if entry is None:
        return ""
    if unlike := entry["unlike"][:FEW]:
        shares = [(_term_text(term), term["share"]) for term in unlike]
        shares += [("everything else", left)] if (left := 1 - sum(share for _, share in shares)) > LEAST else []
        return f"{STRANGE}: " + ", ".join(f"{text} ({share:.0%})" for text, share in shares)
    rest = entry["rest"] + sum(term["log_odds"] for term in entry["terms"][FEW:])
    terms = [(_term_text(term), term["log_odds"]) for term in entry["terms"][:FEW]]
    terms += [("everything else", rest), ("baseline", entry["baseline"]), ("sizes", entry["sizes"])]
    said = ", ".join(f"{text} {number:+.2f}" for text, number in terms if number)
    return f"{entry['client']} over {entry['over']} {entry['log_odds']:+.2f}: {said}"


def _term_text(term: Mapping[str, Any]) -> str:
    """A term's name, with its value in a table."""
    if "value" not in term:
        return str(term["name"])
    return f"{term['name']} {'missing' if term['value'] is None else term['value']}"
