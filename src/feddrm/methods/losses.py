"""Losses over masked batches of fixed shape."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from feddrm.data import Batch
from feddrm.methods.method import Forward, Slots, Tensors


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


def classify(net: Forward, slots: Slots, batch: Batch) -> Tensor:
    """Cross-entropy of the classes under the client's model."""
    return cross_entropy(net(slots["model"], batch.x).logits, batch.y, batch.mask)


def distance(a: Tensors, b: Tensors, leaves: list[str] | None = None) -> Tensor:
    """Half the squared distance between two models, over the named leaves or over those that both have."""
    names = leaves if leaves is not None else [leaf for leaf in a if leaf in b]
    return 0.5 * sum(((a[leaf] - b[leaf]).square().sum() for leaf in names), start=a[names[0]].new_zeros(()))
