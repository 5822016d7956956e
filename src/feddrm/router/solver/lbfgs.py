"""The server's half of the exact fit: L-BFGS on what clients return, as a state that can be saved at any moment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from feddrm.errors import FeddrmError
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.router.solver.problem import Problem, Scaler, Whitening

MEMORY = 20  # pairs of steps and gradient changes that L-BFGS remembers
ARMIJO = 1e-4
HALF = 0.5  # of the discriminant: features have heavier tails than Gaussians, and all of it is overconfident
CURVATURES = (1e-4, 0.5)  # of a softmax: Boehning's bound, and as flat as confident answers make it
LDA_RIDGE = 10.0  # the softmax is some ten times flatter than the square it is compared with


@dataclass(frozen=True, eq=False)
class FitState:
    """All the server remembers between rounds: ``point`` is what clients are asked about next.

    ``at`` is the best point so far; ``losses`` and ``gradients`` are what every client last said, and
    ``fresh`` marks those who said it about ``at``. Saved with :meth:`tensors`, read by :meth:`load`.
    """

    point: Tensor  # [outputs, d + 1]
    at: Tensor
    losses: Tensor  # [clients]
    gradients: Tensor  # [clients, outputs, d + 1]
    counts: Tensor  # [clients]
    fresh: Tensor  # [clients], bool
    steps: Tensor  # [pairs, outputs, d + 1]
    changes: Tensor
    curvature: Tensor
    promised: Tensor  # decrease of the loss that the next step should bring, by its quadratic model
    rounds: Tensor
    done: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """For a file or a message."""
        return {name: getattr(self, name).contiguous() for name in self.__dataclass_fields__}

    @classmethod
    def load(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The inverse of :meth:`tensors`."""
        missing = [name for name in cls.__dataclass_fields__ if name not in tensors]
        if missing:
            raise FeddrmError(f"the saved fit lacks '{missing[0]}': start the fit again")
        return cls(**{name: tensors[name] for name in cls.__dataclass_fields__})


def first_state(problem: Problem, clients: int, *, like: Tensor | None = None, start: Tensor | None = None) -> FitState:
    """Before the first round: at zero, or at ``start``, on the device of either tensor."""
    problem.check()
    device = like.device if like is not None else start.device if start is not None else torch.device("cpu")
    shape = (problem.outputs, problem.features + 1)
    point = torch.zeros(shape, dtype=torch.float64, device=device) if start is None else start.double()

    def zeros(*size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.float64, device=device)

    return FitState(
        point=point,
        at=point,
        losses=zeros(clients),
        gradients=zeros(clients, *shape),
        counts=zeros(clients),
        fresh=torch.zeros(clients, dtype=torch.bool, device=device),
        steps=zeros(0, *shape),
        changes=zeros(0, *shape),
        # At zero the Hessian of the softmax is (I - 11'/outputs) / outputs; Boehning's bound anywhere is 1/2.
        curvature=zeros() + 1 / problem.outputs,
        promised=zeros(),
        rounds=torch.zeros((), dtype=torch.int64, device=device),
        done=torch.zeros((), dtype=torch.bool, device=device),
    )


def round_zero(problem: Problem, sums: Sequence[ClientSums], scaler: Scaler, whitening: Whitening) -> FitState:
    """The state after the round at zero without asking for it, where outputs are the clients themselves.

    There every client is equally likely, so a client's gradient is made of its number of samples and the sum
    of their features, which standardisation took already. What clients are asked about first is then
    the linear discriminant.
    """
    if len(sums) != problem.outputs:
        raise FeddrmError(f"{len(sums)} clients for {problem.outputs} outputs: round zero is for telling clients apart")
    messages = {}
    for number, own in enumerate(sums):
        total = torch.cat([(own["sum"] - own["count"] * scaler.mean) / scaler.scale, own["count"][None]])
        gradient = (total / problem.outputs).repeat(problem.outputs, 1)
        gradient[number] -= total
        messages[number] = {
            "count": own["count"],
            "loss": own["count"] * math.log(problem.outputs),
            "gradient": gradient,
        }
    begun = advance(problem, first_state(problem, len(sums), like=scaler.mean), messages, whitening)
    return replace(begun, rounds=torch.zeros_like(begun.rounds))


