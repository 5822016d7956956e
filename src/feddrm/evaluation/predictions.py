"""What every client's model says about every test sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from feddrm.data import Federation, Pool, generator_for
from feddrm.engine.precision import Arithmetic
from feddrm.errors import FeddrmError, SettingError
from feddrm.evaluation.cuda_replay import Replay
from feddrm.evaluation.passes import Leaves, Reading, plan_passes
from feddrm.models import Net, is_client_branch, is_head, is_project, is_trunk
from feddrm.threads import thread_map

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

    def boxes(numbers: Sequence[int], device: torch.device) -> Tensor | None:
        if not crop or federation.crop is None:
            return None
        counts = [len(federation.clients[number].test) for number in numbers]
        generators = [generator_for(seed, TEST, round, number) for number in numbers]
        height, width = federation.shape[-2:]
        return federation.crop.boxes_of(counts, height, width, generators).to(device)

    if pool is not None:
        places = boxes(range(len(federation)), pool.x.device)
        return Queries(pool.network_input(pool.x, pool.owners, places), pool.y, pool.owners)

    def seen(number: int) -> tuple[Tensor, Tensor, Tensor]:
        client = federation.clients[number]
        places = boxes([number], client.test.x.device)
        return client.view(client.test.x, places), client.test.y, torch.full_like(client.test.y, number)

    with thread_map(workers) as spread:
        parts = list(spread(seen, range(len(federation))))
    return Queries(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


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
    replay: Replay | None = None,
) -> Answers:
    """Ask every client's model about every sample, on the device and in the precision of the models.

    ``arithmetic`` may let the trunk compute in less; logits never do.

    ``client_branch`` are the leaves of the model that the client logits come from, its trunk
    included (a class head it need not have); ``global_model`` those of the model without a private
    part. Whatever shares a trunk shares its pass: for methods that personalise nothing but the head
    that is one pass in all, with the m heads as a single product. ``workers`` batches are asked
    side by side on CPU; on a GPU ``replay``, kept from one call to the next, asks all models of all
    batches by a single launch.
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
    passes = plan_passes(answering, client_branch)
    like = next(iter(passes[0].leaves.values()))
    labels, origin = test.labels.to(like.device), test.origin.to(like.device)
    if not len(labels):
        raise FeddrmError("the test set is empty: give at least one sample")
    how = Reading(net, arithmetic, batch_size)
    logits, client = how.over(passes, test.x, workers) if replay is None else replay(how, passes, test.x.to(like))
    assert logits is not None  # there is a model, so there is a row
    return Answers(logits[: len(models)], labels, origin, client, None if global_model is None else logits[-1])


def _check(net: Net, leaves: Leaves, what: str, *, client: bool) -> None:
    """Refuse a model with a leaf missing: the network's own, perhaps untrained, would silently stand in for it."""
    if client and net.client_head is None:
        raise FeddrmError("the network has no client branch to ask: build it with clients=..., or leave it out")
    for leaf, _ in net.named_parameters():
        wanted = is_trunk(leaf) or (is_client_branch(leaf) if client else is_project(leaf) or is_head(leaf))
        if wanted and leaf not in leaves:
            raise FeddrmError(f"{what} has no leaf '{leaf}': give all that its answer depends on")
