"""Losses and class means of features over masked batches of fixed shape."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from feddrm.data import Batch
from feddrm.methods.method import Forward, Slots, Tensors
from feddrm.models import Outputs


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real samples of a batch; the places that only fill it up do not count.

    Without any real sample it is zero, and so is its gradient. A method that divides a batch meets this case: the last
    batch of a shuffle is short, so that a half of it may be empty.
    """
    weight = mask.to(values.dtype)
    return (values * weight).sum() / weight.sum().clamp_min(1)


def cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Mean cross-entropy over the real samples."""
    return masked_mean(F.cross_entropy(logits, labels, reduction="none"), mask)


def task_loss(out: Outputs, batch: Batch) -> Tensor:
    """Mean loss of the task over the real samples: the cross-entropy of the classes, or that of survival."""
    return masked_mean(out.task.losses(out.logits, batch.y), batch.mask)


def classify(net: Forward, slots: Slots, batch: Batch) -> Tensor:
    """The task's loss under the client's model."""
    return task_loss(net(slots["model"], batch.x), batch)


def distance(a: Tensors, b: Tensors, leaves: list[str] | None = None) -> Tensor:
    """Half the squared distance between two models, over the named leaves or over those that both have."""
    names = leaves if leaves is not None else [leaf for leaf in a if leaf in b]
    return 0.5 * sum(((a[leaf] - b[leaf]).square().sum() for leaf in names), start=a[names[0]].new_zeros(()))


def class_sums(net: Forward, model: Tensors, batch: Batch) -> Tensors:
    """Sums [class, feature] and counts [class] of the real samples of a batch."""
    out = net(model, batch.x)
    member = F.one_hot(batch.y, out.logits.shape[1]).to(out.features.dtype) * batch.mask[:, None]
    return {"sums": member.T @ out.features, "counts": member.sum(0)}


def class_means(sums: Tensor, counts: Tensor) -> Tensors:
    """The mean feature of every class, and which classes were seen."""
    return {"prototypes": sums / counts.clamp_min(1)[:, None], "seen": counts > 0}


def distance_to_means(features: Tensor, means: Tensors, batch: Batch) -> Tensor:
    """Mean squared distance of features to their classes' means; classes that were not seen add nothing."""
    gap = (features - means["prototypes"][batch.y]).square().mean(1)
    return masked_mean(gap * means["seen"][batch.y], batch.mask)
