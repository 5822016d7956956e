"""Queries of the same kind are computed in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def compute_in_groups(queries: Sequence[tuple[Any, ...]], compute: Callable[..., Any]) -> list[Any]:
    """Answer queries ``(kind, samples, *options)``; those with the same kind, data type and options in one pass.

    ``compute(kind, samples, *options)`` returns something with one row per sample that can be sliced.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, (kind, samples, *options) in enumerate(queries):
        groups.setdefault((kind, samples.dtype, *options), []).append(i)
    answers: dict[int, Any] = {}
    for (kind, _, *options), members in groups.items():
        # A copy, also of a single one: a request's bytes are read-only, and torch warns of that.
        rows = compute(kind, np.concatenate([queries[i][1] for i in members]), *options)
        start = 0
        for i in members:
            stop = start + len(queries[i][1])
            answers[i] = rows[start:stop]
            start = stop
    return [answers[i] for i in range(len(queries))]
