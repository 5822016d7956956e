"""Groups of clients: those that a router confuses come together, and no sample is lost."""

from __future__ import annotations

import numpy as np

from feddrm.report.client_views.confusion_groups import group_clients, group_names, group_table, grouped_confusion


def planted(groups: int, size: int) -> tuple[dict[str, np.ndarray], list[set[int]]]:
    """Clients of a group exchange samples with each other and with nobody else; their numbers are mixed up."""
    rng = np.random.default_rng(0)
    order = rng.permutation(groups * size)
    members = [set(part.tolist()) for part in np.split(order, groups)]
    counts = np.zeros((groups * size, groups * size), dtype=np.int64)
    for group in members:
        some = sorted(group)
        counts[np.ix_(some, some)] = rng.integers(1, 4, (size, size))
    return {"head_density": counts}, members


def test_planted_groups_are_found() -> None:
    confusion, members = planted(20, 7)
    found = group_clients(confusion)
    assert sorted(map(sorted, members)) == sorted(found)


def test_a_thousand_clients_become_twenty_groups_and_every_sample_stays() -> None:
    rng = np.random.default_rng(1)
    confusion = {rule: rng.poisson(0.05, (1000, 1000)) + np.eye(1000, dtype=int) for rule in ("one", "other")}
    groups = group_clients(confusion)
    assert len(groups) <= 20
    assert sorted(client for group in groups for client in group) == list(range(1000))
    for rule, counts in grouped_confusion(confusion, groups).items():
        assert counts.sum() == confusion[rule].sum()


def test_the_table_has_sizes_names_and_shares() -> None:
    counts = np.array([[3, 1, 0], [1, 1, 2], [0, 0, 5]])
    table = group_table(["a", "b", "c"], {"head_density": counts}, [[0, 1], [2]])
    rows = [[cell.text for cell in row.cells] for row in table.rows]
    assert rows == [["1", "2", "a, b", "50.0", "75.0"], ["2", "1", "c", "100.0", "100.0"]]
    assert group_names([[0, 1], [2]]) == ["1 (2)", "2 (1)"]


def test_clients_without_samples_are_grouped_too() -> None:
    counts = np.zeros((40, 40), dtype=np.int64)
    counts[:20, :20] = 1
    assert sum(map(len, group_clients({"head_density": counts}))) == 40
