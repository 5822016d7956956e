"""Forward passes of many models over test samples, as few as possible: models with one trunk share its pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from feddrm.engine.precision import Arithmetic
from feddrm.models import Net, is_client_branch, is_project, is_trunk, of_this_thread, part
from feddrm.threads import thread_map

Leaves = Mapping[str, Tensor]
Logits = tuple[Tensor | None, Tensor | None]  # class logits [model, sample, class], client logits [sample, client]


@dataclass
class Pass:
    """One run of a trunk and what is computed from it: class logits of the models ``rows``, client logits, or both."""

    leaves: dict[str, Tensor]
    heads: dict[str, Tensor] = field(default_factory=dict)  # weights and biases of all rows, stacked
    rows: tuple[int, ...] = ()
    client: bool = False

    @property
    def like(self) -> Tensor:
        """A tensor of the type and on the device of the computation. A frozen trunk may have no such leaf."""
        return next(iter((self.heads or self.leaves).values()))


def plan_passes(models: Sequence[Leaves], client_branch: Leaves | None) -> list[Pass]:
    """The smallest set of passes that gives all models' class logits and the client logits."""
    passes: list[Pass] = []
    for row, model in enumerate(models):
        leaves = body(model)
        shared = next((one for one in passes if same(one.leaves, leaves)), None)
        if shared is None:
            passes.append(shared := Pass(leaves))
        shared.rows += (row,)
    for one in passes:
        heads = [part(models[row], "head") for row in one.rows]
        one.heads = {name: torch.stack([head[name] for head in heads]) for name in ("weight", "bias")}
    if client_branch is not None:
        trunk = {leaf: value for leaf, value in client_branch.items() if is_trunk(leaf)}
        branch = {leaf: value for leaf, value in client_branch.items() if is_client_branch(leaf)}
        shared = next((one for one in passes if same(trunk, one.leaves)), None)
        if shared is None:
            passes.append(shared := Pass(trunk))
        shared.leaves |= branch
        shared.client = True
    return passes


def body(leaves: Leaves) -> dict[str, Tensor]:
    """The leaves before the head that class logits depend on."""
    return {leaf: value for leaf, value in leaves.items() if is_trunk(leaf) or is_project(leaf)}


def same(some: Leaves, others: Leaves) -> bool:
    """Whether all leaves of ``some`` are equal in ``others``. Identical tensors are not compared."""
    return all(
        leaf in others and (value is others[leaf] or torch.equal(value, others[leaf])) for leaf, value in some.items()
    )


class PassRunner:
    """Runs passes: it knows the network, its arithmetic, and how many samples form a batch."""

    def __init__(self, net: Net, arithmetic: Arithmetic | None, batch_size: int) -> None:
        self.net, self.arithmetic, self.batch_size = net, arithmetic, batch_size

    def run(self, passes: Sequence[Pass], x: Tensor, workers: int = 1) -> Logits:
        """Class logits [model, sample, class] of all rows, and client logits; None where no pass has any."""
        like = passes[0].like
        with torch.no_grad():
            cast = [self._cast(one) for one in passes]

        def run_batch(start: int) -> Logits:
            batch = x[start : start + self.batch_size].to(like.device, like.dtype)
            return in_order(cast, [self._run(one, batch) for one in cast])

        with torch.no_grad(), thread_map(workers) as spread:
            parts = list(spread(run_batch, range(0, len(x), self.batch_size)))
        logits, client = ([part[k] for part in parts if part[k] is not None] for k in (0, 1))
        return torch.cat(logits, dim=1) if logits else None, torch.cat(client) if client else None

    def _cast(self, one: Pass) -> Pass:
        """Cast the leaves once for all batches; autocast would do it again for each."""
        return one if self.arithmetic is None else replace(one, leaves=self.arithmetic.leaves(one.leaves))

    def _run(self, one: Pass, x: Tensor) -> Logits:
        leaves = {f"net.{leaf}": value for leaf, value in one.leaves.items()}
        wanted = {"classes": bool(one.rows), "client": one.client}
        with nullcontext() if self.arithmetic is None else self.arithmetic.casting():
            u, client = functional_call(_Trunk(of_this_thread(self.net)), leaves, (x,), wanted)
        return None if u is None else _all_heads(u, one.heads), client


def in_order(passes: Sequence[Pass], results: Sequence[Logits]) -> Logits:
    """The passes' class logits by row, and the client logits of the pass that has them."""
    if len(results) == 1:
        return results[0]  # its rows are in order
    rows: dict[int, Tensor] = {}
    for one, (logits, _) in zip(passes, results, strict=True):
        rows.update(zip(one.rows, () if logits is None else logits, strict=True))
    return (
        torch.stack([rows[row] for row in sorted(rows)]) if rows else None,
        next((client for _, client in results if client is not None), None),
    )


class _Trunk(nn.Module):
    """The network up to u, the input of the class heads, and its client logits; each only where wanted."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, classes: bool, client: bool) -> Logits:
        features, stages = self.net.embed(x)
        return (
            self.net.hidden(features) if classes else None,
            self.net.client_logits(stages) if client else None,
        )


def _all_heads(u: Tensor, heads: Leaves) -> Tensor:
    """Logits [model, sample, class] of all heads, by one matrix product."""
    weight, bias = heads["weight"], heads["bias"]
    flat = F.linear(u.to(weight.dtype), weight.flatten(0, 1), bias.flatten())
    return flat.view(len(u), len(weight), -1).transpose(0, 1)
