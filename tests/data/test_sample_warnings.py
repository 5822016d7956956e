"""What makes figures of samples too good or senseless: copies, columns that name rows or clients, odd labels."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray

from feddrm.data import Federation, Split
from feddrm.data.sample_warnings import copies_warning
from feddrm.tables.table_schema import TableSchema

ROWS = 120

RNG = np.random.default_rng(0)


def federation(*shape: int, copied: int = 0) -> Federation:
    """Two clients of 70 training and 30 test samples; lima's last test samples may be some of oslo's training."""
    pairs = {}
    for name in ("oslo", "lima"):
        x = RNG.integers(0, 256, (100, *shape)) if len(shape) > 1 else RNG.normal(size=(100, *shape))
        pairs[name] = x, np.arange(100) % 2
    made = Federation.from_arrays(pairs)
    oslo, lima = made.clients
    kept = 30 - copied
    x, y = (
        torch.cat([lima.test.x[:kept], oslo.train.x[:copied]]),
        torch.cat([lima.test.y[:kept], oslo.train.y[:copied]]),
    )
    return replace(made, clients=(oslo, replace(lima, test=Split(x, y))))


@pytest.mark.parametrize("shape", [(5,), (6, 6)])
def test_copies_are_counted_over_all_clients_and_one_is_named(shape: tuple[int, ...]) -> None:
    assert copies_warning("own", federation(*shape).clients) is None
    warning = copies_warning("own", federation(*shape, copied=4).clients)
    assert warning is not None
    assert warning.startswith("own: 4 of 60 test samples are equal to training samples, such as test sample 26 of ")
    assert "client 'lima'" in warning
    assert len([text for text in federation(*shape, copied=4).warnings() if "4 of 60 test samples" in text]) == 1


def test_equal_samples_of_other_labels_are_no_copies() -> None:
    oslo, lima = federation(5, copied=4).clients
    assert copies_warning("own", (oslo, replace(lima, test=replace(lima.test, y=1 - lima.test.y)))) is None


def test_less_than_one_in_a_hundred_is_no_warning() -> None:
    fed = federation(5, copied=1)
    lima = fed.clients[1]
    many = torch.cat([lima.test.x, torch.randn(100, 5, generator=torch.Generator().manual_seed(0))])
    more = replace(lima, test=replace(lima.test, x=many, y=torch.zeros(len(many), dtype=torch.int64)))
    assert copies_warning("own", fed.clients) is not None
    assert copies_warning("own", (fed.clients[0], more)) is None


def test_rows_of_codes_are_equal_by_chance_and_pictures_are_not() -> None:
    codes = {name: (RNG.integers(0, 2, (100, 3)).astype(float), np.arange(100) % 2) for name in ("oslo", "lima")}
    assert copies_warning("own", Federation.from_arrays(codes).clients) is None
    twice = {
        name: (RNG.integers(0, 256, (50, 6, 6)).repeat(2, 0), np.arange(100) // 2 % 2) for name in ("oslo", "lima")
    }
    warning = copies_warning("own", Federation.from_arrays(twice).clients)
    assert warning is not None
    assert warning.startswith("own: ")


def tables(**columns: Callable[[int, NDArray[np.int64]], Any]) -> Federation:
    """Two clients with these columns: a function of the client's number and the rows' numbers, and an age."""
    frames = {}
    for client, name in enumerate(("oslo", "lima")):
        rng = np.random.default_rng(client)
        values = {column: make(client, np.arange(ROWS)) for column, make in columns.items()}
        frames[name] = pd.DataFrame({"age": rng.normal(50, 9, ROWS), **values, "label": np.arange(ROWS) % 2})
    return Federation.from_csv(frames, label="label", schema="auto")


def test_a_number_of_every_row_is_warned_of() -> None:
    (warning,) = tables(pid=lambda client, row: 10_000 * client + row).warnings()
    assert warning.startswith("own: 'pid': another whole number in every row of a client.")
    assert "leave it out (drop=['pid'])" in warning


def test_measurements_are_no_numbers_of_rows() -> None:
    assert tables(dose=lambda client, row: client / 2 + row + 0.25).warnings() == []
    assert tables(visits=lambda client, row: row // 2).warnings() == []
    fed = tables(pid=lambda client, row: 1000 * client + row)
    assert fed.schema is not None
    age, pid = fed.schema.columns
    declared = replace(fed, schema=TableSchema((age, replace(pid, minimum=0, maximum=9999))))
    assert declared.warnings() == []


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda client, row: np.where(row % 2, *(("m", "f"), ("Male", "Female"))[client]), "f, m"),
        (lambda client, row: np.full(len(row), 7 + client), "7"),
    ],
)
def test_values_that_no_other_client_has_are_warned_of(make: object, values: str) -> None:
    (warning,) = tables(sex=make).warnings()
    assert warning.startswith(f"own: column 'sex': no other client has the values of 'oslo' ({values}), so ")


def beside_few(few: int, column: Callable[[int, NDArray[np.int64]], Any]) -> list[str]:
    """Warnings of a column of three clients, of which the last has few rows."""
    frames = {}
    for client, (name, rows) in enumerate((("oslo", ROWS), ("lima", ROWS), ("nome", few))):
        x = np.random.default_rng(client).normal(50, 9, rows)
        frames[name] = pd.DataFrame({"age": x, "a": column(client, np.arange(rows)), "label": np.arange(rows) % 2})
    return Federation.from_csv(frames, label="label", schema="auto").warnings()


def test_a_client_of_few_rows_hides_no_warning_of_others() -> None:
    (warning,) = beside_few(4, lambda client, row: np.full(len(row), 7 + client))
    assert "column 'a': no other client has the values of 'oslo' (7)" in warning
    (warning,) = beside_few(4, lambda client, row: (6 + row % 3) * (18 if client == 1 else 1))
    assert "'a' is mostly 6 to 8 at 'oslo', 108 to 144 at others." in warning


def test_a_client_of_few_rows_may_have_its_own_values_by_chance() -> None:
    assert beside_few(4, lambda client, row: np.where(np.full(len(row), client == 2), "rare", "often")) == []
    assert beside_few(4, lambda client, row: 60 + row % 30 + 80 * (client == 2)) == []


def test_one_shared_value_is_no_name_of_a_client() -> None:
    assert tables(sex=lambda client, row: np.where((row % 2 == 0) & (client == 0), "m", "f")).warnings() == []
    assert tables(measured=lambda client, row: row % 2 * client).warnings() == []


def test_numbers_of_patients_with_several_visits_are_known_by_their_name() -> None:
    for name in ("patient", "Patient_ID", "visit no", "id"):
        (warning,) = tables(**{name: lambda client, row: row // 2}).warnings()
        assert warning.startswith(f"own: '{name}' is an input, though by its name it says whom a row is of: name it as")
    for name in ("patients", "inpatient", "paid", "patient_age"):
        assert tables(**{name: lambda client, row: row // 2}).warnings() == []


def test_codes_of_missing_values_are_warned_of_where_they_lie_apart() -> None:
    (warning,) = tables(chol=lambda client, row: np.where(row % 8 == 0, -99, 150 + row)).warnings()
    assert re.fullmatch(
        r"own: 'chol' is -99 in \d\d rows, and 151 to 269 in all others\. If this says that the value is missing, "
        r"empty these cells \(schema=auto allows gaps\): it would be taken for a measurement",
        warning,
    )
    (warning,) = tables(weeks=lambda client, row: np.where(row % 5 == 0, 999, row)).warnings()
    assert warning.startswith("own: 'weeks' is 999 in ")


@pytest.mark.parametrize(
    "make",
    [
        lambda client, row: row // 2 - 99,  # others are negative, too, and near
        lambda client, row: row % 100,  # 99 is one of many
        lambda client, row: np.where(row % 3 == 0, -1, row),  # no such code
        lambda client, row: np.where(row % 8 == 0, np.nan, 150 + row),  # gaps
    ],
)
def test_values_among_others_and_gaps_are_no_codes(make: Any) -> None:
    assert tables(chol=make).warnings() == []


def test_another_unit_at_some_clients_is_warned_of() -> None:
    frames = {}
    for client, name in enumerate(("oslo", "lima", "pune", "ghent")):
        rng = np.random.default_rng(client)
        glucose = rng.normal(6, 1, ROWS).clip(3) * (18 if name in ("lima", "pune") else 1)
        height = rng.normal(170, 9, ROWS) / (100 if name == "ghent" else 1)
        frames[name] = pd.DataFrame(
            {
                "glucose": glucose,
                "height": height,
                "age": rng.normal(50 + 9 * client, 6, ROWS),
                "label": np.arange(ROWS) % 2,
            }
        )
    (warning,) = Federation.from_csv(frames, label="label", schema="auto").warnings()
    assert re.fullmatch(
        r"own: 'glucose' is mostly [\d.]+ to [\d.]+ at 'oslo', 'ghent', [\d.]+ to 1\d\d at all others, 'height' is "
        r"mostly 1\.\d+ to 1\.\d+ at 'ghent', 15\d to 18\d at all others\. If units differ, convert them: .*",
        warning,
    ), warning


def test_measurements_of_any_sign_have_no_unit_to_be_known_by() -> None:
    assert tables(score=lambda client, row: 40 * client + row % 10 - 5).warnings() == []


def test_a_measurement_as_label_is_warned_of() -> None:
    x = RNG.normal(size=(200, 2))

    def labelled(labels: np.ndarray) -> list[str]:
        frame = pd.DataFrame(x, columns=["a", "b"]).assign(label=labels, client=np.arange(200) // 100)
        return Federation.from_csv(frame, label="label", client="client").warnings()

    (warning,) = labelled(np.array([0, 1, -99, 1])[np.arange(200) % 4])
    assert warning == "own: -99 is a class among -99, 0, 1: if it says that the label is missing, remove its rows"
    assert labelled(np.arange(200) % 10) == []
    (warning,) = labelled(np.arange(200) % 40 + 30)
    assert "the label has 40 different whole numbers, from 30 to 69, and each is a class" in warning
    assert (
        labelled(np.arange(200) % 40) == labelled(np.arange(200) % 40 + 1) == labelled(np.arange(200) % 20 + 30) == []
    )
