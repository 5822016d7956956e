"""Class means of features, gathered batch by batch as sums and counts of fixed shape."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from feddrm.data import Batch
from feddrm.methods.method import Forward, Tensors


def class_sums(net: Forward, model: Tensors, batch: Batch) -> Tensors:
    """Sums [class, feature] and counts [class] of the real samples of a batch."""
    out = net(model, batch.x)
    member = F.one_hot(batch.y, out.logits.shape[1]).to(out.features.dtype) * batch.mask[:, None]
    return {"sums": member.T @ out.features, "counts": member.sum(0)}


def class_means(gathered: Tensors) -> Tensor:
    """Mean feature of every class; zero where none was seen."""
    return gathered["sums"] / torch.clamp(gathered["counts"], min=1)[:, None]
