"""The problems of the exact class heads on the router's features.

*Probe*: one softmax over classes; its loss is a sum over clients. *Joint*: one softmax over (client, class) pairs with
logits A_i + B_y + D_iy, each linear in the features; its marginal over clients gives classes, its marginal over classes
gives clients. *Correction*: every client's private change of the probe, fitted on the client, where it stays. It is
shrunk towards the probe, because a small client would overfit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.fit.ridge_path import Chosen
from feddrm.router.fit.selection import FINE_ROUNDS, PATH_TOLERANCE
from feddrm.router.settings import MANY, PART_BYTES
from feddrm.router.solver.client_axes import OwnAxes
from feddrm.router.solver.client_statistics import BlockDiagonal, ClientSums, Sample, client_scores, logits_at
from feddrm.router.solver.lbfgs import MEMORY
from feddrm.router.solver.problem import Problem, Whitening
from feddrm.router.solver.solve import moments_of, solve

BIAS_RIDGE = 1e-5  # keeps a class that a client has never seen unlikely instead of impossible
STRENGTHS = (1.0, 3e-1, 1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5)
JOINT_STRENGTHS = STRENGTHS[1:7]
CORRECTION_ROUNDS = 60  # of a correction that a client answers with
POINTS = 4 * MEMORY + 16  # so many tensors as large as the fitted point are in memory at once (measured: 95)
MAIN_EFFECTS = 4.0  # how much freer A and B are than D


def probe_problem(classes: int, features: int, ridge: float) -> Problem:
    """The class on the features, over all clients."""
    return Problem(classes, features, ridge, BIAS_RIDGE)


def joint_problem(clients: int, classes: int, features: int, ridge: float, device: torch.device) -> Problem:
    """The pair (client, class) on the features: W_iy = A_i + B_y + D_iy with a ridge on each of the three.

    A ridge on the three parts equals a penalty on their sum by the inverse of the covariance that the parts give it.
    So the solver need not know the parts.
    """
    eye_m, eye_k = torch.eye(clients, dtype=torch.float64), torch.eye(classes, dtype=torch.float64)
    same_client = torch.kron(eye_m, torch.ones(classes, classes, dtype=torch.float64))
    same_class = torch.kron(torch.ones(clients, clients, dtype=torch.float64), eye_k)
    covariance = torch.eye(clients * classes, dtype=torch.float64) + MAIN_EFFECTS * (same_client + same_class)
    return Problem(clients * classes, features, ridge, BIAS_RIDGE, torch.linalg.inv(covariance).to(device))


def joint_label(client: int, y: Tensor, classes: int) -> Tensor:
    """The number of the pair (client, y)."""
    return client * classes + y


def joint_classes(logits: Tensor, clients: int) -> Tensor:
    """Log class probabilities [N, K] of joint logits [N, m K], summed over clients."""
    return logits.log_softmax(-1).view(len(logits), clients, -1).logsumexp(1)


def joint_clients(logits: Tensor, clients: int) -> Tensor:
    """Log client probabilities [N, m] of joint logits [N, m K], summed over classes."""
    return logits.log_softmax(-1).view(len(logits), clients, -1).logsumexp(2)


def private_problem(
    classes: int, features: int, ridge: float, clients: int = 1, blocks: int = 1, share: float = 1.0
) -> Problem:
    """The correction of one client, or of several at once: their outputs do not touch each other.

    ``share`` is that of these clients in all samples. The ridge is relative to the mean over all of them.
    """
    return Problem(clients * classes, features, ridge / share, BIAS_RIDGE / share, blocks=blocks)


def clients_at_once(most: int, outputs: int, features: int) -> int:
    """How many clients with so many outputs each are fitted at once, if the solver may take ``most`` bytes."""
    return max(1, most // (8 * POINTS * outputs * (features + 1)))


def fit_private(
    sample: Sample,
    probe: Tensor,
    ridge: float,
    whitening: Whitening | None,
    share: float = 1.0,
    rounds: int = CORRECTION_ROUNDS,
) -> Tensor:
    """A client's correction [K, d + 1] of the probe, from its own samples.

    ``share`` is n_i / N: the fewer samples a client has, the smaller its correction.
    """
    problem = private_problem(probe.shape[0], probe.shape[1] - 1, ridge, share=share)
    return solve(problem, with_offsets([sample], probe), whitening, rounds=rounds, tolerance=1e-7).point


def own_correction(sample: Sample, probe: Tensor, ridge: float, used: int, rounds: int) -> Tensor:
    """A client's correction as a site fits it: alone, in float64, whitened by its own moments.

    ``used`` is the number of samples that all clients fit on. Without a sample the correction is zero.
    """
    if not len(sample):
        return torch.zeros_like(probe)
    exact = sample.double()
    return fit_private(exact, probe, ridge, moments_of([exact.x]), len(sample) / used, rounds)


def private_samples(samples: Sequence[Sample], probe: Tensor) -> BlockDiagonal:
    """The samples of several clients for their common :func:`private_problem`; each client moves its own head only."""
    return BlockDiagonal.of(with_offsets(samples, probe))


def with_offsets(samples: Sequence[Sample], probe: Tensor) -> list[Sample]:
    """The samples with the probe's logits, which a correction adds to."""
    return [Sample(sample.x, sample.y, logits_at(sample.x, probe)) for sample in samples]


