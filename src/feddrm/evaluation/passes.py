"""Running networks over test samples, in as few passes as possible: whatever shares a trunk shares its pass."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from feddrm.engine.precision import Arithmetic
from feddrm.models import Net, is_client_branch, is_project, is_trunk, part
from feddrm.threads import thread_map

Leaves = Mapping[str, Tensor]
Said = tuple[Tensor | None, Tensor | None]  # class logits [model, sample, class], client logits [sample, client]


@dataclass
class Pass:
    """One run of a trunk with all that is read off it: class logits of ``rows``, client logits, or both."""

    leaves: dict[str, Tensor]
    heads: dict[str, Tensor] = field(default_factory=dict)  # all rows' weights and biases, stacked
    rows: tuple[int, ...] = ()
    client: bool = False


def plan_passes(answering: Sequence[Leaves], client_branch: Leaves | None) -> list[Pass]:
    """As few passes as possible."""
    passes: list[Pass] = []
    for row, model in enumerate(answering):
        found = next((one for one in passes if same(one.leaves, body(model))), None)
        if found is None:
            passes.append(found := Pass(body(model)))
        found.rows += (row,)
    for one in passes:
        heads = [part(answering[row], "head") for row in one.rows]
        one.heads = {name: torch.stack([head[name] for head in heads]) for name in ("weight", "bias")}
    if client_branch is not None:
        trunk = {leaf: value for leaf, value in client_branch.items() if is_trunk(leaf)}
        branch = {leaf: value for leaf, value in client_branch.items() if is_client_branch(leaf)}
        found = next((one for one in passes if same(trunk, one.leaves)), None)
        if found is None:
            passes.append(found := Pass(trunk))
        found.leaves |= branch
        found.client = True
    return passes


def body(leaves: Leaves) -> dict[str, Tensor]:
    """What class logits depend on before the head."""
    return {leaf: value for leaf, value in leaves.items() if is_trunk(leaf) or is_project(leaf)}


def same(some: Leaves, others: Leaves) -> bool:
    """Whether all leaves of ``some`` are equal in ``others``; the very same tensors need no comparing."""
    return all(
        leaf in others and (value is others[leaf] or torch.equal(value, others[leaf])) for leaf, value in some.items()
    )


class Reading:
    """How passes are run: the network, its arithmetic, and how many samples at once."""

    def __init__(self, net: Net, arithmetic: Arithmetic | None, batch_size: int) -> None:
        self.net, self.arithmetic, self.batch_size = net, arithmetic, batch_size
        self.readers = threading.local()  # a pass swaps leaves into its module, so every thread has its own

    def over(self, passes: Sequence[Pass], x: Tensor, workers: int = 1) -> Said:
        """Logits [model, sample, class] of all rows, and client logits; None where no pass has any."""
        like = next(iter(passes[0].leaves.values()))
        with torch.no_grad():
            cast = [self._cast(one) for one in passes]

        def answer(start: int) -> Said:
            batch = x[start : start + self.batch_size].to(like.device, like.dtype)
            return in_order(cast, [self._read(one, batch, alone=workers == 1) for one in cast])

        with torch.no_grad(), thread_map(workers) as spread:
            parts = list(spread(answer, range(0, len(x), self.batch_size)))
        logits, client = ([part[k] for part in parts if part[k] is not None] for k in (0, 1))
        return torch.cat(logits, dim=1) if logits else None, torch.cat(client) if client else None

    def _cast(self, one: Pass) -> Pass:
        """Once for all batches what autocast would do anew for each."""
        return one if self.arithmetic is None else replace(one, leaves=self.arithmetic.leaves(one.leaves))

    def _read(self, one: Pass, x: Tensor, *, alone: bool) -> Said:
        if not hasattr(self.readers, "own"):
            self.readers.own = _Reader(self.net if alone else copy.deepcopy(self.net))
        leaves = {f"net.{leaf}": value for leaf, value in one.leaves.items()}
        wanted = {"classes": bool(one.rows), "client": one.client}
        with nullcontext() if self.arithmetic is None else self.arithmetic.casting():
            u, client = functional_call(self.readers.own, leaves, (x,), wanted)
        return None if u is None else _all_heads(u, one.heads), client


def in_order(passes: Sequence[Pass], said: Sequence[Said]) -> Said:
    """The passes' class logits by row, and the client logits of the one that has them."""
    rows: dict[int, Tensor] = {}
    for one, (logits, _) in zip(passes, said, strict=True):
        rows.update(zip(one.rows, () if logits is None else logits, strict=True))
    return (
        torch.stack([rows[row] for row in sorted(rows)]) if rows else None,
        next((client for _, client in said if client is not None), None),
    )


class _Reader(nn.Module):
    """The network up to u, what class heads see, and its client logits; each only where wanted."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, classes: bool, client: bool) -> Said:
        features, stages = self.net.embed(x)
        return (
            self.net.hidden(features) if classes else None,
            self.net.client_logits(stages) if client else None,
        )


def _all_heads(u: Tensor, heads: Leaves) -> Tensor:
    """Logits [model, sample, class] of all heads by one matrix product."""
    weight, bias = heads["weight"], heads["bias"]
    flat = F.linear(u.to(weight.dtype), weight.flatten(0, 1), bias.flatten())
    return flat.view(len(u), len(weight), -1).transpose(0, 1)
