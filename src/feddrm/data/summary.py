"""Makes the dataset summary of a federation."""

from __future__ import annotations

import torch
from torch import Tensor

from feddrm.data.federation import Federation
from feddrm.io.dataset_summary import GALLERY_SIZE, DatasetSummary

CONSTANT = 1e-9  # deviation over mean, below which a column varies by rounding alone


def dataset_summary(federation: Federation) -> DatasetSummary:
    """The counts of a federation, and pictures or column means of its clients."""
    facts = federation.describe() | {
        "digest": federation.digest(),
        "columns": None if federation.columns is None else list(federation.columns),
        **({} if federation.schema is None else {"schema": federation.schema.as_dict()}),
        "same_samples": federation.gallery is not None,
    }
    if len(federation.shape) == 3:
        gallery, labels = federation.gallery, [list(federation.gallery_labels)] * len(federation)
        if gallery is None:
            gallery = torch.stack([_filled_up(c.view.pixels(c.test.x[:GALLERY_SIZE])) for c in federation.clients])
            labels = [c.test.y[:GALLERY_SIZE].tolist() for c in federation.clients]
        return DatasetSummary(facts | {"gallery_labels": labels}, gallery=gallery.cpu().numpy())
    count, own = int(federation.sizes.sum()), [client.train.x for client in federation.clients]
    mean = torch.stack([x.sum(0, dtype=torch.float64) for x in own]).sum(0) / count
    squares = torch.stack([(x - mean).square_().sum(0) for x in own]).sum(0)
    scale = (squares / (count - 1)).sqrt()
    scale[scale <= CONSTANT * mean.abs()] = torch.inf
    means = torch.stack([(x.mean(0, dtype=torch.float64) - mean) / scale for x in own]).float()
    return DatasetSummary(facts, column_means=means.cpu().numpy())


def _filled_up(pixels: Tensor) -> Tensor:
    """``GALLERY_SIZE`` images; white ones stand for those that are missing."""
    missing = GALLERY_SIZE - len(pixels)
    if missing <= 0:
        return pixels
    return torch.cat([pixels, pixels.new_full((missing, *pixels.shape[1:]), 255)])