@dataclass(frozen=True, eq=False)
class OwnCorrections:
    """The corrections of clients that fit theirs alone, as sites do; ``each`` gives all clients' samples of a fold.

    ``used`` is the number of samples that all clients fit on without a fold.
    """

    names: Sequence[str]
    each: Callable[[int | None, bool], list[Sample]]
    probes: Sequence[Tensor]
    rounds: int  # of fits that are only compared
    used: Callable[[int | None], int]

    def scores(self, ridge: float, starts: Sequence[Tensor | None]) -> tuple[list[Tensor], list[ClientSums]]:
        """Per fold the corrections of all clients, and their scores on held-out samples; every fit starts at zero."""
        points = [torch.cat(self._fit(self.probes[fold], ridge, fold, self.rounds)) for fold in range(len(starts))]
        held = [private_samples(self.each(fold, True), self.probes[fold]) for fold in range(len(starts))]
        return points, [client_scores(samples, point) for samples, point in zip(held, points, strict=True)]

    def keep(self, chosen: Chosen, probe: Tensor, rounds: int) -> dict[str, Tensor]:  # noqa: ARG002
        """By client, in the precision of the samples, as a site keeps its own."""
        like = self.each(None, False)[0].x
        fitted = self._fit(probe, chosen.ridge, None, CORRECTION_ROUNDS)
        return {name: correction.to(like) for name, correction in zip(self.names, fitted, strict=True)}

    def _fit(self, probe: Tensor, ridge: float, fold: int | None, rounds: int) -> list[Tensor]:
        used = self.used(fold)
        return [own_correction(sample, probe, ridge, used, rounds) for sample in self.each(fold, False)]


@dataclass(frozen=True, eq=False)
class _Group:
    """Clients that are fitted at once, on own axes or on the features, and their share of all samples."""

    clients: int
    samples: BlockDiagonal
    axes: OwnAxes | None
    share: float