def advance(
    problem: Problem,
    state: FitState,
    messages: Mapping[int, ClientSums],
    whitening: Whitening | None = None,
    tolerance: float = 1e-7,
    noise: float = 1e-12,
) -> FitState:
    """One round of the server: judge ``state.point`` by the answers, and say which point to ask about next.

    ``tolerance`` is the decrease of the mean loss below which the fit is done, ``noise`` the relative
    error of the losses (float32 data: about 1e-6).

    Clients may miss rounds. Whether a step was good, and how the gradient changed along it, is then
    judged by those who answered at both ends; the others' last gradients stand in for new ones. What
    is exact: ``done`` is only ever set when every client answered at the same point and the gradient
    of all of them is small, so a finished fit is the pooled optimum whoever was missing on the way.
    Until a client has answered once, the others fit without it.
    """
    if bool(state.done) or not messages:
        return replace(state, rounds=state.rounds + (0 if bool(state.done) else 1))
    answered = torch.zeros_like(state.fresh)
    losses, gradients, counts = state.losses.clone(), state.gradients.clone(), state.counts.clone()
    for number, message in messages.items():
        answered[number] = True
        losses[number], gradients[number], counts[number] = message["loss"], message["gradient"], message["count"]
    both = answered & state.fresh
    moved = not torch.equal(state.point, state.at)
    good, step, change = True, None, None
    if moved and bool(both.any()):
        step = state.point - state.at
        before = objective(problem, state.at, state.losses[both], state.gradients[both], counts[both])
        after = objective(problem, state.point, losses[both], gradients[both], counts[both])
        good = _acceptable(before, after, step, noise)
        change = after[1] - before[1]
    rounds = state.rounds + 1
    if not good and step is not None:
        return replace(state, point=state.at + _shorter(before, after, step) * step, rounds=rounds)
    curvature, steps, changes = state.curvature, state.steps, state.changes
    if step is not None and change is not None and float((step * change).sum()) > 0:
        steps = torch.cat([steps, step[None]])[-MEMORY:]
        changes = torch.cat([changes, change[None]])[-MEMORY:]
        curvature = _curvature(problem, step, change, curvature, whitening)
    known = counts > 0
    _, gradient = objective(problem, state.point, losses[known], gradients[known], counts[known])
    direction = _direction(problem, gradient, steps, changes, curvature, whitening)
    if bool(answered.all()) and not bool(state.point.any()) and whitening is not None:
        direction = _discriminant(problem, gradients.sum(0) / counts.sum(), whitening, direction)
    promised = -(gradient * direction).sum() / 2
    # A promise is worth what its curvature is: known at zero, elsewhere only once a step has shown it.
    shown = len(steps) > 0 or not bool(state.point.any())
    done = bool(answered.all()) and shown and float(promised) <= tolerance
    return FitState(
        point=state.point if done else state.point + direction,
        at=state.point,
        losses=losses,
        gradients=gradients,
        counts=counts,
        fresh=answered,
        steps=steps,
        changes=changes,
        curvature=curvature,
        promised=promised,
        rounds=rounds,
        done=torch.tensor(done, device=state.done.device),
    )


