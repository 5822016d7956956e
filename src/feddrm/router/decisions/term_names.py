"""The terms of an explanation: the column of a table, the feature or the stage that every number of a row is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddrm.router.features.base import INPUT
from feddrm.tables.column_kinds import plain_number
from feddrm.tables.table_schema import TableSchema


@dataclass(frozen=True, eq=False)
class TermNames:
    """The ``names`` of terms, and the number of the term to which every feature counts: ``places`` [d].

    The first ``columns`` of them are the raw columns of a table. A category's inputs and the indicator of a missing
    value count to their column.
    """

    names: tuple[str, ...]
    places: Tensor
    columns: int = 0
    schema: TableSchema | None = None

    @classmethod
    def of(
        cls,
        widths: Mapping[str, Mapping[str, int]],
        shape: tuple[int, ...],
        inputs: Sequence[str] | None,
        schema: TableSchema | None,
    ) -> TermNames:
        """From the widths of the parts of every feature, for samples of this shape, and the names of table inputs."""
        names, origins = [], []
        if len(shape) == 1 and any(INPUT in parts for parts in widths.values()):
            names = list(schema.names if schema is not None else inputs or (f"x{i}" for i in range(shape[0])))
            origins = list(range(shape[0])) if schema is None else _origins(schema)
        columns, places = len(names), []
        for feature, parts in widths.items():
            for part, width in parts.items():
                if columns and part == INPUT:
                    places += origins
                else:
                    names.append(feature if len(parts) == 1 else f"{feature} {part}")
                    places += [len(names) - 1] * width
        return cls(tuple(names), torch.tensor(places), columns, schema)

    def add_up(self, values: Tensor) -> Tensor:
        """The sums over the features [N, d] of every term [N, terms]."""
        return values.new_zeros(len(values), len(self.names)).index_add_(1, self.places.to(values.device), values)

    def values(self, inputs: Tensor) -> list[list[Any]]:
        """What the raw columns hold in network inputs, column by column; None where a value is missing."""
        if not self.columns:
            return []
        x = inputs.detach().cpu().double().numpy()
        return [list(map(plain_number, column)) for column in x.T] if self.schema is None else self.schema.decode(x)


def _origins(schema: TableSchema) -> list[int]:
    """The number of the raw column that every network input comes from."""
    origins = [0] * len(schema.encoded)
    for j, (_, own, mark) in enumerate(schema.places):
        for i in (*range(own.start, own.stop), *([] if mark is None else [mark])):
            origins[i] = j
    return origins
