"""Tests of the text of summaries."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from feddrm.drm.summary_text import WIDTH, coefficient_block, heading, two_columns


def test_coefficients_have_z_p_and_interval() -> None:
    text = coefficient_block("b", ["1", "x"], np.array([0.5, -1.0]), np.array([0.25, 2.0]), 0.9)
    rule, header, _, first, second, end = text.splitlines()
    assert rule == end == "=" * WIDTH
    assert header.split() == ["b", "coef", "std", "err", "z", "P>|z|", "[0.05", "0.95]"]
    p, reach = 2 * norm.sf(2), norm.ppf(0.95) * 0.25
    assert first.split() == ["1", "0.5000", "0.250", "2.000", f"{p:.3f}", f"{0.5 - reach:.3f}", f"{0.5 + reach:.3f}"]
    assert second.split()[:4] == ["x", "-1.0000", "2.000", "-0.500"]
    assert max(map(len, text.splitlines())) == WIDTH


def test_facts_stand_in_two_columns() -> None:
    lines = (heading("T") + "\n" + two_columns([("A:", "1", "B:", "2"), ("C:", "x" * 99, "D:", "4")])).splitlines()
    assert lines[0].strip() == "T"
    assert lines[2].split() == ["A:", "1", "B:", "2"]
    assert {len(line) for line in lines} == {WIDTH}
