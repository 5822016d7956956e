"""FedAvg, FedAvg with fine-tuning, and Local: one phase of plain training."""

from __future__ import annotations

import pytest

from feddrm.methods import FedAvg, FedAvgFT, Local, Method, Stage

from .one_client import batches, close, leaves, network, optimised, work


@pytest.mark.parametrize("method", [FedAvg(), FedAvgFT()], ids=lambda method: method.name)
def test_all_leaves_train_and_travel(method):
    net = network()
    optimised(net, list(leaves()), batches(4))
    upload, private = work(method, leaves(), {"model": {}}, 4)
    close(upload, dict(net.named_parameters()), atol=1e-13)
    assert private == {"model": {}}


def test_local_trains_the_same_way_and_uploads_nothing():
    net = network()
    optimised(net, list(leaves()), batches(4))
    shared, private = Local().start(leaves())
    upload, private = work(Local(), shared, private, 4)
    assert (shared, upload) == ({}, {})
    close(private["model"], dict(net.named_parameters()), atol=1e-13)


def test_an_eighth_of_the_rounds_tunes_by_default():
    assert FedAvgFT().tuning_rounds(800) == 100
    assert FedAvgFT(tuning=7).tuning_rounds(800) == 7
    assert FedAvg().tuning_rounds(800) == Local().tuning_rounds(800) == 0


def test_a_short_run_has_a_tuning_round_too():
    assert [FedAvgFT().tuning_rounds(rounds) for rounds in (1, 2, 3, 4, 11, 12)] == [0, 1, 1, 1, 1, 2]
    assert FedAvgFT(tuning=0).tuning_rounds(4) == 0


def test_only_the_method_with_fine_tuning_has_that_setting():
    assert Method.make("fedavgft", tuning=3) == FedAvgFT(tuning=3)
    assert not hasattr(FedAvg(), "tuning")
    assert FedAvgFT().shares("trunk.w", Stage(1))
    assert not FedAvgFT().shares("trunk.w", Stage(1, tuning=True))
