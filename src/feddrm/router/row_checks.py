"""Rows that cannot be: contradictory or far-off values among the network inputs of a table, named by column.

Nothing is recorded for these checks that shows a single sample: ranges are those that the schema declares, and means
and deviations are pooled over all clients' training samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from feddrm.errors import FieldProblem
from feddrm.router.solver.problem import Scaler
from feddrm.tables.column_kinds import FAR, Usual
from feddrm.tables.table_schema import TableSchema


class RowChecks:
    """What a router knows of a table: its schema, the names of its inputs, their pooled means and deviations."""

    def __init__(self, schema: TableSchema | None, columns: Sequence[str] | None, usual: Scaler | None) -> None:
        self.schema, self.columns = schema, columns
        self.usual = None if usual is None else list(map(Usual, usual.mean.tolist(), usual.scale.tolist()))

    def __call__(self, inputs: Tensor) -> list[FieldProblem]:
        """The cells of network inputs [n, columns] that cannot be, by raw column where there is a schema."""
        x = inputs.detach().cpu().double().numpy()
        if self.schema is not None:
            return self.schema.problems(x, self.usual)
        if self.usual is None:
            return []
        means, deviations = np.array(self.usual).T
        suspects = (np.abs(x - means) > FAR * deviations).any(axis=0)  # few of perhaps thousands of columns
        found = [
            FieldProblem(row, self.columns[i] if self.columns else f"x{i}", float(f"{x[row, i]:.6g}"), problem)
            for i in np.flatnonzero(suspects).tolist()
            for row, problem in self.usual[i].flags(x[:, i])
        ]
        return sorted(found, key=lambda problem: problem.row)
