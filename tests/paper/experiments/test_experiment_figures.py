"""Tests of the figures of both experiments."""

from __future__ import annotations

from feddrm.paper.experiments.drift import drift_experiment
from feddrm.paper.experiments.experiment_figures import drift_figure, tradeoff_figure
from feddrm.paper.experiments.tradeoff import tradeoff_experiment


def test_experiment_figures_show_what_was_measured() -> None:
    drifts = drift_experiment(rounds=3)
    figure = drift_figure(drifts)
    assert len(figure.axes) == 6
    assert figure.axes[4].lines[0].get_ydata().tolist() == drifts[4].relative["client"].tolist()
    result = tradeoff_experiment(rounds=2, size=300, worlds=1)
    panels = tradeoff_figure(result).axes
    assert panels[0].lines[0].get_ydata().tolist() == result.floor.tolist()
    assert panels[2].lines[2].get_ydata().tolist() == result.lemma["class"].tolist()
