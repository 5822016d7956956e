"""The only training loop of the project: one client's work in one round, as a pure function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from feddrm.data import Batch
from feddrm.engine.precision import Arithmetic
from feddrm.errors import FeddrmError
from feddrm.methods import Forward, Method, Phase, Sgd, Slots, Stage, Statistics, Tensors
from feddrm.methods.method import checked_parts
from feddrm.models import Net, Outputs, of_this_thread

NO_GRADIENTS = (
    "the statistics '{slot}' need a gradient, but measure runs without: compute the loss under torch.enable_grad(), "
    "from leaves made by value.detach().requires_grad_() (methods/fedas.py has an example)"
)
NO_LOSS = (
    "the loss of a phase is not one number with a gradient: compute a tensor from the trained leaves, and take its "
    "mean over the samples (methods.losses.masked_mean)"
)
NO_DICT = "the statistics '{slot}' are of type {type}: measure() must return a dict of tensors, which are added up"
NO_PART = (
    "leaf '{leaf}' is no part of the model: send() must leave out what stays at the server, and begin() must put what "
    "travels beside the model into another slot"
)
IN_PLACE = (
    "{name}: a round changes '{leaf}' in place, which other clients may share: make a new tensor, as value + step, not "
    "value.add_(step)"
)
NORM_FLOOR = 1e-12  # keeps quotients finite where the gradient vanishes


class Update(NamedTuple):
    """The outcome of a client's round; ``loss`` is the mean of its logged phases' mean training losses."""

    upload: Tensors
    private: Slots
    loss: Tensor


def functional(net: Net, arithmetic: Arithmetic | None = None) -> Forward:
    """The network as a function of its leaves. Its outputs have the leaves' precision, whatever is used inside."""

    names = {name for name, _ in net.named_parameters()}

    def forward(leaves: Tensors, x: Tensor) -> Outputs:
        own = of_this_thread(net)
        if not leaves.keys() <= names:
            raise FeddrmError(NO_PART.format(leaf=next(leaf for leaf in leaves if leaf not in names)))
        if arithmetic is None or arithmetic.autocast is None:
            # No leaf has two names, so there is nothing to tie.
            out: Outputs = functional_call(own, leaves, (x,), tie_weights=False)
            return out
        with arithmetic.casting():
            out = functional_call(own, arithmetic.leaves(leaves), (x,), tie_weights=False)
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

    Pure: it changes no argument and draws nothing random, and no value of a tensor decides what is
    computed. A CUDA graph can therefore record it.
    """
    versions = {leaf: value._version for leaf, value in _given(received, private)}
    slots = method.begin(received, private)
    logged: list[list[Tensor]] = []
    for phase, stream in zip(method.phases(stage), batches, strict=True):
        if isinstance(phase, Statistics):
            slots = _measure(phase, net, slots, stream)
        else:
            slots, losses = _train(phase, net, slots, stream, sgd)
            if phase.logged and losses:
                logged.append(losses)
    upload, kept = checked_parts(method, "finish", method.finish(slots, stage))
    for leaf, value in _given(received, private):
        if value._version != versions.get(leaf):
            raise FeddrmError(IN_PLACE.format(name=method.name, leaf=leaf))
    return Update(upload, kept, _mean_of_means(logged, like=sgd.lr))


def _given(received: Tensors, private: Slots) -> Iterator[tuple[str, Tensor]]:
    """What a client's round begins with: the received leaves and the private slots, by name."""
    yield from received.items()
    for slot, leaves in private.items():
        yield from ((f"{slot}/{leaf}", value) for leaf, value in leaves.items())


def _mean_of_means(phases: Sequence[Sequence[Tensor]], like: Tensor) -> Tensor:
    """The mean over the phases of each phase's mean loss, as one weighted sum over all steps.

    Phases of equal length have weight one, so that the sum is then the plain sum, bit for bit.
    """
    steps = sum(map(len, phases))
    total = like.new_zeros(())
    for losses in phases:
        weight = steps / (len(phases) * len(losses))
        total = sum((loss * weight for loss in losses), start=total)
    return total / max(steps, 1)


