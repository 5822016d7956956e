"""Finds test samples that are copies of training samples: a model knows them, so accuracies on them are too good."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feddrm.data.client import Client, Split

COPIED = 0.01  # share of the test samples from which on there is a warning
DISTINCT = 0.9  # share of different training rows below which rows of a table may well be equal by chance


def copies_warning(name: str, clients: Sequence[Client]) -> str | None:
    """A warning where test samples are equal to training samples of any client, label and all; None where few are."""
    train = [sample for client in clients for sample in _hashes(client.train)]
    known = set(train)
    if clients[0].train.x.ndim == 2 and len(known) < DISTINCT * len(train):
        return None
    equal = [[sample in known for sample in _hashes(client.test)] for client in clients]
    copies, tested = sum(map(sum, equal)), sum(map(len, equal))
    if copies < COPIED * tested or not copies:
        return None
    client, own = next((client, own) for client, own in zip(clients, equal, strict=True) if any(own))
    return (
        f"{name}: {copies:,} of {tested:,} test samples are equal to training samples, such as test sample "
        f"{own.index(True)} of client '{client.name}'. If they are copies, accuracies will be too good: remove them, "
        "or name whom the samples are of (subject)"
    )


def _hashes(split: Split) -> Iterator[int]:
    """One number per sample, equal for equal samples: the samples' bytes would take as much memory as they do."""
    rows, labels = split.x.cpu().contiguous().numpy().reshape(len(split), -1), split.y.tolist()
    return (hash((row.tobytes(), label)) for row, label in zip(rows, labels, strict=True))
