"""The views of a run's clients: a row each for few, the edges and a searchable table for many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from feddrm.data import Federation
from feddrm.report.client_views.client_section import client_views, routing_views
from feddrm.report.run_record import RunRecord

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("clients", "many"), [(30, False), (31, True)])
def test_up_to_thirty_clients_have_a_row_each(clients: int, many: bool, make_run: Callable[..., Path]) -> None:
    rng = np.random.default_rng(0)
    made = {f"site-{i}": (rng.normal(size=(8, 3)), np.arange(8) % 2) for i in range(clients)}
    record = RunRecord.read(make_run("some", federation=Federation.from_arrays(made)))
    figures, tables, searchable = client_views(record, "r1")
    assert len(figures) == 1
    routed, groups, _ = routing_views(record, "r1")
    assert len(routed) == 1
    if many:
        assert [len(table.rows) for table in tables] == [10, 10]
        assert searchable is not None
        assert len(searchable.rows) == clients
        assert len(groups) == 1
        assert len(groups[0].rows) == 20
    else:
        assert [len(table.rows) for table in tables] == [clients]
        assert searchable is None
        assert groups == []