class LocalCorrections:
    """All clients' corrections in one fit: their outputs do not touch each other.

    ``each`` gives all clients' samples of a fold. Each of many clients has few samples, so its correction is fitted on
    their axes. What the solver remembers grows with clients times classes. Where it would take more than
    ``part_bytes``, clients are fitted in groups: they share nothing but the ridge, so the optimum is the same.
    """

    def __init__(
        self,
        names: Sequence[str],
        each: Callable[[int | None, bool], list[Sample]],
        design: DesignMatrix,
        probes: Sequence[Tensor],
        part_bytes: int | None = None,
    ) -> None:
        self.names, self.each, self.design, self.probes = names, each, design, probes
        self.classes, everyone = len(probes[0]), each(None, False)
        self.most = part_bytes or PART_BYTES[everyone[0].x.device.type]
        self._inside = [private_samples(each(fold, True), probe) for fold, probe in enumerate(probes)]
        self._kept: dict[int, list[_Group]] = {}
        # Axes are made once if those of all folds may be held: they take as long as a fit on them.
        self._keeps = not self.on_axes(everyone) or len(probes) * self._axes_bytes(everyone) <= self.most

    def scores(self, ridge: float, starts: Sequence[Tensor | None]) -> tuple[list[Tensor], list[ClientSums]]:
        points = [
            self._fit(self._outside(fold), ridge, start, FINE_ROUNDS, PATH_TOLERANCE)
            for fold, start in enumerate(starts)
        ]
        return points, [client_scores(inside, p) for inside, p in zip(self._inside, points, strict=True)]

    def keep(self, chosen: Chosen, probe: Tensor, rounds: int) -> dict[str, Tensor]:
        start, like = torch.stack(list(chosen.folds)).mean(0), self.each(None, False)[0].x
        point = self._fit(self.groups(None, probe), chosen.ridge, start, rounds, 1e-7)
        return dict(zip(self.names, torch.split(point.to(like), self.classes), strict=True))

    def on_axes(self, samples: Sequence[Sample]) -> bool:
        """Whether there are many clients with few samples each, whose axes may be held."""
        few = max(map(len, samples)) < self.design.width
        return few and len(samples) > MANY and self._axes_bytes(samples) <= self.most

    def _axes_bytes(self, samples: Sequence[Sample]) -> int:
        return 8 * len(samples) * max(map(len, samples)) * self.design.width

    def _outside(self, fold: int) -> Iterable[_Group]:
        if not self._keeps:
            return self.groups(fold, self.probes[fold])
        if fold not in self._kept:
            self._kept[fold] = list(self.groups(fold, self.probes[fold]))
        return self._kept[fold]

    def groups(self, fold: int | None, probe: Tensor) -> Iterator[_Group]:
        """All clients outside a fold, as many at once as the solver's memory allows."""
        samples = with_offsets(self.each(fold, False), probe)
        own, total = self.on_axes(samples), sum(map(len, samples))
        width = max(map(len, samples)) if own else self.design.width
        together = clients_at_once(self.most, self.classes, width)
        for start in range(0, len(samples), together):
            part = samples[start : start + together]
            size = sum(map(len, part))
            axes = OwnAxes.of(part) if own and size else None
            blocks = BlockDiagonal.of(part if axes is None else axes.samples())
            yield _Group(len(part), blocks, axes, size / total)

    def _fit(
        self, groups: Iterable[_Group], ridge: float, start: Tensor | None, rounds: int, tolerance: float
    ) -> Tensor:
        points, first = [], 0
        for group in groups:
            last = first + group.clients * self.classes
            own = None if start is None else start[first:last]
            points.append(self._fit_group(group, ridge, own, rounds, tolerance))
            first = last
        return points[0] if len(points) == 1 else torch.cat(points)

    def _fit_group(self, group: _Group, ridge: float, start: Tensor | None, rounds: int, tolerance: float) -> Tensor:
        axes, clients, like = group.axes, group.clients, group.samples.x
        if not group.share:  # without a sample nothing moves
            shape = clients * self.classes, self.design.width + 1
            return torch.zeros(shape, dtype=torch.float64, device=like.device)
        if axes is None:
            problem = private_problem(self.classes, self.design.width, ridge, clients, share=group.share)
            whitening = self.design.whitening
            return solve(problem, [group.samples], whitening, start=start, rounds=rounds, tolerance=tolerance).point
        problem = private_problem(self.classes, axes.width, ridge, clients, clients, group.share)
        turned = None if start is None else axes.turn(start)
        whitening = axes.whitening(self.classes)
        fit = solve(problem, [group.samples], whitening, start=turned, rounds=rounds, tolerance=tolerance)
        return axes.turn(fit.point, back=True)
