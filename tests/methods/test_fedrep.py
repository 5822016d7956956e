"""FedRep: half of the steps train the head, then half the body."""

from __future__ import annotations

import pytest
import torch

from feddrm.methods import FedRep, Stage
from feddrm.models import is_head

from .one_client import leaves


@pytest.mark.parametrize(("steps", "head", "body"), [(2, 1, 1), (5, 2, 3), (10, 5, 5)])
def test_the_head_trains_before_the_body(steps, head, body):
    first, second = FedRep().phases(Stage(steps))
    assert (first.steps, second.steps) == (head, body)
    for leaf in leaves():
        assert first.train(leaf) == is_head(leaf)
        assert second.train(leaf) != is_head(leaf)


def test_heads_are_private():
    shared, private = FedRep().start(leaves())
    assert set(private["model"]) == {leaf for leaf in leaves() if is_head(leaf)}
    assert set(shared) == set(leaves()) - set(private["model"])
    assert all(torch.equal(FedRep().serve(shared, private)[leaf], value) for leaf, value in leaves().items())
