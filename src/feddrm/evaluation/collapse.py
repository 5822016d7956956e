"""Signs that training has collapsed: a network whose answer no longer depends on the query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from feddrm.evaluation.answers_by_sample import AnswersBySample
from feddrm.evaluation.predictions import Predictions

SAME_ANSWER = 0.99  # of a client's queries get one class: its model ignores the query
LASTING = 3  # evaluated rounds after which a collapse is worth a warning: sound networks may begin with one answer
ONE_CLASS = 0.9  # of a client's samples are of one class: one answer to all would then be nearly right


def collapsed_share(predictions: Predictions | AnswersBySample) -> float:
    """The share of test samples whose own client gives one answer to nearly all queries, though it has several classes.

    Samples of clients that hold nearly one class do not count, neither as collapsed nor as sound.
    """
    outcomes = AnswersBySample.of(predictions)
    clients, classes, origin = outcomes.clients, outcomes.votes.shape[1], outcomes.origin

    def largest_share(classes_of_samples: Tensor) -> Tensor:
        counts = torch.bincount(origin * classes + classes_of_samples, minlength=clients * classes)
        counts = counts.view(clients, classes).double()
        return counts.amax(1) / counts.sum(1).clamp(min=1)

    several = largest_share(outcomes.labels) < ONE_CLASS
    constant = largest_share(outcomes.answers["own"].argmax(-1)) >= SAME_ANSWER
    samples = torch.bincount(origin, minlength=clients).double()
    total = samples[several].sum()
    return float(samples[several & constant].sum() / total) if bool(total > 0) else 0.0


def is_collapsed(metrics: Mapping[str, Any]) -> bool:
    """Whether half of the samples, or more, belong to collapsed clients in this evaluated round."""
    return bool(metrics.get("collapsed_share", 0.0) >= 0.5)


def collapse_summary(evaluated: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What ``summary.json`` says of a collapse: in how many of the evaluated rounds, and whether it lasted to the end.

    Empty if there was none, or only for a few rounds before the last.
    """
    collapsed = [is_collapsed(metrics) for metrics in evaluated]
    if sum(collapsed) < LASTING and not any(collapsed[-1:]):
        return {}
    return {"collapsed": {"rounds": sum(collapsed), "of": len(collapsed), "at_end": collapsed[-1]}}
