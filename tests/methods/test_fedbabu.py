"""FedBABU: the body trains under a frozen head, then the head alone is tuned."""

from __future__ import annotations

import torch

from feddrm.engine import client_update
from feddrm.methods import FedBABU, Stage
from feddrm.models import is_head

from .one_client import NET, SGD, batches, leaves


def test_the_body_trains_first_and_the_head_tunes_last():
    shared, private = FedBABU().start(leaves())
    for stage in (Stage(2), Stage(2, tuning=True)):
        update = client_update(FedBABU(), NET, shared, private, [batches(2)], stage, SGD)
        model = {**shared, **update.upload, **update.private["model"]}
        for leaf, value in leaves().items():
            assert torch.equal(model[leaf], value) == (is_head(leaf) != stage.tuning), leaf
        assert set(update.upload) == (set() if stage.tuning else {leaf for leaf in leaves() if not is_head(leaf)})
        assert set(update.private["model"]) == {leaf for leaf in leaves() if is_head(leaf)}


def test_a_quarter_of_the_rounds_tunes_by_default():
    assert FedBABU().tuning_rounds(800) == 200
    assert FedBABU(tuning=100).tuning_rounds(800) == 100
    assert FedBABU().tuning_rounds(2) == 1