def _train(phase: Phase, net: Forward, slots: Slots, batches: Iterable[Batch], sgd: Sgd) -> tuple[Slots, list[Tensor]]:
    sgd = sgd.changed(phase.sgd)
    slots = phase.enter(slots)
    if phase.slot not in slots:
        raise FeddrmError(f"a phase trains the slot '{phase.slot}', which is none of {', '.join(slots)}: see start()")
    names = [leaf for leaf in slots[phase.slot] if phase.train(leaf)]
    if not names and phase.steps:
        parts = dict.fromkeys(leaf.partition(".")[0] for leaf in slots[phase.slot])
        raise FeddrmError(
            f"a phase trains no leaf of '{phase.slot}': its train() must choose some of {', '.join(parts)}"
        )
    values = [slots[phase.slot][leaf].clone() for leaf in names]  # copies: the optimiser works in place
    velocity = [torch.zeros_like(value) for value in values]  # a fresh optimiser: momentum never carries over
    losses: list[Tensor] = []
    for batch in batches:

        def loss_of(trained: list[Tensor], batch: Batch = batch) -> Tensor:
            leaves = {**slots[phase.slot], **dict(zip(names, trained, strict=True))}
            return phase.loss(net, {**slots, phase.slot: leaves}, batch)

        gradient, loss = gradient_and_value(loss_of, values)
        if phase.sam_radius:
            step = phase.sam_radius / (_norm(gradient) + NORM_FLOOR)
            gradient, _ = gradient_and_value(loss_of, [v + step * g for v, g in zip(values, gradient, strict=True)])
        if sgd.clip and gradient:
            scale = (sgd.clip / (_norm(gradient) + NORM_FLOOR)).clamp(max=1.0)
            gradient = list(torch._foreach_mul(gradient, scale))
        _sgd_step(values, gradient, velocity, sgd)
        if phase.clamp is not None:
            for value in values:
                value.clamp_(*phase.clamp)
        losses.append(loss.to(sgd.lr))
    trained = {**slots[phase.slot], **dict(zip(names, values, strict=True))}
    return {**slots, phase.slot: trained}, losses


def _norm(gradient: list[Tensor]) -> Tensor:
    """The norm of a gradient over all its leaves."""
    return torch.stack(torch._foreach_norm(gradient)).square().sum().sqrt()


def gradient_and_value(loss_of: Callable[[list[Tensor]], Tensor], values: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Gradient and loss at ``values``; a leaf that the loss does not use has gradient zero."""
    with torch.enable_grad():
        points = [value.detach().requires_grad_() for value in values]
        loss: Any = loss_of(points)  # a plugin's may be anything
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise FeddrmError(NO_LOSS)
        gradient = torch.autograd.grad(loss, points, allow_unused=True, materialize_grads=True)
    return list(gradient), loss.detach()


def _sgd_step(values: list[Tensor], gradient: list[Tensor], velocity: list[Tensor], sgd: Sgd) -> None:
    """One step of momentum SGD with decay on every leaf, in place, by the kernel of torch.optim.SGD."""
    if not values:
        return
    torch._fused_sgd_(
        values,
        # The kernel walks all tensors of a leaf in the same order, so they must have the same layout in memory.
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


def _measure(statistics: Statistics, net: Forward, slots: Slots, batches: Iterable[Batch]) -> Slots:
    sums: Tensors = {}
    with torch.no_grad():
        for batch in batches:
            try:
                measured: Any = statistics.measure(net, slots, batch)
            except RuntimeError as error:
                if "require grad" not in str(error):
                    raise
                raise FeddrmError(NO_GRADIENTS.format(slot=statistics.slot)) from error
            if not isinstance(measured, dict):
                raise FeddrmError(NO_DICT.format(slot=statistics.slot, type=type(measured).__name__))
            for name, value in measured.items():
                sums[name] = sums[name] + value if name in sums else value
    return {**slots, statistics.slot: sums}