def objective(
    problem: Problem, point: Tensor, losses: Tensor, gradients: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean loss with penalty, and its gradient, over these clients."""
    penalty, slope = problem.penalty(point)
    count = counts.sum()
    return losses.sum() / count + penalty, gradients.sum(0) / count + slope


def _acceptable(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], step: Tensor, noise: float) -> bool:
    """Armijo's condition; where the losses differ by rounding only, Hager and Zhang's by slopes (2005)."""
    slope, slope_after = float((before[1] * step).sum()), float((after[1] * step).sum())
    rise, allowed = float(after[0] - before[0]), noise * max(1.0, abs(float(before[0])))
    if slope >= 0:  # stale gradients made the direction: nothing to judge it by but the loss itself
        return rise <= 0.1 * abs(float(before[0]))
    return rise <= ARMIJO * slope or (rise <= allowed and slope_after <= (2 * ARMIJO - 1) * slope)


def _shorter(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], step: Tensor) -> float:
    """The minimum of the parabola through value and slope before and value after, kept between 0.1 and 0.5."""
    slope, rise = float((before[1] * step).sum()), float(after[0] - before[0])
    if not rise > slope:
        return 0.5
    return min(0.5, max(0.1, -slope / (2 * (rise - slope))))


def _direction(
    problem: Problem,
    gradient: Tensor,
    steps: Tensor,
    changes: Tensor,
    curvature: Tensor,
    whitening: Whitening | None,
) -> Tensor:
    """The two loops of L-BFGS (Nocedal, 1980) around the first guess of the inverse Hessian."""
    q, kept = gradient.clone(), []
    for s, y in zip(reversed(steps.unbind()), reversed(changes.unbind()), strict=True):
        weight = 1 / (s * y).sum()
        a = weight * (s * q).sum()
        q -= a * y
        kept.append((s, y, weight, a))
    r = _solve_first(problem, q, curvature, whitening)
    for s, y, weight, a in reversed(kept):
        r += (a - weight * (y * r).sum()) * s
    return -r


def _discriminant(problem: Problem, gradient: Tensor, whitening: Whitening, otherwise: Tensor) -> Tensor:
    """Round zero: the linear discriminant, in closed form, of what the first messages hold already.

    At zero the gradient of an output is its frequency times minus its mean (features being centred),
    so with the pooled second moments the server knows means and covariance within outputs. Where an
    output has no sample, or outputs are coupled, the first step of the solver is taken instead.
    """
    share = 1 / problem.outputs - gradient[:, -1]
    if problem.precision is not None or bool((share <= 0).any()):
        return otherwise
    means = -gradient[:, :-1] / share[:, None]
    rotated = means @ whitening.vectors
    total = whitening.values.clamp(min=0) + LDA_RIDGE * problem.ridge + 1e-6 * whitening.values.max()
    solved = rotated / total  # by the total covariance; within it is lower by the spread of the means (Woodbury)
    inner = torch.eye(problem.outputs).to(means) - share[:, None] * (rotated @ solved.T)
    weight = torch.linalg.solve(inner.T, solved)
    bias = share.log() - (weight * rotated).sum(1) / 2
    found = torch.cat([weight @ whitening.vectors.T, bias[:, None]], dim=1)
    found = HALF * (found - found.mean(0))
    return found if bool(found.isfinite().all()) and float((found * gradient).sum()) < 0 else otherwise


def _rotate(problem: Problem, w: Tensor, whitening: Whitening | None, back: bool = False) -> Tensor:
    """Into the basis in which moments and penalty are diagonal, or back."""
    body, bias = w[:, :-1], w[:, -1:]
    if whitening is not None:
        vectors = whitening.vectors
        body = body @ (vectors.T if back else vectors)
    out = torch.cat([body, bias], dim=1)
    if problem.spectrum is not None:
        basis = problem.spectrum[1].to(out)
        out = (basis if back else basis.T) @ out
    return out


def _diagonals(problem: Problem, w: Tensor, whitening: Whitening | None) -> tuple[Tensor, Tensor]:
    """Second moments and penalty in that basis, each broadcast to [outputs, d + 1]."""
    moments = torch.ones(w.shape[1], dtype=w.dtype, device=w.device)
    if whitening is not None:
        moments[:-1] = whitening.values
    ridge = torch.full_like(moments, problem.ridge)
    ridge[-1] = problem.bias_ridge
    precision = torch.ones(w.shape[0], dtype=w.dtype, device=w.device)
    if problem.spectrum is not None:
        precision = problem.spectrum[0].to(w)
    return moments.expand_as(w), precision[:, None] * ridge


def _solve_first(problem: Problem, gradient: Tensor, curvature: Tensor, whitening: Whitening | None) -> Tensor:
    """(curvature * moments + penalty)^-1 gradient."""
    moments, penalty = _diagonals(problem, gradient, whitening)
    floor = 1e-9 * moments.max()  # directions in which features do not vary have no gradient either
    scaled = _rotate(problem, gradient, whitening) / (curvature * moments.clamp(min=floor) + penalty)
    return _rotate(problem, scaled, whitening, back=True)


def _curvature(
    problem: Problem, step: Tensor, change: Tensor, curvature: Tensor, whitening: Whitening | None
) -> Tensor:
    """The multiple of the moments that explains the last step: between the careful guess and the bold one.

    Explaining the change of the gradient weighs its steepest directions most and is careful;
    explaining the step itself is bold, and half of the steps would have to be cut back. The
    geometric mean of both (Barzilai and Borwein, 1988, have either) needs the fewest rounds.
    """
    along = (step * change).sum()
    careful = curvature * (change * _solve_first(problem, change, curvature, whitening)).sum() / along
    moments, penalty = _diagonals(problem, step, whitening)
    turned = _rotate(problem, step, whitening).square()
    bold = (along - (penalty * turned).sum()) / (moments * turned).sum()
    return (careful.clamp(*CURVATURES) * bold.clamp(*CURVATURES)).sqrt()
