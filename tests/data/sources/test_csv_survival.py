"""CSV tables of survival: times and events in the place of a label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

from feddrm.data import Federation
from feddrm.tasks import Survival
from patients import write_followup
from refusal import refused


def test_times_and_events_are_the_labels_of_survival(tmp_path: Path) -> None:
    path = tmp_path / "followup.csv"
    write_followup(path)
    frame = pandas.read_csv(path)
    fed = Federation.from_csv(path, time="days", event="died", client="hospital", test=path, edges=[100, 300])
    assert (fed.task, fed.columns) == (Survival((100, 300)), ("age",))
    assert fed.settings["time"] == "days"
    for client in fed.clients:
        rows = frame[frame.hospital == client.name]
        assert client.train.y.tolist() == (2 * rows.days + rows.died).tolist()
    seen = frame.assign(died=frame.died == 1)
    split = Federation.from_csv(seen, time="days", event="died", client="hospital", intervals=3)
    pooled = torch.cat([client.train.y for client in split.clients])
    assert split.task == Survival.by_quantiles(pooled, 3)
    assert len(pooled) == sum(len(rows) * 7 // 10 for _, rows in frame.groupby("hospital"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"days": "1.5"}, "row 2: column 'days' is '1.5': give whole days from 0 up (of years, times 365)"),
        ({"days": "-1"}, "row 2: column 'days' is '-1': give whole days from 0 up"),
        ({"days": "1" * 30}, "give whole days from 0 up"),
        ({"died": "2"}, "row 2: column 'died' is '2': give 1 if the event was seen, else 0"),
        ({"died": ""}, "row 2: no value for the event"),
    ],
)
def test_times_and_events_that_cannot_be_are_refused(tmp_path: Path, columns: dict[str, str], message: str) -> None:
    row = {"age": "50", "days": "3", "died": "1", "hospital": "oslo"} | columns
    (tmp_path / "all.csv").write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    with refused(message):
        Federation.from_csv(tmp_path / "all.csv", time="days", event="died", client="hospital")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs to know which column to predict"),
        ({"time": "days"}, "needs to know which column to predict"),
        ({"label": "died", "time": "days", "event": "died"}, "needs to know which column to predict"),
        ({"label": "died", "edges": [3, 4]}, "intervals and edges are for survival"),
        ({"time": "days", "event": "died", "intervals": 1}, "intervals=1: give at least 2"),
        ({"time": "days", "event": "died", "intervals": 3, "edges": [3, 4]}, "intervals=3 and edges=[3, 4]: give one"),
        ({"time": "days", "event": "died", "edges": [3]}, "edges=[3]: give the last days"),
    ],
)
def test_an_outcome_is_a_label_or_a_time_with_its_event(options: dict[str, Any], message: str) -> None:
    with refused(message):
        Federation.from_csv("nowhere.csv", client="hospital", **options)
