"""The training loop: the logged loss, and what it does with its arguments. Contract tests of methods cover the rest."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from feddrm.data import Batch
from feddrm.engine import client_update, functional
from feddrm.methods import (
    ConFREE,
    FedAvg,
    FedPAC,
    FedRep,
    Forward,
    Method,
    Phase,
    Sgd,
    Slots,
    Stage,
    Statistics,
    Tensors,
)
from feddrm.methods.losses import classify
from feddrm.models import Mlp
from refusal import refused

NET = Mlp(hidden=(5,), branch=4).build((3,), 2, seed=1).double()
LEAVES = {leaf: p.detach() for leaf, p in NET.named_parameters()}
STANDING = Sgd(0.0, 0.0, torch.tensor(0.0, dtype=torch.float64))  # rate zero: every step sees the first model


def batches(steps: int, seed: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(steps, 6, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(2, (steps, 6), generator=generator)
    return [Batch(a, b, torch.zeros_like(b), torch.ones_like(b, dtype=torch.bool)) for a, b in zip(x, y, strict=True)]


def loss_of(batch: Batch) -> Tensor:
    return classify(functional(NET), {"model": LEAVES}, batch)


def logged_loss(method: Method, streams: list[list[Batch]], steps: int) -> Tensor:
    shared, private = method.start(LEAVES)
    return client_update(method, functional(NET), shared, private, streams, Stage(steps), STANDING).loss


@pytest.mark.parametrize("method", [FedRep(), FedPAC(), ConFREE()], ids=lambda method: method.name)
@pytest.mark.parametrize("steps", [2, 3, 5, 6, 9])
def test_the_loss_is_the_mean_of_the_phases_means(method, steps):
    streams = [batches(phase.steps, seed) for seed, phase in enumerate(method.phases(Stage(steps)))]
    means = [torch.stack([loss_of(batch) for batch in stream]).mean() for stream in streams]
    torch.testing.assert_close(logged_loss(method, streams, steps), torch.stack(means).mean(), rtol=0, atol=1e-14)


def test_phases_of_equal_length_sum_their_losses_in_order():
    """To the last bit: recorded losses of even numbers of steps stay as they are."""
    streams = [batches(5, 0), batches(5, 1)]
    total = sum((loss_of(batch) for stream in streams for batch in stream), start=torch.zeros(()).double())
    assert logged_loss(FedRep(), streams, 10).equal(total / 10)


def test_a_phase_that_is_not_logged_does_not_count():
    @dataclass(frozen=True)
    class Quiet(FedAvg):
        name: ClassVar[str] = "quiet"

        def phases(self, stage: Stage) -> tuple[Phase, ...]:
            return Phase(1, classify), Phase(stage.steps, classify, logged=False), Phase(0, classify)

    try:
        streams = [batches(1, 0), batches(3, 1), []]
        torch.testing.assert_close(logged_loss(Quiet(), streams, 3), loss_of(streams[0][0]), rtol=0, atol=1e-15)
    finally:
        del Method.family["quiet"]


@pytest.mark.parametrize("clip", [1e-3, 0.3, 1e3])
def test_a_clipped_step_is_the_step_of_torch_on_the_scaled_gradient(clip):
    stream = batches(4, 0)
    method, sgd = FedAvg(), Sgd(0.9, 0.01, torch.tensor(0.1, dtype=torch.float64), clip)
    shared, private = method.start(LEAVES)
    upload = client_update(method, functional(NET), shared, private, [stream], Stage(4), sgd).upload
    net = copy.deepcopy(NET)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    norms = []
    for batch in stream:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(batch.x).logits, batch.y).backward()
        gradients = [p.grad for p in net.parameters() if p.grad is not None]
        norms.append(float(torch.cat([g.flatten() for g in gradients]).norm()))
        for gradient in gradients:
            gradient.mul_(min(1.0, clip / norms[-1]))
        optimiser.step()
    assert (max(norms) > clip) == (clip < 1)  # otherwise nothing is tested
    for leaf, value in net.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(upload[leaf], value.detach(), rtol=0, atol=1e-12)


def test_threads_use_one_network_at_once():
    """Each thread has its own module, so that leaves of one call never reach another."""
    forward, x = functional(NET), batches(1, 0)[0].x
    models = [{leaf: scale * value for leaf, value in LEAVES.items()} for scale in (0.5, 1.0, 2.0, 3.0)] * 8
    wanted = [forward(model, x).logits for model in models]
    with ThreadPoolExecutor(4) as pool:
        for logits, expected in zip(pool.map(lambda model: forward(model, x).logits, models), wanted, strict=True):
            assert torch.equal(logits, expected)


def test_statistics_that_need_a_gradient_are_told_how_to_get_it():
    def watch(enable: bool) -> Tensors:
        def slope(net: Forward, slots: Slots, batch: Batch) -> Tensors:
            with torch.set_grad_enabled(enable):
                model = {leaf: value.detach().requires_grad_() for leaf, value in slots["model"].items()}
                loss = classify(net, {"model": model}, batch)
            return {"slope": torch.autograd.grad(loss, model["head.bias"])[0]}

        @dataclass(frozen=True)
        class Watch(FedAvg):
            def phases(self, stage: Stage) -> tuple[Statistics, ...]:
                return (Statistics(stage.steps, slope, "slopes"),)

            def finish(self, slots: Slots, stage: Stage) -> tuple[Tensors, Slots]:
                return slots["slopes"], {}

        return client_update(Watch(), functional(NET), LEAVES, {}, [batches(2, 0)], Stage(2), STANDING).upload

    with refused("the statistics 'slopes' need a gradient", "torch.enable_grad()"):
        watch(False)
    assert watch(True)["slope"].shape == (2,)


def test_another_error_of_statistics_is_not_explained_away():
    class Odd(FedAvg):
        def phases(self, stage: Stage) -> tuple[Statistics, ...]:
            return (Statistics(1, lambda net, slots, batch: {"x": torch.ones(2) @ torch.ones(3)}, "x"),)

    with pytest.raises(RuntimeError, match="size"):
        client_update(Odd(), functional(NET), LEAVES, {}, [batches(1, 0)], Stage(1), STANDING)


@pytest.mark.parametrize(
    ("phase", "parts"),
    [
        (Phase(1, lambda *_: 1.0), ("not one number with a gradient", "masked_mean")),
        (Phase(1, lambda *_: torch.tensor(1.0)), ("not one number with a gradient",)),
        (Phase(1, lambda net, slots, batch: net(slots["model"], batch.x).logits[:, 0]), ("not one number",)),
        (Statistics(1, lambda *_: 1.0, "s"), ("statistics 's' are of type float", "a dict of tensors")),
        (Phase(1, classify, slot="modle"), ("the slot 'modle', which is none of model, shared",)),
        (Phase(1, classify, train=lambda leaf: leaf == "classifier"), ("no leaf of 'model'", "trunk, project, head")),
    ],
)
def test_a_phase_that_cannot_train_is_refused_in_one_line(
    phase: Phase | Statistics, parts: tuple[str, ...], monkeypatch
):
    monkeypatch.setattr(FedAvg, "phases", lambda *_: (phase,))
    with refused(*parts):
        logged_loss(FedAvg(), [batches(1, 0)], 1)


@pytest.mark.parametrize("finished", [None, LEAVES, (LEAVES, LEAVES), ({"samples": 3}, {})])
def test_an_end_of_a_round_without_upload_and_private_slots_is_refused_in_one_line(finished: object, monkeypatch):
    monkeypatch.setattr(FedAvg, "finish", lambda *_: finished)
    with refused("fedavg: finish() must return two dicts"):
        logged_loss(FedAvg(), [batches(1, 0)], 1)


@pytest.mark.parametrize("where", ["head.bias", "kept/head.bias"])
def test_a_method_that_changes_leaves_in_place_is_refused(where: str):
    """Other clients may have received, or begun with, the same tensor."""

    class Hasty(FedAvg):
        def begin(self, received: Tensors, private: Slots) -> Slots:
            return {**super().begin(received, private), "kept": private["kept"]}

        def finish(self, slots: Slots, stage: Stage) -> tuple[Tensors, Slots]:
            slots["kept" if "/" in where else "shared"]["head.bias"].add_(1)
            return slots["model"], {}

    leaves = {leaf: value.clone() for leaf, value in LEAVES.items()}
    private = {"kept": {leaf: value.clone() for leaf, value in LEAVES.items()}}
    with refused(f"a round changes '{where}' in place", "make a new tensor"):
        client_update(Hasty(), functional(NET), leaves, private, [batches(1, 0)], Stage(1), STANDING)


def test_leaves_that_are_no_part_of_the_model_are_refused():
    with refused("leaf 'momentum.head.bias' is no part of the model", "send()", "begin()"):
        functional(NET)(LEAVES | {"momentum.head.bias": LEAVES["head.bias"]}, batches(1, 0)[0].x)
