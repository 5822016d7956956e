"""Queries of one kind in one pass."""

from __future__ import annotations

import numpy as np

from feddrm.predictor.query_groups import compute_in_groups


def test_queries_with_equal_options_are_computed_in_one_pass() -> None:
    calls: list[tuple[str, int, float]] = []

    def multiply(kind: str, samples: np.ndarray, factor: float) -> np.ndarray:
        calls.append((kind, len(samples), factor))
        return factor * samples

    queries = [
        ("inputs", np.array([1.0, 2.0]), 2.0),
        ("inputs", np.array([3.0]), 10.0),
        ("inputs", np.array([4.0]), 2.0),
        ("inputs", np.array([5], np.uint8), 2.0),
        ("features", np.array([6.0]), 2.0),
    ]
    answers = compute_in_groups(queries, multiply)
    assert [answer.tolist() for answer in answers] == [[2, 4], [30], [8], [10], [12]]
    assert calls == [("inputs", 3, 2.0), ("inputs", 1, 10.0), ("inputs", 1, 2.0), ("features", 1, 2.0)]
