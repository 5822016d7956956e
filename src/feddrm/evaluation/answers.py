"""What every client's model says about every test sample: the only part of evaluation that runs a network."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from feddrm.data import Federation, Pool, generator_for
from feddrm.engine.precision import Arithmetic
from feddrm.errors import FeddrmError, SettingError
from feddrm.models import Net, is_client_branch, is_head, is_project, is_trunk, part
from feddrm.threads import side_by_side

Leaves = Mapping[str, Tensor]

# Stands where training keys have the client's number, which is never as large.
TEST = int.from_bytes(b"test", "big")


@dataclass(frozen=True, eq=False)
class Queries:
    """All clients' test samples one after another, each as its own client sees it."""

    x: Tensor
    labels: Tensor
    origin: Tensor  # number of the client that the sample is from


class Answers(NamedTuple):
    """Logits of m models for N samples of K classes, and whose the samples are.

    ``client_logits`` come from the published client head of the aggregated model, ``global_logits``
    from the one model without a private part; either is None for methods that have none.
    """

    logits: Tensor  # [m, N, K]
    labels: Tensor  # [N]
    origin: Tensor  # [N]
    client_logits: Tensor | None = None  # [N, m]
    global_logits: Tensor | None = None  # [N, K]


def pooled_queries(
    federation: Federation, *, crop: bool, seed: int, round: int, workers: int = 1, pool: Pool | None = None
) -> Queries:
    """The pooled test set, with one random crop per sample where ``crop`` (as in the paper) and the data has any.

    The crops depend on (seed, round, client) alone: evaluating more or less often, or not at all,
    leaves training untouched. Average and system accuracy share them, where the paper's code draws
    twice. ``workers`` clients are seen side by side; with a ``pool`` of the test samples, as a GPU
    wants it, all of them at once.
    """

    def boxes(number: int) -> Tensor | None:
        if not crop or federation.crop is None:
            return None
        height, width = federation.shape[-2:]
        generator = generator_for(seed, TEST, round, number)
        return federation.crop.boxes(len(federation.clients[number].test), height, width, generator)

    if pool is not None:
        drawn = [one for one in map(boxes, range(len(federation))) if one is not None]
        places = torch.cat(drawn).to(pool.x.device) if drawn else None
        return Queries(pool.see(pool.x, pool.owners, places), pool.y, pool.owners)

    def seen(number: int) -> tuple[Tensor, Tensor, Tensor]:
        client, places = federation.clients[number], boxes(number)
        places = None if places is None else places.to(client.test.x.device)
        return client.view(client.test.x, places), client.test.y, torch.full_like(client.test.y, number)

    with side_by_side(workers) as spread:
        parts = list(spread(seen, range(len(federation))))
    return Queries(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def shared_trunk(models: Sequence[Leaves]) -> bool:
    """Whether the models' classes differ by their heads alone, so that one pass serves all of them.

    The client branch does not matter: no class logit depends on it.
    """
    return all(_same(_body(models[0]), _body(model)) for model in models[1:])


def ask(
    net: Net,
    models: Sequence[Leaves],
    test: Queries,
    *,
    client_branch: Leaves | None = None,
    global_model: Leaves | None = None,
    arithmetic: Arithmetic | None = None,
    batch_size: int = 512,
    workers: int = 1,
) -> Answers:
    """Ask every client's model about every sample, on the device and in the precision of the models.

    ``arithmetic`` may let the trunk compute in less; logits never do.

    ``client_branch`` are the leaves of the model that the client logits come from, its trunk
    included (a class head it need not have); ``global_model`` those of the model without a private
    part. Whatever shares a trunk shares its pass: for methods that personalise nothing but the head
    that is one pass in all, with the m heads as a single product. ``workers`` batches are asked
    side by side on CPU.
    """
    if not models:
        raise FeddrmError("there is no model to ask: give one per client")
    if batch_size < 1:
        raise SettingError(f"batch_size={batch_size}: give at least 1")
    for row, model in enumerate(models):
        _check(net, model, f"model {row}", client=False)
    if global_model is not None:
        _check(net, global_model, "the global model", client=False)
    if client_branch is not None:
        _check(net, client_branch, "the model of the client branch", client=True)
    answering = [*models, *([] if global_model is None else [global_model])]
    passes = _plan(answering, client_branch)
    like = next(iter(passes[0].leaves.values()))
    labels, origin = test.labels.to(like.device), test.origin.to(like.device)

    readers = threading.local()  # a pass swaps leaves into its module, so every thread has its own

    def answer(start: int) -> tuple[Tensor, Tensor | None]:
        if not hasattr(readers, "own"):
            readers.own = _Reader(copy.deepcopy(net) if workers > 1 else net)
        x = test.x[start : start + batch_size].to(like.device, like.dtype)
        said: list[Tensor | None] = [None] * len(answering)
        who = None
        with torch.no_grad():
            for one in passes:
                with nullcontext() if arithmetic is None else arithmetic.casting():
                    u, found = one(readers.own, x)
                if u is not None:
                    for row, logits in zip(one.rows, _all_heads(u, [answering[row] for row in one.rows]), strict=True):
                        said[row] = logits
                who = who if found is None else found
        return torch.stack([logits for logits in said if logits is not None]), who

    with side_by_side(workers) as spread:
        parts = list(spread(answer, range(0, len(labels), batch_size)))
    if not parts:
        raise FeddrmError("the test set is empty: give at least one sample")
    logits = torch.cat([part for part, _ in parts], dim=1)
    client_logits = [who for _, who in parts if who is not None]
    return Answers(
        logits[: len(models)],
        labels,
        origin,
        torch.cat(client_logits) if client_logits else None,
        None if global_model is None else logits[-1],
    )


@dataclass
class _Pass:
    """One run of a trunk with all that is read off it: class logits of ``rows``, client logits, or both."""

    leaves: dict[str, Tensor]
    rows: list[int] = field(default_factory=list)
    client: bool = False

    def __call__(self, reader: _Reader, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        leaves = {f"net.{leaf}": value for leaf, value in self.leaves.items()}
        wanted = {"classes": bool(self.rows), "client": self.client}
        read: tuple[Tensor | None, Tensor | None] = functional_call(reader, leaves, (x,), wanted)
        return read


class _Reader(nn.Module):
    """The network up to u, what class heads see, and its client logits; each only where wanted."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, classes: bool, client: bool) -> tuple[Tensor | None, Tensor | None]:
        features, stages = self.net.embed(x)
        return (
            self.net.hidden(features) if classes else None,
            self.net.client_logits(stages) if client else None,
        )


def _plan(answering: Sequence[Leaves], client_branch: Leaves | None) -> list[_Pass]:
    """As few passes as possible."""
    passes: list[_Pass] = []
    for row, model in enumerate(answering):
        body = _body(model)
        found = next((one for one in passes if _same(one.leaves, body)), None)
        if found is None:
            passes.append(found := _Pass(body))
        found.rows.append(row)
    if client_branch is not None:
        trunk = {leaf: value for leaf, value in client_branch.items() if is_trunk(leaf)}
        branch = {leaf: value for leaf, value in client_branch.items() if is_client_branch(leaf)}
        found = next((one for one in passes if _same(trunk, one.leaves)), None)
        if found is None:
            passes.append(found := _Pass(trunk))
        found.leaves |= branch
        found.client = True
    return passes


def _check(net: Net, leaves: Leaves, what: str, *, client: bool) -> None:
    """Refuse a model with a leaf missing: the network's own, perhaps untrained, would silently stand in for it."""
    if client and net.client_head is None:
        raise FeddrmError("the network has no client branch to ask: build it with clients=..., or leave it out")
    for leaf, _ in net.named_parameters():
        wanted = is_trunk(leaf) or (is_client_branch(leaf) if client else is_project(leaf) or is_head(leaf))
        if wanted and leaf not in leaves:
            raise FeddrmError(f"{what} has no leaf '{leaf}': give all that its answer depends on")


def _body(leaves: Leaves) -> dict[str, Tensor]:
    """What class logits depend on before the head."""
    return {leaf: value for leaf, value in leaves.items() if is_trunk(leaf) or is_project(leaf)}


def _same(some: Leaves, others: Leaves) -> bool:
    """Whether all leaves of ``some`` are equal in ``others``; the very same tensors need no comparing."""
    return all(
        leaf in others and (value is others[leaf] or torch.equal(value, others[leaf])) for leaf, value in some.items()
    )


def _all_heads(u: Tensor, models: Sequence[Leaves]) -> Tensor:
    """Logits [model, sample, class] of all heads by one matrix product."""
    heads = [part(model, "head") for model in models]
    weight, bias = (torch.stack([head[name] for head in heads]) for name in ("weight", "bias"))
    flat = F.linear(u.to(weight.dtype), weight.flatten(0, 1), bias.flatten())
    return flat.view(len(u), len(heads), -1).transpose(0, 1)
