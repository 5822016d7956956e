"""FedAS: alignment with the previous model, and weights by Fisher information."""

from __future__ import annotations

import pytest
import torch

from feddrm.engine import client_update
from feddrm.methods import FedAS, Phase, Sgd, Slots, Stage, Tensors
from feddrm.models import is_trunk

from .one_client import LR, NET, SGD, batches, close, leaves, slope, work


class AlignOnly(FedAS):
    """The alignment of a round without the training after it."""

    def phases(self, stage: Stage) -> tuple[Phase, ...]:
        return FedAS.phases(self, stage)[:1]


def test_alignment_trains_the_trunk_only():
    shared, private = FedAS().start(leaves(1))
    private = {**private, "prev": leaves(2)}
    upload, kept = work(AlignOnly(), shared, private, 10)
    for leaf, value in leaves(1).items():
        found = {**upload, **kept["model"]}[leaf]
        assert torch.equal(found, value) != is_trunk(leaf)
    before, after = (
        sum(
            float((NET({**leaves(1), **body}, b.x).features - NET(leaves(2), b.x).features).square().mean())
            for b in batches(2)
        )
        for body in (shared, upload)
    )
    assert after < before


def test_the_first_alignment_only_decays_the_trunk():
    shared, private = FedAS().start(leaves())
    upload, _ = work(AlignOnly(), shared, private, 5)  # a fifth of them: one step
    for leaf, value in shared.items():
        wanted = value * (1 - LR * SGD.weight_decay) if is_trunk(leaf) else value
        torch.testing.assert_close(upload[leaf], wanted, rtol=0, atol=1e-15)


def test_the_original_aligns_only_classes_that_were_measured():
    """A class that its few batches missed has no mean; taking zero for it would pull its features to nothing."""
    method = FedAS(variant="original")
    shared, private = method.start(leaves(1))
    private = {**private, "prev": leaves(2)}
    measured, alignment = batches(1, seed=0), batches(1, seed=1)
    measured = [b._replace(y=b.y % 2) for b in measured]  # nothing of class 2
    assert (alignment[0].y == 2).any()

    class Short(FedAS):
        def phases(self, stage: Stage) -> tuple:
            return FedAS.phases(self, stage)[:2]

        def finish(self, slots: Slots, stage: Stage) -> tuple[Tensors, Slots]:
            return slots["model"], {}

    lists = [measured, alignment]
    upload = client_update(Short("original"), NET, shared, private, lists, Stage(5), Sgd(0.0, 0.01, LR)).upload
    model = {leaf: value.clone().requires_grad_() for leaf, value in leaves(1).items()}
    before = NET(leaves(2), measured[0].x).features
    features, y = NET(model, alignment[0].x).features, alignment[0].y
    loss = sum(
        (x - before[measured[0].y == k].mean(0)).square().mean() / len(y)
        for x, k in zip(features, y, strict=True)
        if k != 2
    )
    loss.backward()
    for leaf, value in leaves(1).items():
        wanted = value - LR * (model[leaf].grad + 0.01 * value) if is_trunk(leaf) else value  # the trunk alone
        torch.testing.assert_close(upload[leaf], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("steps", "align"), [(2, 1), (4, 1), (5, 1), (9, 1), (10, 2), (25, 5)])
def test_a_fifth_of_the_steps_and_at_least_one_aligns(steps, align):
    assert [phase.steps for phase in FedAS().phases(Stage(steps))] == [align, steps - align]


def test_the_trained_model_is_the_next_rounds_previous_model():
    shared, private = FedAS().start(leaves())
    upload, kept = work(FedAS(), shared, private, 5)
    close(kept["prev"], {**upload, **kept["model"]}, atol=0)


def test_the_original_weights_clients_by_fisher_information():
    method, weights = FedAS(variant="original"), torch.tensor([0.5, 0.5], dtype=torch.float64)

    def upload(value: float, fisher: float) -> Tensors:
        return {"trunk.w": torch.full((2,), value, dtype=torch.float64), "fisher": torch.tensor(fisher).double()}

    shared = {"trunk.w": torch.zeros(2).double()}
    mixed = method.aggregate(shared, [upload(1.0, 3.0), upload(5.0, 1.0)], weights)
    close(mixed, {"trunk.w": torch.full((2,), 2.0, dtype=torch.float64)})
    # All clients fit perfectly: sample counts decide, and the model is not wiped out.
    still = method.aggregate(shared, [upload(1.0, 0.0), upload(5.0, 0.0)], weights)
    close(still, {"trunk.w": torch.full((2,), 3.0, dtype=torch.float64)})


def test_the_fisher_trace_is_the_squared_gradient():
    method = FedAS(variant="original")
    shared, private = method.start(leaves())
    upload, kept = work(method, shared, private, 5)
    gradient = slope({**upload_leaves(upload), **kept["model"]}, batches(1, seed=3)[0])
    wanted = sum(g.square().sum() for g in gradient.values())
    torch.testing.assert_close(upload["fisher"], wanted, rtol=1e-12, atol=0)


def upload_leaves(upload: Tensors) -> Tensors:
    return {leaf: value for leaf, value in upload.items() if leaf != "fisher"}
