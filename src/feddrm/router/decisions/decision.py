"""The router's decision on a batch of samples, and the reasons to abstain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feddrm.errors import FeddrmError, FieldProblem
from feddrm.rules import Competence, Density
from feddrm.rules.explanation_text import STRANGE

NOBODY = -1
BROKEN, DOWN, IMPOSSIBLE = "a value is missing or infinite", "no client is available", "a value cannot be"
UNLIKE, AWAY, UNSURE = STRANGE, "best client away", "unsure between clients"
REASONS = (BROKEN, DOWN, UNLIKE, AWAY, UNSURE)  # the first that holds; the last two rest on probabilities


@dataclass(frozen=True, eq=False)
class Decision:
    """The router's decision on a batch of N samples.

    ``client`` is the number of the best available client, -1 where nobody is available; an abstaining sample
    still has one. ``probabilities`` [N, m] and ``margin`` are over all clients: they do not depend on who is
    available. ``log_density`` [N, m] of the clients and ``log_pooled_density`` [N, 1] are up to one constant per
    sample; :attr:`log_density_ratio` is their difference. ``away`` [m] says who is not available. A ``margin`` of zero
    is a tie, which the smaller number wins. ``within`` [N, m] says which available clients belong to each sample's
    conformal set, if one was requested. ``flags`` are the values of every sample that cannot be (:meth:`flagged`);
    empty if there are none. By the competence rule, ``right`` [N, m] is the probability that each client's answer is
    right, and ``probabilities`` are the clients' shares of its odds. ``features`` [N, d] and their ``strangeness`` [N]
    are what was decided on, ``rule`` the routing rule. ``rough`` [N] is 1 for pictures that are far rougher than all
    training pictures, -1 for smoother ones.
    """

    client: Tensor
    probabilities: Tensor
    log_density: Tensor
    log_pooled_density: Tensor
    margin: Tensor
    abstain: Tensor
    reason: tuple[str, ...]
    away: Tensor
    within: Tensor | None = None
    flags: tuple[tuple[FieldProblem, ...], ...] = ()
    right: Tensor | None = None
    features: Tensor | None = None
    strangeness: Tensor | None = None
    rule: str = Density.name
    rough: Tensor | None = None

    def __len__(self) -> int:
        return len(self.client)

    def __repr__(self) -> str:  # short: a notebook would print every tensor
        return f"Decision({len(self)} samples, {len(self.away)} clients, {int(self.abstain.sum())} abstain)"

    @property
    def log_density_ratio(self) -> Tensor:
        """log dP_i / dP [N, m] of each client against the pooled data."""
        return self.log_density - self.log_pooled_density

    @property
    def client_probability(self) -> Tensor:
        """How sure the router is that each sample belongs to its ``client``; zero where there is none."""
        own = self.probabilities.gather(1, self.client.clamp(min=0)[:, None])[:, 0]
        return own.masked_fill(self.client == NOBODY, 0.0)

    @property
    def right_probability(self) -> Tensor:
        """By the competence rule: how probable it is that each sample's ``client`` is right; zero without one."""
        if self.right is None:
            raise FeddrmError(f"the rules of origin do not say who is right: route by rule '{Competence.name}'")
        return self.right.gather(1, self.client.clamp(min=0)[:, None])[:, 0].masked_fill(self.client == NOBODY, 0.0)

    @property
    def fallback(self) -> Tensor:
        """Where ``client`` stands in for a likelier one that is away."""
        return (self.client != NOBODY) & (self.client_probability < self.probabilities.amax(1))

    def of_pictures(self, rough: Tensor) -> Decision:
        """The decision about pictures; those that are far rougher or smoother than all training pictures abstain."""
        if not bool((odd := rough != 0).any()):
            return replace(self, rough=rough)
        before = REASONS[: REASONS.index(UNLIKE)]
        reason = tuple(UNLIKE if own and old not in before else old for old, own in zip(self.reason, odd, strict=True))
        return replace(self, abstain=self.abstain | odd, reason=reason, rough=rough)

    def flagged(self, problems: Sequence[FieldProblem]) -> Decision:
        """The decision with flags: values that cannot be, sample by sample. A sample that has any abstains."""
        if not problems:
            return self
        flags: list[tuple[FieldProblem, ...]] = [()] * len(self)
        for problem in problems:
            flags[problem.row] += (problem,)
        clients = zip(self.reason, flags, self.client.tolist(), strict=True)
        reason = tuple(IMPOSSIBLE if own and client != NOBODY else old for old, own, client in clients)
        abstain = self.abstain | torch.tensor([bool(own) for own in flags], device=self.abstain.device)
        return replace(self, abstain=abstain, reason=reason, flags=tuple(flags))


def first_reasons(abstain: Tensor, doubts: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The first reason that holds for every abstaining sample, an empty text for the others."""
    if not doubts or not bool(abstain.any()):  # as a rule; queries wait for this
        return ("",) * len(abstain)
    held = {reason: doubts[reason].tolist() for reason in REASONS if reason in doubts}
    rows = zip(*held.values(), strict=True)
    return tuple(next((reason for reason, holds in zip(held, row, strict=True) if holds), "") for row in rows)
