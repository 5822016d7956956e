"""Tests of the gradient-drift experiment: the client head drifts more than the class head."""

from __future__ import annotations

import numpy as np
import pytest

from feddrm.paper.experiments.descent import Head
from feddrm.paper.experiments.drift import EMBEDDINGS, LABELS, measure_drift, random_federation


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("embedding", EMBEDDINGS)
def test_09_the_client_head_drifts_more_than_the_class_head(labels: str, embedding: str) -> None:
    """In every round of every setting; the amount depends on the setting, so only the sign is claimed."""
    drift = measure_drift(labels, embedding, rounds=30)
    assert (drift.squared["client"] > drift.squared["class"]).all()
    assert (drift.relative["client"] > drift.relative["class"]).all()


def test_09_relative_drift_is_g_over_the_length_of_the_pooled_gradient() -> None:
    x, label, client = random_federation("skewed", "shifted", 5)
    head = Head.of(x, label, client, 10)
    each = head.gradients(head.start()[None])
    pooled = np.average(each, axis=0, weights=head.client_weights)
    apart = sum(w * ((g - pooled) ** 2).sum() for w, g in zip(head.client_weights, each, strict=True))
    drift = measure_drift("skewed", "shifted", rounds=2, seed=5)
    assert drift.squared["class"][0] == pytest.approx(apart, rel=1e-12)
    assert drift.relative["class"][0] == pytest.approx(float(np.sqrt(apart) / np.linalg.norm(pooled)), rel=1e-12)
