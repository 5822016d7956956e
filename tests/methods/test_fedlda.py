"""FedLDA: discriminants of the pooled samples, and a client's own class frequencies."""

from __future__ import annotations

import pytest
import torch

from feddrm.methods import FedLDA
from feddrm.moments import Moments, discriminant_head


def test_heads_are_discriminants():
    generator = torch.Generator().manual_seed(0)
    moments = Moments.of(torch.randn(50, 3, generator=generator).double(), torch.arange(50) % 2, 0, 1, 2)
    for target in ("class", "client"):
        assert torch.equal(FedLDA().head(moments, target, 0.1), discriminant_head(moments, target, 0.1))


def test_a_correction_replaces_the_class_frequencies():
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)).double()
    own = Moments.of(x, (torch.arange(40) < 10).long(), 0, 1, 3)  # 30 of class 0, 10 of class 1, none of class 2
    nothing = Moments.of(x[:0], torch.zeros(0, dtype=torch.int64), 0, 1, 3)
    pooled = torch.tensor([100.0, 100.0, 200.0], dtype=torch.float64)
    ((correction, _),) = FedLDA().corrections([(own, nothing)], [], torch.zeros(3, 3, dtype=torch.float64), pooled, 1.0)
    assert not bool(correction[:, :-1].any())
    prior = torch.tensor([0.25, 0.25, 0.5])
    changed = (correction[:, -1].exp() * prior).tolist()
    assert changed == pytest.approx([30.25 / 41, 10.25 / 41, 0.5 / 41])
    assert sum(changed) == pytest.approx(1)
