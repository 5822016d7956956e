"""Rows that cannot be: by schema, by pooled moments, and what becomes of the decision."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas
import pytest
import torch

from feddrm.router import Recipe, Router, load_router, save_router
from feddrm.router.artifact import MANIFEST
from feddrm.router.decisions.decision import DOWN, IMPOSSIBLE
from feddrm.router.solver.problem import Scaler
from feddrm.tables.column_kinds import CategoryColumn, NumberColumn
from feddrm.tables.table_schema import TableSchema
from refusal import refused

SCHEMA = TableSchema(
    (
        NumberColumn("age", unit="years", centre=50, scale=10, minimum=0, maximum=120),
        CategoryColumn("cp", categories={"a": "a", "b": "b", "c": "c"}),
        NumberColumn("dose", missing=True),
    )
)
#        age cp_a cp_b cp_c dose dose_missing
GOOD = [1.0, 0, 1, 0, 0.5, 0]
FAR = "more than 8 standard deviations from the mean of the training data"


@pytest.fixture
def table_router() -> Router:
    width = len(SCHEMA.encoded)
    scaler = Scaler(torch.zeros(width), torch.ones(width))
    return Router(
        ("oslo", "lima"), Recipe.parse("raw"), scaler, torch.zeros(2, width), torch.zeros(2), torch.zeros(2),
        shape=(width,), columns=SCHEMA.encoded, schema=SCHEMA, usual=scaler,
    )  # fmt: skip


def test_flags_are_by_sample_and_raw_column(table_router: Router) -> None:
    decision = table_router.route([GOOD, [-6.0, 1, 1, 0, 9, 0], GOOD])
    assert [[(flag.column, flag.value, flag.problem) for flag in flags] for flags in decision.flags] == [
        [],
        [("age", -10, "outside 0..120 years"), ("cp", "a and b", "several categories at once"), ("dose", 9, FAR)],
        [],
    ]
    assert decision.abstain.tolist() == [False, True, False]
    assert decision.reason == ("", IMPOSSIBLE, "")
    assert decision.client[1] >= 0


def test_no_flags_leave_the_decision_as_it_is(table_router: Router) -> None:
    assert table_router.route([GOOD]).flags == ()
    features = torch.tensor([[1e6] * 6])
    assert table_router.route_features(features).flags == ()  # features are not the inputs


def test_without_clients_this_remains_the_reason(table_router: Router) -> None:
    decision = table_router.route([[-60.0, *GOOD[1:]]], available=[])
    assert decision.reason == (DOWN,)
    assert decision.flags[0][0].column == "age"


def test_without_a_schema_the_pooled_moments_decide(table_router: Router) -> None:
    plain = dataclasses.replace(table_router, schema=None)
    decision = plain.route([GOOD, [9.0, 1, 1, 0, 0, 0]])
    assert [(flag.column, flag.value, flag.problem) for flag in decision.flags[1]] == [("age", 9, FAR)]
    assert decision.flags[0] == ()
    nameless = dataclasses.replace(plain, columns=None)
    assert nameless.route([[0.0, 0, 0, 0, -9, 0]]).flags[0][0].column == "x4"
    assert dataclasses.replace(plain, usual=None).route([[1e9] * 6]).flags == ()


def test_values_that_clients_filled_in_training_are_no_contradiction(table_router: Router) -> None:
    marked = [*GOOD[:5], 1.0]
    assert table_router.route([marked]).flags[0][0].problem == "it is marked as missing, but has a value"
    filled = dataclasses.replace(table_router, schema=SCHEMA.with_filled(True))
    assert filled.route([marked]).flags == ()


def test_an_artifact_carries_the_checks(table_router: Router, tmp_path: Path) -> None:
    save_router(tmp_path, table_router, notes={"columns": list(SCHEMA.encoded)})
    again = load_router(tmp_path)
    assert (again.schema, again.columns) == (SCHEMA, SCHEMA.encoded)
    bad = [[9.0, 0, 1, 0, 11, 0]]
    assert again.route(bad).flags == table_router.route(bad).flags
    path = tmp_path / MANIFEST
    text = path.read_text()
    path.write_text(text.replace('"scale": 10', '"scale": -10'))
    with refused("manifest.json is incomplete", "column 'age'", "scale above zero"):
        load_router(tmp_path)
    path.write_text(text.replace('"c": "c"', '"c": "c", "d": "d"'))
    with refused("a schema of 7 inputs, not (6,)"):
        load_router(tmp_path)


def test_an_older_artifact_has_no_checks(table_router: Router, tmp_path: Path) -> None:
    save_router(tmp_path, dataclasses.replace(table_router, schema=None, usual=None, columns=None))
    text = (tmp_path / MANIFEST).read_text()
    assert '"schema": null' in text
    (tmp_path / MANIFEST).write_text(text.replace(',\n    "schema": null', ""))
    again = load_router(tmp_path)
    assert (again.schema, again.row_checks) == (None, None)
    assert again.route([[1e9] * 6]).flags == ()


def test_a_data_frame_is_taken_by_the_names_of_its_columns(table_router: Router) -> None:
    raw = pandas.DataFrame({"dose": [0.5, None, 1.0], "cp": ["b", "a", "c"], "age": [60, 50, 200]})
    assert table_router.samples(raw).tolist() == [GOOD, [0, 1, 0, 0, 0, 1], [15, 0, 0, 1, 1, 0]]
    decision = table_router.route(raw)
    assert [[flag.column for flag in flags] for flags in decision.flags] == [[], [], ["age"]]
    encoded = pandas.DataFrame([GOOD], columns=SCHEMA.encoded)[list(reversed(SCHEMA.encoded))]
    assert table_router.samples(encoded).tolist() == [GOOD]
    plain = dataclasses.replace(table_router, schema=None)
    assert plain.samples(encoded).tolist() == [GOOD]
    with refused("the data frame has no column 'cp_b'", "add it"):
        plain.samples(encoded.drop(columns="cp_b"))
    with refused("column 'cp_b' of the data frame", "'yes'", "give numbers"):
        plain.route(encoded.assign(cp_b="yes"))
    with refused("the data frame has no column 'age'", "add it"):
        table_router.route(raw.drop(columns="age").head(1))
    with refused("column 'cp' is 'x'", "one of a, b, c"):
        table_router.route(raw.assign(cp="x").head(1))
