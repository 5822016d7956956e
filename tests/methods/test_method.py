"""The interface: SGD of a phase, the logged phases, steps of two phases and weighted means."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from feddrm.errors import SettingError
from feddrm.methods import ConFREE, Ditto, FedALA, FedAS, FedAvg, FedPAC, FedRep, Method, Phase, Sgd, Stage
from feddrm.methods.losses import classify
from feddrm.methods.method import check_variant, split_steps, weighted_mean
from feddrm.models import is_head
from refusal import refused

from .one_client import LR, batches, close, leaves, network, optimised, slope, work


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_training_equals_torchs_sgd(momentum, decay):
    sgd = Sgd(momentum, decay, LR)
    for steps in range(1, 6):
        net = network()
        optimised(net, list(leaves()), batches(steps), sgd)
        upload, _ = work(FedAvg(), leaves(), {"model": {}}, steps, sgd=sgd)
        close(upload, dict(net.named_parameters()), atol=1e-13)


def test_momentum_starts_at_zero_in_every_phase():
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
def test_settings_that_a_phase_does_not_change_are_those_of_the_run(momentum):
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
def test_methods_change_only_the_settings_they_need(method, own):
    assert [phase.sgd for phase in method.phases(Stage(10)) if getattr(phase, "sgd", None)] == [own]


@pytest.mark.parametrize("method", [FedALA(), FedALA(variant="original"), FedAS(), FedAS(variant="original"), Ditto()])
def test_the_logged_loss_is_that_of_the_model_that_travels(method):
    """Not of mixing weights, alignment or a personal model."""
    logged = [phase.loss for phase in method.phases(Stage(10)) if isinstance(phase, Phase) and phase.logged]
    assert logged == [classify]


@pytest.mark.parametrize(
    ("steps", "one_in", "wanted"), [(2, 2, (1, 1)), (3, 2, (1, 2)), (10, 2, (5, 5)), (4, 5, (1, 3)), (25, 5, (5, 20))]
)
def test_steps_are_divided_between_two_phases(steps, one_in, wanted):
    assert split_steps(steps, one_in) == wanted


def test_one_step_cannot_be_divided():
    with pytest.raises(SettingError, match=r"local_steps=1: .* give at least 2"):
        split_steps(1)


def test_the_weighted_mean_is_taken_leaf_by_leaf():
    uploads = [
        {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(4.0)},
        {"a": torch.tensor([3.0, 6.0]), "b": torch.tensor(0.0)},
    ]
    mean = weighted_mean(uploads, torch.tensor([0.25, 0.75], dtype=torch.float64))
    assert mean["a"].tolist() == [2.5, 5.0]
    assert mean["b"].item() == 1.0
    assert weighted_mean([], torch.zeros(0)) == {}


def test_both_variants_pass_and_others_are_refused():
    for variant in ("paper", "original"):
        check_variant("fedas", variant)
    for method in (ConFREE, FedALA, FedAS, FedPAC):
        message = rf"{method.name}: unknown variant 'papr': choose 'paper' .* or 'original'"
        with pytest.raises(SettingError, match=message):
            method(variant="papr").check(rounds=10)


@pytest.mark.parametrize(
    ("phases", "problem"),
    [
        (Phase(1, classify), "phases() must return a tuple of Phase and Statistics"),
        ((classify,), "phases() must return a tuple of Phase and Statistics"),
        ((Phase(2.5, classify),), "a phase has steps=2.5: give a whole number, 0 or more"),
        ((Phase(-1, classify),), "a phase has steps=-1: give a whole number, 0 or more"),
        ((), "phases() has no Phase, so nothing would be trained"),
    ],
)
def test_phases_of_another_form_are_refused(monkeypatch, phases, problem):
    monkeypatch.setattr(FedAvg, "phases", lambda *_: phases)
    with refused(f"fedavg: {problem}"):
        FedAvg().check_phases(Stage(1))


@pytest.mark.parametrize("name", sorted(name for name in Method.family if not Method.family[name].closed_form))
def test_a_method_that_averages_needs_the_mean_of_the_uploads_only(name: str) -> None:
    method = Method.make(name)
    generator = torch.Generator().manual_seed(1)
    shared, first, second = ({"trunk.w": torch.randn(5, generator=generator)} for _ in range(3))
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    mean = {"trunk.w": 0.25 * first["trunk.w"] + 0.75 * second["trunk.w"]}
    both = method.aggregate(shared, [first, second], weights)
    alone = method.aggregate(shared, [mean], torch.ones(1, dtype=torch.float64))
    assert torch.allclose(both["trunk.w"], alone["trunk.w"]) or not method.averages
    assert method.averages == (name != "confree")
