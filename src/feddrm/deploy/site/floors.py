"""The floors of a site: how many samples a class and a sum must have at least before anything of them leaves.

Samples of one subject count as one: a sum over ten visits of one patient tells of that patient.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feddrm.data import Client
from feddrm.data.sources.table_rows import RawRows
from feddrm.deploy.rotating_log import log
from feddrm.errors import FeddrmError, SettingError
from feddrm.tables.column_kinds import is_missing
from feddrm.tables.column_sums import ColumnSums


@dataclass(frozen=True)
class Floors:
    """``per_sum``: samples of a sum. ``per_class``: samples of a class, and rows of a text. 1 is no floor.

    Whatever is counted, a subject counts once. An error that leaves the site names the floor. How many there are
    stays in the site's log.
    """

    per_class: int = 1
    per_sum: int = 1

    def check(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SettingError(f"{name}={value!r}: give a number of samples, 1 or more")

    @property
    def is_set(self) -> bool:
        return self != Floors()

    def check_sum(self, subjects: int, what: str) -> None:
        """Refuse a sum over samples of too few subjects. One over no sample says nothing, and is allowed."""
        if 0 < subjects < self.per_sum:
            log.warning("%s: %d (a subject counts once), the floor is %d", what, subjects, self.per_sum)
            raise FeddrmError(self._refusal("per_sum", what))

    def check_classes(self, labels: Tensor, subject: Tensor, what: str) -> None:
        """Refuse sums in which a class with samples of too few subjects would show."""
        different = torch.unique(torch.stack([labels.cpu(), subject.cpu()]), dim=1)
        counts = torch.bincount(different[0])
        if bool(((counts > 0) & (counts < self.per_class)).any()):
            log.warning(
                "%s: %s by class (a subject counts once), the floor is %d", what, counts.tolist(), self.per_class
            )
            raise FeddrmError(self._refusal("per_class", f"a class of {what}"))

    def check_client(self, client: Client, tested: bool) -> None:
        """Refuse to train on too few samples, or, if answers to test samples are counted, to count too few."""
        self.check_sum(client.train.subjects, "the training samples")
        self.check_classes(client.train.y, client.train.subject_of_sample, "the training samples")
        if tested:
            self.check_sum(client.test.subjects, "the test samples")

    def check_columns(self, sums: Mapping[str, ColumnSums], rows: RawRows, counted: Sequence[bool]) -> None:
        """Refuse sums of a column with too few numbers in the ``counted`` rows, and texts that too few rows have."""
        if not self.is_set:
            return
        subjects: Sequence[Hashable] = rows.subjects or range(len(rows.cells))
        for (name, column), cells in zip(sums.items(), zip(*rows.cells, strict=True), strict=True):
            having: dict[str, set[Hashable]] = {text: set() for text in column.levels}
            numbers: set[Hashable] = set()
            for cell, subject, used in zip(cells, subjects, counted, strict=True):
                if column.levels:
                    having.get(str(cell), set()).add(subject)
                elif used and not is_missing(cell):
                    numbers.add(subject)
            self.check_sum(len(numbers), f"column '{name}'")
            if any(len(some) < self.per_class for some in having.values()):
                log.warning("column '%s': fewer than %d rows have one of its texts", name, self.per_class)
                raise FeddrmError(self._refusal("per_class", f"a text of column '{name}'"))

    def pooled(self, place: Tensor, subject: Tensor, counts: Tensor, bins: int) -> Tensor:
        """The sum of the samples' ``counts`` by place, in lower bins until each has samples of enough subjects."""
        groups: list[tuple[int, Tensor]] = []  # rows, from above; only the last group may have too few
        for bin_ in torch.unique(place).flip(0).tolist():
            own = (place == bin_).nonzero()[:, 0]
            if groups and self._too_few(subject[groups[-1][1]]):
                own = torch.cat([groups.pop()[1], own])
            groups.append((bin_, own))
        if len(groups) > 1 and self._too_few(subject[groups[-1][1]]):
            (bin_, own), (_, above) = groups.pop(), groups.pop()
            groups.append((bin_, torch.cat([above, own])))
        out = counts.new_zeros(bins)
        for bin_, own in groups:
            out[bin_] = counts[own].sum()
        return out

    def _too_few(self, subject: Tensor) -> bool:
        return len(torch.unique(subject)) < self.per_sum

    def _refusal(self, name: str, what: str) -> str:
        return (
            f"{what}: fewer samples (a subject counts once) than the floor {name}={getattr(self, name)} of its "
            "site.yaml: no sum over them leaves this site: lower the floor there, or go on without this site"
        )
