"""Partitions: equal to FedLab's, every sample goes to one client, impossible divisions are refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddrm.data.datasets.cifar import HUNDRED, TEN, read_pool
from feddrm.data.partition import partition, split, split_rows
from feddrm.errors import FeddrmError
from refusal import refused

CLASSES = {"cifar10": 10, "cifar20": 100, "cifar100": 100}


def entries(golden: Path) -> dict[str, dict[str, Any]]:
    found = json.loads((golden / "partitions.json").read_text())
    assert found
    return found


def divide(labels: np.ndarray, entry: dict[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    return partition(
        labels,
        clients=entry["clients"],
        kind=entry["kind"],
        alpha=float(entry["arg"]),
        shards=int(entry["arg"]),
        seed=entry["seed"],
    )


def short_sha(indices: np.ndarray) -> str:
    return hashlib.sha256(np.sort(indices).astype(np.int64).tobytes()).hexdigest()[:16]


@pytest.mark.golden
def test_sizes_equal_the_reference_whatever_the_label_order(golden: Path) -> None:
    """Only class sizes drive the generator, so made labels of the right sizes give the right client sizes."""
    for name, entry in entries(golden).items():
        classes = CLASSES[entry["dataset"]]
        labels = np.random.default_rng(1).permutation(np.repeat(np.arange(classes), 60_000 // classes))
        parts = divide(labels, entry)
        assert [len(train) for train, _ in parts] == entry["train"], name
        assert [len(test) for _, test in parts] == entry["test"], name


def labels_of(folder: Path, name: str, column: str) -> np.ndarray:
    """The labels of packed files without their 60,000 images, which test_cifar.py reads and verifies."""
    if not (folder / f"{name}_0.npz").exists():
        pool = read_pool(TEN if name == "cifar10" else HUNDRED, data_dir=str(folder), download=False)
        labels = pool.coarse if column == "coarse" else pool.fine
        assert labels is not None
        return labels
    parts = []
    for part in (0, 1):
        with np.load(folder / f"{name}_{part}.npz", allow_pickle=False) as file:
            parts.append(file[column].astype(np.int64))
    return np.concatenate(parts)


@pytest.mark.golden
@pytest.mark.data
def test_indices_equal_the_reference_on_real_labels(golden: Path, real_data: Path) -> None:
    ten, fine, coarse = (
        labels_of(real_data, *column) for column in (("cifar10", "y"), ("cifar100", "fine"), ("cifar100", "coarse"))
    )
    labels = {"cifar10": (ten, ten), "cifar20": (fine, coarse), "cifar100": (fine, fine)}  # divided by, and shown
    for name, entry in entries(golden).items():
        divided, shown = labels[entry["dataset"]]
        parts = divide(divided, entry)
        assert [short_sha(train) for train, _ in parts] == entry["train_sha"], name
        assert [short_sha(test) for _, test in parts] == entry["test_sha"], name
        first = np.concatenate(parts[0])
        counts = np.bincount(shown[first], minlength=len(entry["class_counts_first_client"]))
        assert counts.tolist() == entry["class_counts_first_client"], name


@given(
    labels=st.lists(st.integers(0, 4), min_size=60, max_size=200),
    clients=st.integers(2, 5),
    kind=st.sampled_from(["iid", "dirichlet", "shards"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_sample_goes_to_one_place(labels: list[int], clients: int, kind: str, seed: int) -> None:
    y = np.array(labels)
    parts = partition(y, clients=clients, kind=kind, alpha=1.0, shards=3, seed=seed)
    together = np.concatenate([np.concatenate(p) for p in parts])
    assert len(set(together.tolist())) == len(together)
    if kind == "shards":  # equal shards: at most a remainder is left over
        assert len(together) == len(y) // (3 * clients) * 3 * clients
    else:
        assert sorted(together.tolist()) == list(range(len(y)))
    for train, test in parts:
        assert len(train) == int(0.7 * (len(train) + len(test)))
    again = partition(y, clients=clients, kind=kind, alpha=1.0, shards=3, seed=seed)
    assert all(np.array_equal(a[k], b[k]) for a, b in zip(parts, again, strict=True) for k in (0, 1))


def test_shards_hold_few_classes() -> None:
    labels = np.repeat(np.arange(10), 100)
    parts = partition(labels, clients=5, kind="shards", alpha=1.0, shards=2, seed=3)
    assert all(len(np.unique(labels[np.concatenate(p)])) <= 2 for p in parts)


def test_small_alpha_is_more_skewed_than_large() -> None:
    labels = np.repeat(np.arange(10), 500)

    def largest_share(alpha: float) -> float:
        parts = partition(labels, clients=5, kind="dirichlet", alpha=alpha, shards=1, seed=0)
        return float(np.mean([np.bincount(labels[np.concatenate(p)]).max() / sum(map(len, p)) for p in parts]))

    assert largest_share(0.1) > 0.4 > 0.15 > largest_share(100.0)


@pytest.mark.parametrize(
    ("kind", "clients", "alpha", "shards", "says"),
    [
        ("shards", 5, 1.0, 50, "5 clients x 50 shards need at least 250 samples, there are 100"),
        ("dirichlet", 40, 1e-6, 1, "use --partition iid or shards, fewer clients, or a larger alpha"),
        ("iid", 60, 1.0, 1, "60 clients cannot share 100 samples"),
        ("dirichlett", 2, 1.0, 1, "unknown partition 'dirichlett'"),
    ],
)
def test_impossible_divisions_are_refused(kind: str, clients: int, alpha: float, shards: int, says: str) -> None:
    labels = np.repeat(np.arange(2), 50)
    with pytest.raises(FeddrmError, match=says):
        partition(labels, clients=clients, kind=kind, alpha=alpha, shards=shards, seed=0)


def test_an_impossible_division_is_refused_before_the_first_draw() -> None:
    labels = np.repeat(np.arange(10), 20)
    parts = partition(labels, clients=20, kind="dirichlet", alpha=1e300, shards=1, seed=0)
    assert [len(train) + len(test) for train, test in parts] == [10] * 20
    with refused("every client at least 10 samples", "200 samples are too few for 21 clients", "--partition iid or"):
        partition(labels, clients=21, kind="dirichlet", alpha=1e300, shards=1, seed=0)


def test_samples_that_do_not_fill_a_shard_go_to_no_client() -> None:
    labels = np.repeat(np.arange(3), 10)
    parts = partition(labels, clients=4, kind="shards", alpha=1.0, shards=2, seed=0)
    dealt = sorted(np.concatenate([np.concatenate(p) for p in parts]).tolist())
    assert dealt == list(range(24))  # 8 shards of 3, in the order of the labels; 6 samples are left over


@pytest.mark.parametrize("seed", [0, 2, 4, 7, 8, 9, 10, 12])
def test_a_client_with_its_share_gets_no_more_and_none_gets_less_than_the_least(seed: int) -> None:
    """A tiny alpha gives whole classes away: two of four fill a client (with these seeds), no third goes in."""
    parts = partition(np.repeat(np.arange(4), 5), clients=2, kind="dirichlet", alpha=1e-3, shards=1, seed=seed)
    assert [len(train) + len(test) for train, test in parts] == [10, 10]
    parts = partition(np.repeat(np.arange(5), 12), clients=5, kind="dirichlet", alpha=0.3, shards=1, seed=seed)
    assert min(len(train) + len(test) for train, test in parts) >= 5


def test_no_class_is_lost_where_only_full_clients_would_take_it() -> None:
    labels = np.repeat(np.arange(6), 6)
    for seed in range(30):
        parts = partition(labels, clients=3, kind="dirichlet", alpha=1e-3, shards=1, seed=seed)
        assert sum(len(train) + len(test) for train, test in parts) == 36


@pytest.mark.parametrize("kind", ["iid", "shards"])
def test_more_clients_than_a_dirichlet_division_allows_can_divide_otherwise(kind: str) -> None:
    """The digits among 200 clients, as the refusal advises."""
    labels = np.arange(1797) % 10
    with refused("1797 samples are too few for 200 clients", kind):
        partition(labels, clients=200, kind="dirichlet", alpha=0.3, shards=2, seed=0)
    parts = partition(labels, clients=200, kind=kind, alpha=0.3, shards=2, seed=0)
    assert min(min(len(train), len(test)) for train, test in parts) >= 2


@given(
    subject=st.lists(st.integers(0, 12), min_size=2, max_size=60),
    train=st.sampled_from([0.5, 0.7, 0.9]),
    seed=st.integers(0, 9),
)
def test_all_rows_of_a_subject_are_on_one_side(subject: list[int], train: float, seed: int) -> None:
    own = np.array(subject)
    first, rest = split_rows(len(own), np.random.RandomState(seed), train, own)
    assert sorted([*first.tolist(), *rest.tolist()]) == list(range(len(own)))
    assert not set(own[first]) & set(own[rest])
    assert len(first)
    assert len(rest) or len(set(subject)) == 1


def test_whole_subjects_come_as_close_to_the_fraction_as_they_can() -> None:
    own = np.repeat([3, 1, 7, 5], [6, 2, 1, 1])  # ten rows
    sizes = {seed: len(split_rows(10, np.random.RandomState(seed), 0.7, own)[0]) for seed in range(40)}
    for seed, size in sizes.items():
        held = np.array([2, 6, 1, 1])[np.random.RandomState(seed).permutation(4)].cumsum()[:3]  # by number 1, 3, 5, 7
        assert abs(size - 7) == np.abs(held - 7).min(), seed
    assert 7 in sizes.values()


def test_rows_without_subjects_are_split_as_ever() -> None:
    ours, theirs = split_rows(20, np.random.RandomState(3), 0.7), split([np.arange(20)], np.random.RandomState(3))[0]
    assert [part.tolist() for part in ours] == [part.tolist() for part in theirs]
