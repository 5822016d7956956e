"""The summary of a run: mean and spread over its last evaluated rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from feddrm.errors import FeddrmError


def summarise(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every number replaced by ``{"mean": .., "std": ..}`` over these evaluated rounds.

    ``std`` divides by the number of rounds (ddof = 0), because the paper does not say which it used. It
    is the spread from round to round within one run, not between seeds, and None for a single round. A
    value that is None or missing in any of these rounds is None. Values other than numbers are left out.
    """
    if not rounds:
        raise FeddrmError("no round has been evaluated: there is nothing to summarise")
    summary: dict[str, Any] = {}
    for key in dict.fromkeys(key for line in rounds for key in line):
        values = [line.get(key) for line in rounds]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        nested = [value for value in values if isinstance(value, Mapping)]
        if len(numbers) == len(values):
            summary[key] = {"mean": fmean(numbers), "std": pstdev(numbers) if len(numbers) > 1 else None}
        elif len(nested) == len(values):
            summary[key] = summarise(nested)
        elif len(numbers) + len(nested) + values.count(None) == len(values):
            summary[key] = None
    return summary
