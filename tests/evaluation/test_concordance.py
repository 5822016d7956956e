"""The C-index: by hand, against lifelines, and under the names of the summary."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from feddrm.errors import DivergedError
from feddrm.evaluation import Predictions, average_c_index, c_index, concordance, evaluate, per_client
from feddrm.tasks import Survival
from refusal import refused

pytest.importorskip("lifelines")
from lifelines.utils import concordance_index

TASK = Survival((2, 5, 9))
WEIGHTS = torch.tensor([3.0, 1.0], dtype=torch.float64)


def labels_of(days: list[int], event: list[int]) -> Tensor:
    return Survival.labels(torch.tensor(days), torch.tensor(event))


def test_by_hand() -> None:
    days, event = [1, 2, 3], [1, 1, 0]
    assert c_index(torch.tensor([3.0, 2.0, 1.0]), labels_of(days, event)) == 1.0
    assert c_index(torch.tensor([1.0, 2.0, 3.0]), labels_of(days, event)) == 0.0
    assert c_index(torch.tensor([2.0, 2.0, 1.0]), labels_of(days, event)) == pytest.approx(2.5 / 3)
    assert c_index(torch.tensor([1.0, 2.0]), labels_of([4, 4], [1, 0])) == 0.0  # the event comes before the censoring
    assert c_index(torch.tensor([1.0, 2.0]), labels_of([4, 4], [1, 1])) is None  # two events of one day
    assert c_index(torch.tensor([1.0, 2.0]), labels_of([4, 5], [0, 0])) is None


def test_risks_that_are_nan_are_refused_as_lifelines_does() -> None:
    days, event, risk = [1, 2, 3], [1, 1, 0], torch.tensor([float("nan"), 2.0, float("nan")])
    with refused("2 of 3 risks are NaN", "lower --lr") as error:  # it was 0.0
        c_index(risk, labels_of(days, event))
    assert isinstance(error.value, DivergedError)  # so a search leaves out the trial
    with pytest.raises(ValueError, match="NaN"):
        concordance_index(days, -risk.numpy(), event)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1), st.integers(0, 4)), min_size=2, max_size=40),
    st.sampled_from([7, 2**24]),
)
def test_equals_lifelines_with_ties_and_censoring(patients: list[tuple[int, int, int]], pairs: int) -> None:
    days, event, risk = (np.array(column) for column in zip(*patients, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(concordance, "PAIRS", pairs)
        ours = c_index(torch.tensor(risk), labels_of(days.tolist(), event.tolist()))
    if ours is None:
        with pytest.raises(ZeroDivisionError):
            concordance_index(days, -risk, event)
    else:
        assert ours == pytest.approx(concordance_index(days, -risk, event), abs=1e-12)


def test_the_average_leaves_out_clients_without_a_pair() -> None:
    assert average_c_index([0.5, None], WEIGHTS) == 0.5
    assert average_c_index([0.5, 0.9], WEIGHTS) == pytest.approx(0.6)
    assert average_c_index([None, None], WEIGHTS) is None


@pytest.fixture
def predictions() -> Predictions:
    """Two clients with four patients each. The first model orders all patients, the second the other way round."""
    days, event = [1, 3, 6, 8] * 2, [1, 1, 1, 0] * 2
    order = torch.arange(8, dtype=torch.float64).fmod(4)[:, None].expand(8, 3)
    client_logits = torch.tensor([[5.0, 0.0]] * 6 + [[0.0, 5.0]] * 2)
    origin = torch.tensor([0] * 4 + [1] * 4)
    return Predictions(torch.stack([-order, order]), labels_of(days, event), origin, client_logits, -order, TASK)


def test_the_figures_of_a_round(predictions: Predictions) -> None:
    figures = evaluate(predictions, WEIGHTS)
    assert figures.keys() == {
        "average_c_index", "oracle_c_index", "global_c_index", "system_c_index", "client_accuracy"
    }  # fmt: skip
    assert figures["average_c_index"] == 0.75  # 1 at three quarters of the weight, 0 at the rest
    assert figures["global_c_index"] == figures["system_c_index"]["global"] == 1.0
    assert figures["client_accuracy"]["head_posterior"] == pytest.approx(0.875)
    own = TASK.risk(TASK.answers(torch.cat([predictions.logits[0, :4], predictions.logits[1, 4:]])))
    days, event = predictions.labels // 2, predictions.labels % 2
    assert figures["oracle_c_index"] == pytest.approx(concordance_index(days.numpy(), -own.numpy(), event.numpy()))
    assert figures["system_c_index"].keys() == {"global", "averaged", "head_density", "head_posterior"}
    assert 0.5 < figures["system_c_index"]["head_posterior"] < 1


def test_one_row_per_client(predictions: Predictions) -> None:
    predictions.labels[7] += 1  # the second client's last patient has an event, too
    first, second = per_client(predictions, ["a", "b"], WEIGHTS)
    assert (first["own"], second["own"]) == (1.0, 0.0)
    assert (first["test"], first["events"], second["test"], second["events"]) == (4, 3, 4, 4)
    assert (first["recall_posterior"], second["recall_posterior"]) == (1.0, 0.5)
    assert "vote" not in first
