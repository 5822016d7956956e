"""The floors of a site: how many samples a class and a sum must have at least before anything of them leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddrm.data import Client
from feddrm.deploy.rotating_log import log
from feddrm.errors import FeddrmError, SettingError
from feddrm.tables.column_sums import ColumnSums


@dataclass(frozen=True)
class Floors:
    """``per_sum``: samples of a sum. ``per_class``: samples of a class, and rows of a text. 1 is no floor.

    An error that leaves the site names the floor. How many samples there are stays in the site's log.
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

    def check_sum(self, samples: int, what: str) -> None:
        """Refuse a sum over too few samples. One over no sample says nothing, and is allowed."""
        if 0 < samples < self.per_sum:
            log.warning("%s: %d samples, the floor is %d", what, samples, self.per_sum)
            raise FeddrmError(self._refusal("per_sum", what))

    def check_classes(self, labels: Tensor, what: str) -> None:
        """Refuse sums in which a class with too few samples would show."""
        counts = torch.bincount(labels.cpu())
        if bool(((counts > 0) & (counts < self.per_class)).any()):
            log.warning("%s: %s samples by class, the floor is %d", what, counts.tolist(), self.per_class)
            raise FeddrmError(self._refusal("per_class", f"a class of {what}"))

    def check_client(self, client: Client, tested: bool) -> None:
        """Refuse to train on too few samples, or, if answers to test samples are counted, to count too few."""
        self.check_sum(len(client.train), "the training samples")
        self.check_classes(client.train.y, "the training samples")
        if tested:
            self.check_sum(len(client.test), "the test samples")

    def check_columns(self, sums: Mapping[str, ColumnSums], cells: Sequence[Sequence[Any]]) -> None:
        """Refuse sums of a column with too few numbers, and texts that too few rows have."""
        for (name, column), values in zip(sums.items(), zip(*cells, strict=True), strict=True):
            self.check_sum(column.count, f"column '{name}'")
            rows = Counter(map(str, values))
            if any(rows[text] < self.per_class for text in column.levels):
                log.warning("column '%s': fewer than %d rows have one of its texts", name, self.per_class)
                raise FeddrmError(self._refusal("per_class", f"a text of column '{name}'"))

    def pooled(self, counts: Tensor) -> Tensor:
        """Counts in bins, moved to lower bins until every bin that is not empty has enough samples for a sum."""
        out, waiting, last = torch.zeros_like(counts), 0, None
        for place in reversed(counts.nonzero().flatten().tolist()):
            waiting += int(counts[place])
            if waiting >= self.per_sum:
                out[place], waiting, last = waiting, 0, place
            elif place == int(counts.nonzero()[0]):  # too few are left: they take the group above with them
                out[place] = waiting + (int(out[last]) if last is not None else 0)
                if last is not None:
                    out[last] = 0
        return out

    def _refusal(self, name: str, what: str) -> str:
        return (
            f"{what}: fewer samples than the floor {name}={getattr(self, name)} of its site.yaml: no sum over them "
            "leaves this site: lower the floor there, or go on without this site"
        )
