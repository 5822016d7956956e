"""A cohort whose samples are all in this process."""

from __future__ import annotations

import torch

from feddrm.data import Federation, RandomResizedCrop, load
from feddrm.router import Recipe, RouterSettings
from feddrm.router.fit.cohort import FitRequest, Trunk
from feddrm.router.fit.local_cohort import LocalCohort, facts_of, target_of, training_view
from feddrm.router.settings import Holdout
from feddrm.router.solver.problem import Problem

RAW = Recipe.parse("raw")


def rows(**sizes: int) -> Federation:
    g = torch.Generator().manual_seed(0)
    made = {name: (torch.randn(size, 4, generator=g), torch.arange(size) % 3) for name, size in sizes.items()}
    return Federation.from_arrays(made, test=made)


def test_facts_are_what_a_server_may_know() -> None:
    facts = facts_of(rows(oslo=30, lima=20))
    assert facts.names == ("oslo", "lima")
    assert facts.sizes == (30, 20)
    torch.testing.assert_close(facts.log_prior.exp(), torch.tensor([0.6, 0.4], dtype=torch.float64))
    assert not facts.own_scales


def test_every_copy_of_a_sample_has_its_own_crop() -> None:
    client = load("digits", clients=3, seed=0).clients[1]
    crop = RandomResizedCrop()
    first, again, other = (training_view(client, 1, crop, seed=5, copy=copy) for copy in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, training_view(client, 2, crop, seed=5)), "clients draw apart"


def test_targets_are_clients_classes_or_pairs() -> None:
    y = torch.tensor([0, 2, 1])
    assert target_of("client", 1, y, 3).tolist() == [1, 1, 1]
    assert target_of("class", 1, y, 3).tolist() == [0, 2, 1]
    assert target_of("pair", 1, y, 3).tolist() == [3, 5, 4]


def test_a_fold_and_the_rest_are_all_samples() -> None:
    cohort = LocalCohort(rows(oslo=30, lima=20), RouterSettings())
    cohort.measure(RAW, Trunk(None, {}), Holdout(4, 2))
    design = cohort.design(RAW)
    for fold in (0, 1):
        parts = [cohort.each(design, fold, inside) for inside in (False, True)]
        assert [len(a) + len(b) for a, b in zip(*parts, strict=True)] == [30, 20]
    request = FitRequest(design, "client", Problem(2, 4, 1e-2), 1)
    point = torch.zeros(2, 5, dtype=torch.float64)
    seen, held = (
        float(sums["count"])
        for sums in (
            cohort.gradients({"fit": request}, {"fit": point})["fit"][0],
            cohort.scores({"fit": request}, {"fit": point})["fit"],
        )
    )
    assert seen + held == 50


def test_samples_that_no_fold_held_out_have_no_logits() -> None:
    cohort = LocalCohort(rows(oslo=30, lima=20), RouterSettings())
    cohort.measure(RAW, Trunk(None, {}), Holdout(4, 2))
    design = cohort.design(RAW)
    point = torch.ones(2, 5, dtype=torch.float64)
    logits = cohort.held_out_logits(design, [point, point])
    for client, size in enumerate((30, 20)):
        missing = logits[client][:, 0].isnan()
        assert int(missing.sum()) == Holdout(4, 2).remaining(size, 0) - (size - Holdout(4, 2).remaining(size, 1))
