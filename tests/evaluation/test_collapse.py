"""Collapsed training: which share of the samples is concerned, and what the summary says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from feddrm.evaluation import Predictions, collapse_summary, collapsed_share


def predictions(answers: list[list[int]], labels: list[list[int]], classes: int = 3) -> Predictions:
    """Every client answers its own samples as given, and those of others with class 0."""
    total = sum(map(len, labels))
    origin = torch.tensor([i for i, own in enumerate(labels) for _ in own])
    choices: Tensor = torch.zeros(len(labels), total, dtype=torch.int64)
    for client, own in enumerate(answers):
        choices[client, origin == client] = torch.tensor(own)
    logits = torch.nn.functional.one_hot(choices, classes).double()
    return Predictions(logits, torch.tensor([label for own in labels for label in own]), origin)


@pytest.mark.parametrize(
    ("answers", "share"),
    [
        ([[0, 1, 2], [1, 2, 1, 2, 0, 0]], 0.0),
        ([[1, 1, 1], [1, 2, 1, 2, 0, 0]], 1 / 3),
        ([[0, 1, 2], [2, 2, 2, 2, 2, 2]], 2 / 3),
        ([[1, 1, 1], [2, 2, 2, 2, 2, 2]], 1.0),
    ],
)
def test_clients_that_give_one_answer_to_all_are_counted_by_their_samples(answers, share):
    assert collapsed_share(predictions(answers, [[0, 1, 2], [1, 2, 1, 2, 0, 0]])) == pytest.approx(share)


def test_one_answer_is_right_for_a_client_with_one_class():
    labels = [[1] * 6, [0, 1, 2]]
    assert collapsed_share(predictions([[1] * 6, [0, 1, 2]], labels)) == 0.0
    assert collapsed_share(predictions([[1] * 6, [0, 0, 0]], labels)) == 1.0
    assert collapsed_share(predictions([[1] * 6], [[1] * 6])) == 0.0


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([], {}),
        ([0.0, 0.2, 0.0], {}),
        ([1.0, 1.0, 0.0, 0.0], {}),
        ([1.0, 1.0, 1.0, 0.0], {"collapsed": {"rounds": 3, "of": 4, "at_end": False}}),
        ([0.0, 0.0, 0.5], {"collapsed": {"rounds": 1, "of": 3, "at_end": True}}),
        ([None, None], {}),
    ],
)
def test_the_summary_reports_a_collapse_that_lasts(shares, expected):
    """Lines of older runs have no share."""
    assert collapse_summary([{} if share is None else {"collapsed_share": share} for share in shares]) == expected
