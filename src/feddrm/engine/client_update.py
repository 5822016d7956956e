"""The only training loop in the project: what one client does in one round."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from feddrm.data import Batch
from feddrm.engine.precision import Arithmetic
from feddrm.methods import Forward, Method, Phase, Sgd, Slots, Stage, Statistics, Tensors
from feddrm.models import Net, Outputs

NORM_FLOOR = 1e-12  # keeps the sharpness step finite where the gradient vanishes


class Update(NamedTuple):
    """The outcome of a client's round; ``loss`` is the mean training loss over the steps of its logged phases."""

    upload: Tensors
    private: Slots
    loss: Tensor


def functional(net: Net, arithmetic: Arithmetic | None = None) -> Forward:
    """The network as a function of its leaves, its outputs in their precision whatever is used inside.

    Calling it swaps the leaves into a module for a moment, so every thread has a module of its own.
    """
    here = threading.local()

    def forward(leaves: Tensors, x: Tensor) -> Outputs:
        if not hasattr(here, "net"):
            here.net = copy.deepcopy(net)
        if arithmetic is None or arithmetic.autocast is None:
            out: Outputs = functional_call(here.net, leaves, (x,), tie_weights=False)  # no two leaves are one
            return out
        with arithmetic.casting():
            out = functional_call(here.net, arithmetic.leaves(leaves), (x,), tie_weights=False)
        return out._replace(features=out.features.to(out.logits))

    return forward


def client_update(
    method: Method,
    net: Forward,
    received: Tensors,
    private: Slots,
    batches: Sequence[Iterable[Batch]],
    stage: Stage,
    sgd: Sgd,
) -> Update:
    """Run the method's phases on one client's batches (one stream per phase).

    Pure: nothing that is passed in is changed, nothing random is drawn, and no value of a tensor
    decides what is computed.
    """
    slots = method.begin(received, private)
    total, steps = sgd.lr.new_zeros(()), 0
    for phase, stream in zip(method.phases(stage), batches, strict=True):
        if isinstance(phase, Statistics):
            slots = _look(phase, net, slots, stream)
        else:
            slots, losses = _train(phase, net, slots, stream, sgd)
            if phase.logged:
                total, steps = sum(losses, start=total), steps + len(losses)
    upload, kept = method.finish(slots, stage)
    return Update(upload, kept, total / max(steps, 1))


def _train(phase: Phase, net: Forward, slots: Slots, batches: Iterable[Batch], sgd: Sgd) -> tuple[Slots, list[Tensor]]:
    sgd = sgd.but(phase.sgd)
    slots = phase.enter(slots)
    names = [leaf for leaf in slots[phase.slot] if phase.train(leaf)]
    values = [slots[phase.slot][leaf].clone() for leaf in names]  # our own: the optimiser works in place
    velocity = [torch.zeros_like(value) for value in values]  # a fresh optimiser: momentum never carries over
    losses: list[Tensor] = []
    for batch in batches:

        def loss_of(trained: list[Tensor], batch: Batch = batch) -> Tensor:
            leaves = {**slots[phase.slot], **dict(zip(names, trained, strict=True))}
            return phase.loss(net, {**slots, phase.slot: leaves}, batch)

        gradient, loss = gradient_and_value(loss_of, values)
        if phase.sam_radius:
            norm = torch.stack([g.square().sum() for g in gradient]).sum().sqrt()
            step = phase.sam_radius / (norm + NORM_FLOOR)
            gradient, _ = gradient_and_value(loss_of, [v + step * g for v, g in zip(values, gradient, strict=True)])
        _sgd_step(values, gradient, velocity, sgd)
        if phase.clamp is not None:
            for value in values:
                value.clamp_(*phase.clamp)
        losses.append(loss.to(sgd.lr))
    trained = {**slots[phase.slot], **dict(zip(names, values, strict=True))}
    return {**slots, phase.slot: trained}, losses


def gradient_and_value(loss_of: Callable[[list[Tensor]], Tensor], values: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Gradient and loss at ``values``; a leaf that the loss does not use has gradient zero."""
    with torch.enable_grad():
        points = [value.detach().requires_grad_() for value in values]
        loss = loss_of(points)
        gradient = torch.autograd.grad(loss, points, allow_unused=True, materialize_grads=True)
    return list(gradient), loss.detach()


def _sgd_step(values: list[Tensor], gradient: list[Tensor], velocity: list[Tensor], sgd: Sgd) -> None:
    """One step of momentum SGD with decay on every leaf, in place: torch.optim.SGD's own kernel."""
    if not values:
        return
    torch._fused_sgd_(
        values,
        # The kernel walks all tensors of a leaf alike, so they must lie in memory alike.
        [
            g if g.stride() == v.stride() else torch.empty_like(v).copy_(g)
            for g, v in zip(gradient, values, strict=True)
        ],
        velocity if sgd.momentum else [],
        weight_decay=sgd.weight_decay,
        momentum=sgd.momentum,
        lr=sgd.lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def _look(survey: Statistics, net: Forward, slots: Slots, batches: Iterable[Batch]) -> Slots:
    sums: Tensors = {}
    with torch.no_grad():
        for batch in batches:
            for name, value in survey.measure(net, slots, batch).items():
                sums[name] = sums[name] + value if name in sums else value
    return {**slots, survey.slot: sums}
