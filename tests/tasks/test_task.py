"""The interface of tasks: they are found by name, and made again from plain values."""

from __future__ import annotations

import json

import pytest
import torch

from feddrm.tasks import CLASSIFICATION, Survival, Task, require_classes
from refusal import refused


@pytest.mark.parametrize("task", [CLASSIFICATION, Survival((3, 7))])
def test_plain_values_make_the_same_task(task: Task) -> None:
    assert Task.of(json.loads(json.dumps(task.as_dict()))) == task


def test_outputs_pass_through_vmap_with_their_task() -> None:
    task = Survival((3, 7))
    doubled, same = torch.vmap(lambda x: (2 * x, task))(torch.arange(3))
    assert doubled.tolist() == [0, 2, 4]
    assert same == task


def test_what_needs_classes_is_refused_for_another_task() -> None:
    require_classes(CLASSIFICATION, "a label set", "leave it out")
    with refused("a label set needs classes, and the task of these data is survival: leave it out"):
        require_classes(Survival((3, 7)), "a label set", "leave it out")
