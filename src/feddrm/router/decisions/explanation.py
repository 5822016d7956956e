"""Why the router chose a client: exact terms that make it likelier than another.

The router is linear in its features, so the difference of two clients' scores is a sum over features. Nothing is
approximated. What a trained network computes is not linear in its input: its stages are terms of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from feddrm.router.decisions.decision import NOBODY, UNLIKE, Decision
from feddrm.router.decisions.term_names import TermNames
from feddrm.rules.explanation_text import FEW, ROUGHER, SMOOTHER, explanation_sentence

BLOCK = 2**22  # numbers of features that are multiplied at once


class LinearScores(NamedTuple):
    """Scores by a rule of origin: ``centred`` features [N, d] times ``weight`` [d, m], and two constants [m].

    An average query has ``baseline``. The rule adds ``sizes``, what it makes of the clients' numbers of samples.
    ``squares`` [N, d] of centred features add up to the strangeness.
    """

    centred: Tensor
    weight: Tensor
    squares: Callable[[Tensor], Tensor]
    baseline: Tensor
    sizes: Tensor


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why each of N samples has its ``client`` and not ``over``: terms of the difference of their log-odds.

    ``terms`` [N, terms] have ``names``. With the ``baseline`` [N], which an average query has, and the ``sizes`` [N] of
    the clients, which rule ``posterior`` counts, they add up to ``log_odds`` [N]. ``values`` are those of a table's
    raw columns, which are the first terms, column by column. ``unlike`` [N, terms] are shares of the strangeness of
    samples that are unlike the training data, and zeros for the others. ``rough`` [N] is not zero for pictures that are
    far rougher (1) or smoother (-1) than all training pictures. The terms of a sample without a client, -1, are not
    numbers.
    """

    clients: tuple[str, ...]
    names: tuple[str, ...]
    client: Tensor
    over: Tensor
    terms: Tensor
    baseline: Tensor
    sizes: Tensor
    unlike: Tensor
    values: Sequence[Sequence[Any]] = ()
    rough: Tensor | None = None

    def __len__(self) -> int:
        return len(self.client)

    def __repr__(self) -> str:  # short: a notebook would print every tensor
        return f"Explanation({len(self)} samples, {len(self.names)} terms)"

    def __getitem__(self, rows: slice) -> Explanation:
        return Explanation(
            self.clients, self.names, self.client[rows], self.over[rows], self.terms[rows], self.baseline[rows],
            self.sizes[rows], self.unlike[rows], [column[rows] for column in self.values],
            None if self.rough is None else self.rough[rows],
        )  # fmt: skip

    @property
    def log_odds(self) -> Tensor:
        """How much likelier each sample's client is than the other, as a logarithm: the sum of all terms."""
        return self.terms.sum(1) + self.baseline + self.sizes

    def as_dicts(self, most: int | None = None) -> list[dict[str, Any] | None]:
        """Plain values, sample by sample, the largest term first; None without a client.

        If there are more than ``most`` terms, the others are added up as ``rest``. ``value`` is a table's raw value,
        None if it is missing. ``unlike`` is empty unless the sample is unlike the training data; if its roughness is
        the reason, it says so in the place of the terms.
        """
        terms, order, rest = _largest_first(self.terms, most)
        shares, places, _ = _largest_first(self.unlike, most)
        rough = torch.zeros_like(self.client) if self.rough is None else self.rough
        columns = (self.client, self.over, self.log_odds, rest, self.baseline, self.sizes, self.unlike.any(1), rough)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            None
            if client == NOBODY
            else {
                "client": self.clients[client],
                "over": self.clients[over],
                "log_odds": log_odds,
                "terms": self._entries(i, order[i], terms[i], "log_odds"),
                "rest": left,
                "baseline": baseline,
                "sizes": sizes,
                "unlike": _by_roughness(side) or (self._entries(i, places[i], shares[i], "share") if strange else []),
            }
            for i, (client, over, log_odds, left, baseline, sizes, strange, side) in enumerate(rows)
        ]

    def _entries(self, row: int, order: Sequence[int], numbers: Sequence[float], key: str) -> list[dict[str, Any]]:
        names, values = self.names, self.values
        return [
            {"name": names[term], **({"value": values[term][row]} if term < len(values) else {}), key: number}
            for term, number in zip(order, numbers, strict=True)
        ]

    def sentences(self) -> list[str]:
        """The few largest terms of every sample in words; empty without a client."""
        return list(map(explanation_sentence, self.as_dicts(FEW)))


def explain_scores(
    decision: Decision,
    scores: LinearScores,
    names: TermNames,
    clients: tuple[str, ...],
    over: int | None = None,
    inputs: Tensor | None = None,
) -> Explanation:
    """The explanation of a decision by a rule of origin, over the runner-up or the client of number ``over``."""
    centred, mine = scores.centred, decision.client.clamp(min=0)
    other = _runner_up(decision.log_density + scores.sizes.to(decision.log_density), decision.away, mine)
    if over is not None:
        other = torch.where(mine == over, other, over)
    terms = torch.zeros(len(mine), len(names.names), dtype=torch.float64, device=mine.device)
    step = max(1, BLOCK // centred.shape[1])
    for rows in (slice(start, start + step) for start in range(0, len(mine), step)):
        weight = scores.weight.T[mine[rows]].double() - scores.weight.T[other[rows]].double()
        terms[rows] = names.add_up(centred[rows].double() * weight)
    strange = torch.tensor([reason == UNLIKE for reason in decision.reason], dtype=torch.bool, device=mine.device)
    squares = names.add_up(scores.squares(centred[strange].double()))
    unlike = torch.zeros_like(terms)
    unlike[strange] = squares / squares.sum(1, keepdim=True)
    nobody = decision.client == NOBODY
    baseline, sizes = (
        (constants[mine] - constants[other]).masked_fill(nobody, torch.nan)
        for constants in (scores.baseline.double(), scores.sizes.double())
    )
    return Explanation(
        clients=clients,
        names=names.names,
        client=decision.client,
        over=other.masked_fill(nobody, NOBODY),
        terms=terms.masked_fill(nobody[:, None], torch.nan),
        baseline=baseline,
        sizes=sizes,
        unlike=unlike,
        values=() if inputs is None else names.values(inputs),
        rough=None if decision.rough is None else decision.rough * strange,
    )


def _by_roughness(side: int) -> list[dict[str, Any]]:
    """The entry of a picture that is unlike the training data by its roughness."""
    return [{"name": ROUGHER if side > 0 else SMOOTHER, "share": 1.0}] if side else []


def _runner_up(scores: Tensor, away: Tensor, client: Tensor) -> Tensor:
    """The best of the other clients [N]. Those that are away are left out, unless there is no other."""
    others = scores.masked_fill(away, -torch.inf) if int((~away).sum()) > 1 else scores
    return others.scatter(1, client[:, None], -torch.inf).argmax(1)


def _largest_first(values: Tensor, most: int | None) -> tuple[list[list[float]], list[list[int]], Tensor]:
    """The largest of every row [N, terms] in size, their numbers, and the sum of the rest."""
    order = values.abs().argsort(dim=1, descending=True, stable=True)[:, :most]
    return values.gather(1, order).tolist(), order.tolist(), values.scatter(1, order, 0.0).sum(1)
