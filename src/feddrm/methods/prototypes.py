"""Class means of features, collected batch by batch as sums and counts of fixed shape."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from feddrm.data import Batch
from feddrm.methods.losses import masked_mean
from feddrm.methods.method import Forward, Tensors


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
