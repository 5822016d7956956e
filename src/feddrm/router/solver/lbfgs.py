"""The server's half of the exact fit: L-BFGS as a state machine.

The server keeps a :class:`FitState` and calls :func:`advance` once per round with the clients' losses and
gradients. The state is plain tensors, so it can be saved after any round.
docs/decisions/0010-own-lbfgs.md says why this is not SciPy's solver.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from feddrm.errors import FeddrmError, SettingError
from feddrm.router.solver.client_statistics import ClientSums
from feddrm.router.solver.hessian import Hessian, SampledHessian
from feddrm.router.solver.problem import Problem, Whitening
from feddrm.threads import intra_op_threads

MOST_ROUNDS = 3000  # of a fit that is to converge: it ends even if its features are pathological
MEMORY = 20  # pairs of steps and gradient changes that L-BFGS remembers
ARMIJO = 1e-4
HALF = 0.5  # of the discriminant; features have heavier tails than Gaussians, so the whole of it is overconfident
CURVATURES = (1e-4, 0.5)  # of a softmax: as flat as confident answers make it, and Boehning's upper bound
LDA_RIDGE = 10.0  # a softmax is about ten times flatter than the quadratic that the discriminant minimises


# Points by fit -> loss and gradient by fit and number of the client that answered.
Gradients = Callable[[Mapping[str, Tensor]], Mapping[str, Mapping[int, ClientSums]]]
Metric = Whitening | Hessian | SampledHessian | None  # what is known of the second derivatives


@dataclass(frozen=True, eq=False)
class FitState:
    """All the server remembers between rounds. Clients evaluate ``trial`` next.

    ``iterate`` is the last accepted point; ``losses`` and ``gradients`` are every client's last answers, and
    ``fresh`` marks the clients whose answers belong to ``iterate``.
    """

    trial: Tensor  # [outputs, d + 1]
    iterate: Tensor
    losses: Tensor  # [clients]
    gradients: Tensor  # [clients, outputs, d + 1]
    counts: Tensor  # [clients]
    fresh: Tensor  # [clients], bool
    steps: Tensor  # [pairs, outputs, d + 1]
    changes: Tensor
    products: Tensor  # [pairs, pairs]: of every step with its own and every later change, zero below the diagonal
    curvature: Tensor
    promised: Tensor  # decrease of the loss that the quadratic model predicts for the next step
    rounds: Tensor
    done: Tensor


Watch = Callable[[FitState], None]


@dataclass(frozen=True, eq=False)
class Minimisation:
    """A problem, the metric that preconditions it, and the state that its fit goes on from.

    A metric may be a function of the point that the clients evaluate next.
    """

    problem: Problem
    metric: Metric | Callable[[Tensor], SampledHessian]
    state: FitState


def first_state(problem: Problem, clients: int, *, like: Tensor | None = None, start: Tensor | None = None) -> FitState:
    """The state before the first round: at zero or at ``start``, on the device of ``like`` or ``start``."""
    problem.check()
    device = like.device if like is not None else start.device if start is not None else torch.device("cpu")
    shape = (problem.outputs, problem.features + 1)
    point = torch.zeros(shape, dtype=torch.float64, device=device) if start is None else start.double()

    def zeros(*size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.float64, device=device)

    return FitState(
        trial=point,
        iterate=point,
        losses=zeros(clients),
        gradients=zeros(clients, *shape),
        counts=zeros(clients),
        fresh=torch.zeros(clients, dtype=torch.bool, device=device),
        steps=zeros(0, *shape),
        changes=zeros(0, *shape),
        products=zeros(0, 0),
        # At zero the Hessian of the softmax is (I - 11'/outputs) / outputs; Boehning's bound anywhere is 1/2.
        curvature=zeros() + problem.blocks / problem.outputs,
        promised=zeros(),
        rounds=torch.zeros((), dtype=torch.int64, device=device),
        done=torch.zeros((), dtype=torch.bool, device=device),
    )


def minimise(
    fits: Mapping[str, Minimisation],
    gradients: Gradients,
    *,
    rounds: int | None,
    tolerance: float,
    noise: float,
    watch: Watch | None = None,
) -> dict[str, FitState]:
    """Advance all fits side by side until each is done, for at most ``rounds`` rounds (None: ``MOST_ROUNDS``).

    Fits do not depend on each other; side by side they share the messages of a round.
    """
    rounds = MOST_ROUNDS if rounds is None else rounds
    if rounds < 1:
        raise SettingError(f"rounds={rounds}: give at least one")
    states = {key: fit.state for key, fit in fits.items()}
    for _ in range(rounds):
        trials = {key: state.trial for key, state in states.items() if not bool(state.done)}
        if not trials:
            break
        answers = gradients(trials)
        for key in trials:
            fit = fits[key]
            metric = fit.metric(states[key].trial) if callable(fit.metric) else fit.metric
            # Hundreds of short operations: threads would wait for each other. Products with many samples share them.
            with contextlib.nullcontext() if isinstance(metric, SampledHessian) else intra_op_threads(1):
                states[key] = advance(fit.problem, states[key], answers[key], metric, tolerance, noise)
            if watch is not None:
                watch(states[key])
    return states


def advance(
    problem: Problem,
    state: FitState,
    messages: Mapping[int, ClientSums],
    metric: Metric = None,
    tolerance: float = 1e-7,
    noise: float = 1e-12,
) -> FitState:
    """One round of the server: accept or shorten the last step, then choose the next trial point.

    ``tolerance`` is the decrease of the mean loss below which the fit is done. ``noise`` is the relative error of
    the losses (about 1e-6 for float32 data).

    Clients may miss rounds. The clients that answered at both ends of a step then decide whether the step was
    good; for the others their last gradients are used. A finished fit is still the pooled optimum: ``done`` is set
    only when every client answered at the same point and their total gradient is small. Until a client has
    answered once, the others fit without it.
    """
    if bool(state.done) or not messages:
        return replace(state, rounds=state.rounds + (0 if bool(state.done) else 1))
    answered = torch.zeros_like(state.fresh)
    losses, gradients, counts = state.losses.clone(), state.gradients.clone(), state.counts.clone()
    for number, message in messages.items():
        answered[number] = True
        losses[number], gradients[number], counts[number] = message["loss"], message["gradient"], message["count"]
    both = answered & state.fresh
    moved = not torch.equal(state.trial, state.iterate)
    good, step, change = True, None, None
    if moved and bool(both.any()):
        step = state.trial - state.iterate
        judges = _index(both)
        before = objective(problem, state.iterate, state.losses[judges], state.gradients[judges], counts[judges])
        after = objective(problem, state.trial, losses[judges], gradients[judges], counts[judges])
        good = _acceptable(before, after, step, noise)
        change = after[1] - before[1]
    rounds = state.rounds + 1
    if not good and step is not None:
        return replace(state, trial=state.iterate + _shorter(before, after, step) * step, rounds=rounds)
    if step is not None and change is not None and float((step * change).sum()) > 0:
        state = _with_pair(state, step, change, _curvature(problem, step, change, state.curvature, metric))
    known = _index(counts > 0)
    loss, gradient = objective(problem, state.trial, losses[known], gradients[known], counts[known])
    direction = _direction(problem, gradient, state, metric)
    if bool(answered.all()) and not bool(state.trial.any()) and isinstance(metric, Whitening):
        direction = _discriminant(problem, gradients.sum(0) / counts.sum(), metric, direction)
    promised = -(gradient * direction).sum() / 2
    if not bool((loss + promised).isfinite()):  # no later round would be: a fit without a bound would go on for hours
        raise FeddrmError(
            f"the fit is not finite in round {int(rounds)} (loss {float(loss)}): look for features that are not finite "
            "or very large, or give a larger ridge"
        )
    # The promise relies on the curvature, which is known at zero and elsewhere only after one step.
    shown = len(state.steps) > 0 or not bool(state.trial.any())
    done = bool(answered.all()) and shown and float(promised) <= tolerance
    return replace(
        state,
        trial=state.trial if done else state.trial + direction,
        iterate=state.trial,
        losses=losses,
        gradients=gradients,
        counts=counts,
        fresh=answered,
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


def _index(clients: Tensor) -> Tensor | slice:
    """An index of the marked clients; where all are marked, one that does not copy their gradients."""
    return slice(None) if bool(clients.all()) else clients


def _acceptable(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], step: Tensor, noise: float) -> bool:
    """Armijo's condition; where the losses differ by rounding only, Hager and Zhang's by slopes (2005)."""
    slope, slope_after = float((before[1] * step).sum()), float((after[1] * step).sum())
    rise, allowed = float(after[0] - before[0]), noise * max(1.0, abs(float(before[0])))
    if slope >= 0:  # the direction comes from stale gradients: only the loss can judge it
        return rise <= 0.1 * abs(float(before[0]))
    return rise <= ARMIJO * slope or (rise <= allowed and slope_after <= (2 * ARMIJO - 1) * slope)


def _shorter(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], step: Tensor) -> float:
    """The minimum of the parabola through value and slope before and value after, kept between 0.1 and 0.5."""
    slope, rise = float((before[1] * step).sum()), float(after[0] - before[0])
    if not rise > slope:
        return 0.5
    return min(0.5, max(0.1, -slope / (2 * (rise - slope))))


def _with_pair(state: FitState, step: Tensor, change: Tensor, curvature: Tensor) -> FitState:
    """The state that remembers this step and change of the gradient, too, and forgets the oldest of too many."""
    steps = torch.cat([state.steps[1 - MEMORY :], step[None]])
    changes = torch.cat([state.changes[1 - MEMORY :], change[None]])
    products = pad(state.products[1 - MEMORY :, 1 - MEMORY :], (0, 1, 0, 1))
    products[:, -1] = steps.flatten(1) @ change.flatten()
    return replace(state, steps=steps, changes=changes, products=products, curvature=curvature)


def _direction(problem: Problem, gradient: Tensor, state: FitState, metric: Metric) -> Tensor:
    """The direction of L-BFGS around the first guess of the inverse Hessian.

    The two loops over the pairs (Nocedal, 1980) solve two triangular systems in the products of steps and changes
    (Byrd, Nocedal and Schnabel, 1994). Solved as such they read every pair four times, and are a dozen operations
    instead of two hundred.
    """
    if not len(state.steps):
        return -_solve_first(problem, gradient, state.curvature, metric)
    steps, changes, products = state.steps.flatten(1), state.changes.flatten(1), state.products
    a: Tensor = torch.linalg.solve_triangular(products, (steps @ gradient.flatten())[:, None], upper=True)[:, 0]
    first = _solve_first(problem, gradient - (a @ changes).view_as(gradient), state.curvature, metric)
    rest = products.diagonal() * a - changes @ first.flatten()
    c: Tensor = torch.linalg.solve_triangular(products.T, rest[:, None], upper=False)[:, 0]
    return -first - (c @ steps).view_as(first)


def _discriminant(problem: Problem, gradient: Tensor, whitening: Whitening, otherwise: Tensor) -> Tensor:
    """The first step: the linear discriminant in closed form, from the gradients at zero.

    At zero the gradient of an output is its frequency times minus its mean (features being centred),
    so with the pooled second moments the server knows means and covariance within outputs. Where an
    output has no sample, or outputs are coupled or apart, the first step of the solver is taken instead.
    """
    share = 1 / problem.outputs - gradient[:, -1]
    if problem.precision is not None or whitening.vectors is None or bool((share <= 0).any()):
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
    out = w if whitening is None else whitening.turn(w, back)
    if problem.spectrum is not None:
        basis = problem.spectrum[1].to(out)
        out = (basis if back else basis.T) @ out
    return out


def _diagonals(problem: Problem, w: Tensor, whitening: Whitening | None) -> tuple[Tensor, Tensor]:
    """Second moments and penalty in that basis: of every output, or one row where they are those of all."""
    rows = len(w) if whitening is not None and whitening.values.ndim == 2 else 1
    moments = w.new_full((rows, w.shape[1]), 1 / problem.blocks)  # of the bias: a block has its share of the samples
    if whitening is not None:
        moments[:, :-1] = whitening.values
    ridge = w.new_full((w.shape[1],), problem.ridge)
    ridge[-1] = problem.bias_ridge
    if problem.spectrum is None:
        return moments, ridge[None]
    return moments, problem.spectrum[0].to(w)[:, None] * ridge


def _solve_first(problem: Problem, gradient: Tensor, curvature: Tensor, metric: Metric) -> Tensor:
    """(curvature * moments + penalty)^-1 gradient; with known second derivatives Newton's step."""
    if isinstance(metric, Hessian | SampledHessian):
        return metric.solve(problem, gradient)
    scaled = _rotate(problem, gradient, metric) / _first_hessian(curvature, *_diagonals(problem, gradient, metric))
    return _rotate(problem, scaled, metric, back=True)


def _first_hessian(curvature: Tensor, moments: Tensor, penalty: Tensor) -> Tensor:
    """The first guess, which is diagonal in that basis."""
    floor = 1e-9 * moments.max()  # directions in which features do not vary have no gradient either
    return curvature * moments.clamp(min=floor) + penalty


def _curvature(problem: Problem, step: Tensor, change: Tensor, curvature: Tensor, metric: Metric) -> Tensor:
    """The multiple of the moments that best explains the last step.

    Barzilai and Borwein (1988) have two estimates. The one from the change of the gradient is careful. The one
    from the step is bold: half of the steps would have to be shortened. Their geometric mean needs the fewest
    rounds.
    """
    if isinstance(metric, Hessian | SampledHessian):
        return curvature
    along = (step * change).sum()
    moments, penalty = _diagonals(problem, step, metric)
    by_change = _rotate(problem, change, metric).square()
    careful = curvature * (by_change / _first_hessian(curvature, moments, penalty)).sum() / along
    by_step = _rotate(problem, step, metric).square()
    bold = (along - (penalty * by_step).sum()) / (moments * by_step).sum()
    return (careful.clamp(*CURVATURES) * bold.clamp(*CURVATURES)).sqrt()
