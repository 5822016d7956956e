"""The optimiser of every phase is torch's, fresh, and the run's but for what a phase says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feddrm.methods import FedALA, FedAvg, FedPAC, FedRep, Phase, Sgd, Stage
from feddrm.models import is_head

from .test_details import LR, batches, close, leaves, network, optimised, slope, work


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_sgd_is_torchs(momentum, decay):
    sgd = Sgd(momentum, decay, LR)
    for steps in range(1, 6):
        net = network()
        optimised(net, list(leaves()), batches(steps), sgd)
        upload, _ = work(FedAvg(), leaves(), {"model": {}}, steps, sgd=sgd)
        close(upload, dict(net.named_parameters()), atol=1e-13)


def test_momentum_never_crosses_phases():
    net = network()
    optimised(net, [leaf for leaf in leaves() if is_head(leaf)], batches(3, seed=0))
    optimised(net, [leaf for leaf in leaves() if not is_head(leaf)], batches(3, seed=1))
    shared, private = FedRep().start(leaves())
    upload, kept = work(FedRep(), shared, private, 6)
    close({**upload, **kept["model"]}, dict(net.named_parameters()), atol=1e-13)


def test_a_phase_with_its_own_rate_ignores_the_schedule():
    class Own(FedAvg):
        def phases(self, stage: Stage) -> tuple[Phase, ...]:
            (phase,) = FedAvg.phases(self, stage)
            return (Phase(phase.steps, phase.loss, sgd={"momentum": 0.0, "weight_decay": 0.0, "lr": 0.5}),)

    upload, _ = work(Own(), leaves(), {"model": {}}, 1)
    gradient = slope(leaves(), batches(1)[0])
    close(upload, {leaf: value - 0.5 * gradient[leaf] for leaf, value in leaves().items()})


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_phase_keeps_of_the_run_what_it_does_not_say(momentum):
    class Heads(FedAvg):
        def phases(self, stage: Stage) -> tuple[Phase, ...]:
            (phase,) = FedAvg.phases(self, stage)
            return (Phase(phase.steps, phase.loss, train=is_head, sgd={"lr": float(LR)}),)

    net, sgd = network(), Sgd(momentum, 0.02, LR)
    optimised(net, [leaf for leaf in leaves() if is_head(leaf)], batches(3), sgd)
    upload, _ = work(Heads(), leaves(), {"model": {}}, 3, sgd=replace(sgd, lr=3 * LR))
    close(upload, dict(net.named_parameters()), atol=1e-13)


@pytest.mark.parametrize(
    ("method", "own"), [(FedALA(), {"weight_decay": 0.0}), (FedPAC(variant="original"), {"lr": 0.1})]
)
def test_methods_say_no_more_than_they_mean(method, own):
    assert [phase.sgd for phase in method.phases(Stage(10)) if getattr(phase, "sgd", None)] == [own]
