"""Partitions: the division of one pool of labelled samples among clients, as in the paper's experiments.

With the same seed, all indices equal those of FedLab 1.3.0: both draw from NumPy's legacy generator in
the same order. There is one difference: the sort behind the shards is stable here, while FedLab's
depends on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feddrm.errors import SettingError
from feddrm.registry import check_choice

PARTITIONS = ("iid", "dirichlet", "shards")
TRAIN_FRACTION = 0.7
MAX_DRAWS = 1_000  # possible settings need a few draws; a thousand draws for many clients take seconds

Indices = NDArray[np.int64]


def partition(
    labels: NDArray[np.integer], *, clients: int, kind: str, alpha: float, shards: int, seed: int
) -> list[tuple[Indices, Indices]]:
    """(train, test) indices of every client: a division by ``kind``, then 70/30 with the same generator."""
    check_choice("partition", kind, PARTITIONS)
    rng = np.random.RandomState(seed)
    labels = np.asarray(labels)
    if clients * 2 > len(labels):
        raise SettingError(f"{clients} clients cannot share {len(labels)} samples: ask for fewer clients")
    if kind == "iid":
        parts = list(np.array_split(rng.permutation(len(labels)), clients))
    elif kind == "dirichlet":
        parts = _dirichlet(labels, clients, alpha, rng)
    else:
        parts = _shards(labels, clients, shards, rng)
    return split(parts, rng)


def split(
    parts: Sequence[Indices], rng: np.random.RandomState, train: float = TRAIN_FRACTION
) -> list[tuple[Indices, Indices]]:
    """Shuffle each client's samples in turn, and use the first ``train`` of them (rounded down) for training."""
    out = []
    for part in parts:
        order = np.array(part, dtype=np.int64)
        rng.shuffle(order)
        cut = int(train * len(order))
        out.append((order[:cut], order[cut:]))
    return out


def split_rows(
    size: int, rng: np.random.RandomState, train: float, subject: Indices | None = None
) -> tuple[Indices, Indices]:
    """Rows of one client for training and the others, shuffled. All rows of one ``subject`` are on the same side.

    Whole subjects are drawn until their rows are as close to ``train`` as they come. A single subject is for training.
    """
    if subject is None:
        return split([np.arange(size)], rng, train)[0]
    names, own = np.unique(subject, return_inverse=True)
    drawn = rng.permutation(len(names))
    held = np.bincount(own)[drawn].cumsum()
    most = max(1, len(names) - 1)
    first = np.isin(own, drawn[: 1 + np.abs(held[:most] - train * size).argmin()])
    rows = rng.permutation(size)
    return rows[first[rows]], rows[~first[rows]]


def _dirichlet(labels: NDArray[np.integer], clients: int, alpha: float, rng: np.random.RandomState) -> list[Indices]:
    """Divide every class by a Dirichlet draw over the clients that do not yet hold their share."""
    classes = int(labels.max()) + 1
    smallest_allowed = max(classes, 2)
    if clients * smallest_allowed > len(labels):
        raise SettingError(
            f"a Dirichlet division gives every client at least {smallest_allowed} samples, as many as there are "
            f"classes; {len(labels)} samples are too few for {clients} clients: use --partition iid or shards, or "
            "fewer clients"
        )
    for _ in range(MAX_DRAWS):
        pieces: list[list[Indices]] = [[] for _ in range(clients)]
        held = np.zeros(clients, dtype=np.int64)
        for k in range(classes):
            members = np.where(labels == k)[0]
            rng.shuffle(members)
            share = rng.dirichlet(np.repeat(alpha, clients))
            with np.errstate(invalid="ignore"):  # a tiny alpha can give infinite shares
                share = share * (held < len(labels) / clients)
            if not share.sum() > 0:  # infinite, or only clients that hold their share would get samples
                break
            share = share / share.sum()
            cuts = (np.cumsum(share) * len(members)).astype(int)[:-1]
            for client, piece in enumerate(np.split(members, cuts)):
                pieces[client].append(piece)
                held[client] += len(piece)
        if held.sum() == len(labels) and held.min() >= smallest_allowed:
            parts = [np.concatenate(p) for p in pieces]
            for part in parts:
                rng.shuffle(part)
            return parts
    raise SettingError(
        f"no Dirichlet({alpha}) division of {len(labels)} samples gave each of {clients} clients "
        f"{smallest_allowed} samples in {MAX_DRAWS} draws: use --partition iid or shards, fewer clients, or a "
        "larger alpha"
    )


def _shards(labels: NDArray[np.integer], clients: int, shards: int, rng: np.random.RandomState) -> list[Indices]:
    """Sort the samples by label, cut them into equal shards, and give ``shards`` shards to each client.

    The samples that do not fill a shard, fewer than there are shards, go to no client.
    """
    size = len(labels) // (clients * shards)
    if size < 1:
        raise SettingError(
            f"{clients} clients x {shards} shards need at least {clients * shards} samples, "
            f"there are {len(labels)}: ask for fewer shards"
        )
    order = np.argsort(labels, kind="stable")
    shards_of = rng.permutation(clients * shards).reshape(clients, shards)
    return [np.concatenate([order[s * size : (s + 1) * size] for s in row]) for row in shards_of]
