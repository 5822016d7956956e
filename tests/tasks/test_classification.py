"""Classification: the cross-entropy, and labels within the classes."""

from __future__ import annotations

import pytest
import torch

from feddrm.tasks import CLASSIFICATION
from refusal import refused


def test_losses_and_answers() -> None:
    logits, labels = torch.tensor([[0.0, 0.0], [1.0, 3.0]]), torch.tensor([0, 1])
    assert CLASSIFICATION.losses(logits, labels).tolist() == pytest.approx([0.6931472, 0.1269280])
    assert torch.equal(CLASSIFICATION.answers(logits), logits.softmax(-1))
    assert torch.equal(CLASSIFICATION.class_of(labels), labels)


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_outside_the_classes(label: int) -> None:
    with refused(f"here has label {label}, outside the 2 classes"):
        CLASSIFICATION.check("here", torch.tensor([0, label]), ("a", "b"))
