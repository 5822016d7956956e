"""Tests of the page of an analysis: all tables and figures, one file, names escaped."""

from __future__ import annotations

import re

import numpy as np
import pytest

from feddrm.comparison import analysis_page
from feddrm.comparison.analysis_page import tables
from feddrm.drm import AnalysisSettings, BasisWarning, analyse
from feddrm.drm.inference import Testing
from populations import three

SETTINGS = AnalysisSettings(testing=Testing(correction="none"))


def test_the_page_is_one_file_with_everything() -> None:
    samples = {f"<{name}>": x for name, x in three().items()}
    analysis = analyse(samples, settings=SETTINGS)
    page = analysis_page(analysis)
    captions = [table.caption for table in tables(analysis.facts())]
    assert [caption.split()[0] for caption in captions] == [
        "log", "Tests", "Quantiles", "Quantiles", "Means", "Differences", "Probability", "Choice",
    ]  # fmt: skip
    assert page.count("<table") == 8
    assert page.count("<svg") == 3
    assert "<a>" not in page
    assert "&lt;a&gt;" in page
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert "<script" not in page
    assert "Density Ratio Model Results" in page


def test_numbers_of_the_tables_are_those_of_the_facts() -> None:
    facts = analyse(three(), "normal", SETTINGS).facts()
    by_caption = {table.caption.split()[0]: table for table in reversed(tables(facts))}
    median = facts["populations"][1]["quantiles"][1]
    cell = by_caption["Quantiles"].rows[1].cells[2].text
    assert cell == f"{median['value']:.4g} ({median['low']:.4g} to {median['high']:.4g})"
    assert by_caption["Probability"].rows[0].cells[1].text == "–"
    difference = facts["mean_differences"][0]
    cells = [cell.text for cell in by_caption["Differences"].rows[0].cells]
    welch = difference["welch"]
    assert cells[0] == "b less a"
    assert cells[2] == f"{welch['value']:.4g} ({welch['low']:.4g} to {welch['high']:.4g})"
    assert cells[3] == "100 %"  # the basis has the column itself
    assert by_caption["Tests"].rows[1].cells[4].text == f"{facts['tests'][1]['holm_p_value']:.3g}"


def test_several_columns_zeros_and_warnings() -> None:
    rng = np.random.default_rng(0)
    wide = analysis_page(analyse([rng.normal(size=(40, 2)), rng.normal(0.3, 1, (50, 2))], "identity", SETTINGS))
    assert wide.count("<svg") == 1
    zeros = AnalysisSettings(zeros=True, testing=SETTINGS.testing)
    skewed = [np.where(rng.random(900) < 0.2, 0, np.exp(rng.normal(m, 1, 900))) for m in (0, 0.7)]
    with pytest.warns(BasisWarning):
        page = analysis_page(analyse(skewed, "normal", zeros))
    assert "<strong>Warning:</strong>" in page
    assert "share (95 % interval)" in page
