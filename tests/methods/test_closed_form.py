"""What methods without rounds have in common: their settings, and that they do not train."""

from __future__ import annotations

import math

import pytest
import torch

from feddrm.engine import Plan
from feddrm.errors import SettingError
from feddrm.methods import Fed3R, FedLDA, Method, Stage
from feddrm.moments import Moments, discriminant_head, ridge_head

CLOSED = [Fed3R, FedLDA]


def test_the_family():
    assert [member for member in Method.family.values() if member.closed_form] == CLOSED


@pytest.mark.parametrize("kind", CLOSED)
def test_there_are_no_rounds(kind):
    kind().check(0)
    assert kind().phases(Stage(steps=5)) == ()
    with pytest.raises(SettingError, match=rf"{kind.name} has no rounds, not 40: .*feddrm fit"):
        kind().check(40)


def test_no_rounds_are_refused_elsewhere():
    Plan(rounds=0).check(least_rounds=0)
    with pytest.raises(SettingError, match="rounds=0: give at least 1"):
        Plan(rounds=0).check()
    with pytest.raises(SettingError, match="rounds=-1: give at least 0"):
        Plan(rounds=-1).check(least_rounds=0)


@pytest.mark.parametrize("kind", CLOSED)
@pytest.mark.parametrize("ridge", [-1.0, math.nan, math.inf])
def test_impossible_ridges_are_refused(kind, ridge):
    with pytest.raises(SettingError, match=r"ridge=.*from zero up"):
        kind(ridge=ridge).check(0)


@pytest.mark.parametrize("kind", CLOSED)
def test_a_negative_number_of_polishing_rounds_is_refused(kind):
    with pytest.raises(SettingError, match="polish=-1"):
        kind(polish=-1).check(0)


@pytest.mark.parametrize("kind", CLOSED)
def test_summaries_fit_a_listing(kind):
    assert 20 < len(kind.summary()) <= 110
    assert not kind.summary().endswith(".")


@pytest.mark.parametrize("kind", CLOSED)
def test_the_head_over_clients_is_a_discriminant_unless_asked(kind):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 3, generator=generator).double(), torch.arange(40) % 2
    moments = Moments.of(x[:25], y[:25], 0, 2, 2) + Moments.of(x[25:], y[25:], 1, 2, 2)
    assert torch.equal(kind().head(moments, "client", 0.1), discriminant_head(moments, "client", 0.1))
    assert torch.equal(kind(router="ridge").head(moments, "client", 0.1), ridge_head(moments, "client", 0.1))
    with pytest.raises(SettingError, match="unknown router 'softmax'"):
        kind(router="softmax").check(0)
