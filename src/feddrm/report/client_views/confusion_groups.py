"""Groups of clients that a router confuses with each other, so that a thousand rows become twenty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
from scipy.linalg import eigh

from feddrm.report.accuracy_measures import rule_label
from feddrm.report.run_record import Confusion, Counts
from feddrm.report.tables import Table

GROUPS = 20
EXAMPLES = 3  # names in a row of the table


def group_clients(confusion: Confusion) -> list[list[int]]:
    """The numbers of the clients in each group; neighbours are confused with each other more than others.

    Spectral: clients that exchange samples by any rule have like coordinates in the leading eigenvectors of their
    exchange, which Ward's method joins to groups (von Luxburg, "A tutorial on spectral clustering", 2007).
    """
    counts = np.sum([np.asarray(one, dtype=np.float64) for one in confusion.values()], axis=0)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    exchange = share + share.T
    degree = np.sqrt(np.maximum(exchange.sum(1), 1e-12))
    ends = [max(0, len(counts) - GROUPS), len(counts) - 1]  # all vectors of a thousand clients take twice as long
    _, leading = eigh(exchange / degree[:, None] / degree, subset_by_index=ends)
    leading /= np.maximum(np.linalg.norm(leading, axis=1, keepdims=True), 1e-12)
    tree = linkage(leading, "ward")
    label = fcluster(tree, GROUPS, "maxclust")
    members: dict[int, list[int]] = {}
    for client in leaves_list(tree).tolist():
        members.setdefault(int(label[client]), []).append(client)
    return [sorted(group) for group in members.values()]


def grouped_confusion(confusion: Confusion, groups: Sequence[Sequence[int]]) -> dict[str, Counts]:
    """How many samples of each group's clients (row) are sent to each group's clients (column), by every rule."""
    return {
        rule: np.array([[counts[np.ix_(rows, columns)].sum() for columns in groups] for rows in groups])
        for rule, counts in confusion.items()
    }


def group_names(groups: Sequence[Sequence[int]]) -> list[str]:
    """The number of every group and of its clients."""
    return [f"{number} ({len(group):,})" for number, group in enumerate(groups, 1)]


def group_table(names: Sequence[str], confusion: Mapping[str, Counts], groups: Sequence[Sequence[int]]) -> Table:
    """One row per group: its clients, and of their samples the percent sent home and sent within the group."""
    rows = []
    for number, group in enumerate(groups, 1):
        some = ", ".join(names[client] for client in group[:EXAMPLES]) + (", ..." if len(group) > EXAMPLES else "")
        row: list[object] = [number, len(group), some]
        for counts in confusion.values():
            total = max(1, counts[list(group)].sum())
            home = counts[list(group), list(group)].sum()
            within = counts[np.ix_(group, group)].sum()
            row += [f"{100 * home / total:.1f}", f"{100 * within / total:.1f}"]
        rows.append(row)
    header = ["Group", "Clients", "Among them"]
    for rule in confusion:
        header += [f"Home, {rule_label(rule)}", f"Within, {rule_label(rule)}"]
    caption = "Groups of clients that the router confuses; percent of their samples sent home and within the group."
    return Table.of(header, rows, caption)
