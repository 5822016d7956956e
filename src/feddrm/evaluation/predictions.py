"""The pooled test set, and the logits of every client's model for every sample of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from feddrm.data import Federation, Pool, QueryViews, generator_for
from feddrm.engine.precision import Arithmetic
from feddrm.errors import FeddrmError, SettingError
from feddrm.evaluation.cuda_replay import Replay
from feddrm.evaluation.passes import Leaves, PassRunner, plan_passes
from feddrm.models import Net, is_client_branch, is_head, is_project, is_trunk
from feddrm.tasks import CLASSIFICATION, Task
from feddrm.threads import thread_map

# Second key of the test crops' draws. The draws of training have a client's number there, which is never as large.
TEST = int.from_bytes(b"test", "big")


@dataclass(frozen=True, eq=False)
class Queries:
    """The test samples of all clients in client order, each as its own client sees it, and the views to average."""

    x: Tensor
    labels: Tensor
    origin: Tensor  # the number of the sample's client
    views: QueryViews = field(default_factory=QueryViews)
    subject: Tensor | None = None  # numbers whom each sample is of, within its client; None: each is of its own

    def parts(self, size: int) -> Iterator[Queries]:
        """The same queries, ``size`` at a time."""
        for start in range(0, len(self.labels), size):
            part = slice(start, start + size)
            subject = None if self.subject is None else self.subject[part]
            yield Queries(self.x[part], self.labels[part], self.origin[part], self.views, subject)


class Predictions(NamedTuple):
    """Logits of m models for N samples of K classes, with the samples' labels and clients, and what both mean.

    ``client_logits`` come from the published client head of the aggregated model, ``global_logits``
    from the one model without a private part. Either is None for methods that have none.
    """

    logits: Tensor  # [m, N, K]
    labels: Tensor  # [N]
    origin: Tensor  # [N]
    client_logits: Tensor | None = None  # [N, m]
    global_logits: Tensor | None = None  # [N, K]
    task: Task = CLASSIFICATION


@dataclass(frozen=True)
class Execution:
    """How predictions are computed.

    ``arithmetic`` may let the trunk compute in lower precision; logits never do. ``workers`` batches
    are computed side by side on a CPU. On a GPU ``replay`` computes all models and all batches by one
    launch; it must be kept from one call to the next.
    """

    arithmetic: Arithmetic | None = None
    batch_size: int = 512
    workers: int = 1
    replay: Replay | None = None


def pooled_queries(  # noqa: PLR0913 (what the crops depend on, and how they are computed)
    federation: Federation,
    *,
    crop: bool,
    seed: int,
    round: int,
    views: int = 1,
    workers: int = 1,
    pool: Pool | None = None,
    clients: Sequence[int] | None = None,
) -> Queries:
    """The pooled test set of all clients, or of those with the given numbers, in order.

    With ``crop``, as in the paper, it has one random crop per sample where the data has crops.

    Several ``views`` are those of the whole image, as a predictor would see it: they take the place of the random crop.

    The crops depend on (seed, round, client) alone: evaluating more or less often changes nothing in
    training. Average and system accuracy share them; the paper's code draws twice. ``workers`` clients
    are prepared side by side. With a ``pool`` of the test samples, as on a GPU, all are prepared at once.
    """

    def boxes(numbers: Sequence[int], device: torch.device) -> Tensor | None:
        if not crop or federation.crop is None or views > 1:
            return None
        counts = [len(federation.clients[number].test) for number in numbers]
        generators = [generator_for(seed, TEST, round, number) for number in numbers]
        height, width = federation.shape[-2:]
        return federation.crop.boxes_of(counts, height, width, generators).to(device)

    averaged = federation.query_views.take(views)
    numbers = range(len(federation)) if clients is None else clients
    if pool is not None:
        places, x, y, owners = boxes(numbers, pool.x.device), pool.x, pool.y, pool.owners
        if clients is not None:
            chosen = torch.isin(owners, torch.tensor(numbers, device=owners.device))
            x, y, owners = x[chosen], y[chosen], owners[chosen]
        return Queries(pool.network_input(x, owners, places), y, owners, averaged, pooled_subjects(federation, numbers))

    def prepare(number: int) -> tuple[Tensor, Tensor, Tensor]:
        client = federation.clients[number]
        places = boxes([number], client.test.x.device)
        return client.view(client.test.x, places), client.test.y, torch.full_like(client.test.y, number)

    with thread_map(workers) as spread:
        parts = list(spread(prepare, numbers))
    x, labels, origin = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return Queries(x, labels, origin, averaged, pooled_subjects(federation, numbers))


def pooled_subjects(federation: Federation, clients: Sequence[int] | None = None) -> Tensor | None:
    """Whom each of the pooled test samples is of, as a number within its client; None if no client has subjects."""
    tests = [federation.clients[number].test for number in (range(len(federation)) if clients is None else clients)]
    if all(test.subject is None for test in tests):
        return None
    return torch.cat([torch.arange(len(test)) if test.subject is None else test.subject for test in tests])


def predict(
    net: Net,
    models: Sequence[Leaves],
    test: Queries,
    *,
    client_branch: Leaves | None = None,
    global_model: Leaves | None = None,
    execution: Execution | None = None,
) -> Predictions:
    """Predict every sample by every client's model, on the device and in the precision of the models.

    ``client_branch`` holds the leaves of the model that the client logits come from, with its trunk
    (it needs no class head); ``global_model`` those of the model without a private part. Models with
    one trunk share its pass: methods that personalise nothing but the head need one pass in all, with
    the m heads as a single product. All logits are means over the views of ``test``.
    """
    whole = max(1, len(test.labels))
    (predictions,) = predict_parts(
        net, models, test, whole, client_branch=client_branch, global_model=global_model, execution=execution
    )
    return predictions


def predict_parts(
    net: Net,
    models: Sequence[Leaves],
    test: Queries,
    size: int,
    *,
    client_branch: Leaves | None = None,
    global_model: Leaves | None = None,
    execution: Execution | None = None,
) -> Iterator[Predictions]:
    """Like :func:`predict`, with the predictions of ``size`` samples in memory at a time."""
    execution = execution or Execution()
    if not models:
        raise FeddrmError("there is no model to predict with: give one per client")
    if execution.batch_size < 1:
        raise SettingError(f"batch_size={execution.batch_size}: give at least 1")
    answering = [leaf for leaf, _ in net.named_parameters() if is_trunk(leaf) or is_project(leaf) or is_head(leaf)]
    for row, model in enumerate(models):
        _check(model, answering, f"model {row}")
    if global_model is not None:
        _check(global_model, answering, "the global model")
    if client_branch is not None:
        _check(client_branch, _branch_leaves(net), "the model of the client branch")
    passes = plan_passes([*models, *([] if global_model is None else [global_model])], client_branch)
    like = passes[0].like
    if not len(test.labels):
        raise FeddrmError("the test set is empty: give at least one sample")
    runner = PassRunner(net, execution.arithmetic, execution.batch_size)

    def all_logits(x: Tensor) -> dict[str, Tensor]:
        if execution.replay is None:
            logits, client = runner.run(passes, x, execution.workers)
        else:
            logits, client = execution.replay(runner, passes, x.to(like))
        assert logits is not None  # there is a model, so there is a row
        return {"classes": logits} if client is None else {"classes": logits, "client": client}

    for part in test.parts(size):
        mean = part.views.mean(part.x, all_logits)
        logits, labels, origin = mean["classes"], part.labels.to(like.device), part.origin.to(like.device)
        shared = None if global_model is None else logits[-1]
        yield Predictions(logits[: len(models)], labels, origin, mean.get("client"), shared, net.task)


def _branch_leaves(net: Net) -> list[str]:
    """The leaves that client logits depend on."""
    if net.client_head is None:
        raise FeddrmError(
            "the network has no client branch to predict with: build it with clients=..., or leave it out"
        )
    return [leaf for leaf, _ in net.named_parameters() if is_trunk(leaf) or is_client_branch(leaf)]


def _check(leaves: Leaves, needed: Sequence[str], what: str) -> None:
    """Refuse a model with a leaf missing: the network would silently use its own leaf, perhaps untrained."""
    for leaf in needed:
        if leaf not in leaves:
            raise FeddrmError(f"{what} has no leaf '{leaf}': give all leaves that its answer depends on")
