"""A cohort whose samples are all in this process."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from feddrm.data import Federation, RandomResizedCrop, load
from feddrm.router import Recipe, RouterSettings
from feddrm.router.fit import local_cohort
from feddrm.router.fit.cohort import Facts, FitRequest, HeldOutHeads, Trunk
from feddrm.router.fit.local_cohort import LocalCohort, target_of, training_view
from feddrm.router.settings import Holdout
from feddrm.router.solver.problem import Problem

RAW = Recipe.parse("raw")


def rows(**sizes: int) -> Federation:
    g = torch.Generator().manual_seed(0)
    made = {name: (torch.randn(size, 4, generator=g), torch.arange(size) % 3) for name, size in sizes.items()}
    return Federation.from_arrays(made, test=made)


def test_facts_are_what_a_server_may_know() -> None:
    facts = Facts.of(rows(oslo=30, lima=20))
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


def test_some_clients_keep_their_samples_and_parts() -> None:
    cohort = LocalCohort(rows(a=20, b=21, c=22, d=23, e=24, f=25), RouterSettings())
    cohort.measure(RAW, Trunk(None, {}), Holdout(4, 2))
    some, again = cohort.some(3), cohort.some(3)
    assert some.facts.names == again.facts.names
    assert len(some.facts.names) == 3
    numbers = [cohort.facts.names.index(name) for name in some.facts.names]
    assert some.facts.sizes == tuple(20 + number for number in numbers)
    scaler = cohort.scaler(RAW)
    drawn, everyone = some.scaled_design(RAW, scaler), cohort.scaled_design(RAW, scaler)
    for fold in (0, 1):
        whole = cohort.each(everyone, fold)
        for number, sample in zip(numbers, some.each(drawn, fold), strict=True):
            assert torch.equal(sample.x, whole[number].x)
            assert torch.equal(sample.y, whole[number].y)
    assert cohort.some(6) is cohort
    assert len(cohort.facts.names) == 6


def test_samples_that_no_fold_held_out_have_no_logits() -> None:
    cohort = LocalCohort(rows(oslo=30, lima=20), RouterSettings())
    cohort.measure(RAW, Trunk(None, {}), Holdout(4, 2))
    design = cohort.design(RAW)
    point = torch.ones(2, 5, dtype=torch.float64)
    logits = cohort.held_out_logits(design, [point, point])
    for client, size in enumerate((30, 20)):
        missing = logits[client][:, 0].isnan()
        assert int(missing.sum()) == Holdout(4, 2).remaining(size, 0) - (size - Holdout(4, 2).remaining(size, 1))


def judging(published: bool) -> tuple[LocalCohort, HeldOutHeads]:
    """Heads that answer the number of their client: Oslo always 0, Lima always 1. Trained models answer always 2."""

    def two(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([-9.0, -9.0, 0.0], dtype=torch.float64).expand(2, len(x), 3)

    cohort = LocalCohort(rows(oslo=30, lima=20), RouterSettings(), two if published else None)
    cohort.measure(RAW, Trunk(None, {}), Holdout(4, 2))
    corrections = torch.zeros(6, 5, dtype=torch.float64)
    corrections[0, -1] = corrections[3 + 1, -1] = 9.0
    zeros = torch.zeros(3, 5, dtype=torch.float64)
    return cohort, HeldOutHeads(cohort.design(RAW), [zeros] * 2, [corrections] * 2, None, 0.1, 0.1)


def held_out_labels(cohort: LocalCohort) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels and clients of the samples that two of four parts hold out."""
    kept = [Holdout(4, 2).draw(i, size, cohort.seed) < 2 for i, size in enumerate((30, 20))]
    labels = [(torch.arange(size) % 3)[part] for size, part in zip((30, 20), kept, strict=True)]
    return torch.cat(labels), torch.cat([torch.full_like(y, i) for i, y in enumerate(labels)])


def test_held_out_samples_are_judged_by_every_clients_refitted_head() -> None:
    cohort, heads = judging(published=False)
    judged = cohort.judge(heads.design, heads)
    labels, _ = held_out_labels(cohort)
    assert judged.x.shape == (len(labels), 4)
    assert judged.right.tolist() == torch.stack([labels == 0, labels == 1], 1).tolist()
    assert set(judged.part.tolist()) == set(range(5))


def test_trained_models_answer_others_samples_and_refitted_heads_their_own() -> None:
    cohort, heads = judging(published=True)
    judged = cohort.judge(heads.design, heads)
    labels, origin = held_out_labels(cohort)
    for client in (0, 1):
        answered = torch.where(origin == client, client, 2)
        assert torch.equal(judged.right[:, client], answered == labels)


def test_crops_in_one_batch_have_the_features_and_answers_of_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    cropped = replace(load("digits", clients=3, seed=0), crop=RandomResizedCrop())
    recipe, batches = Recipe.parse("raw+colour"), []

    def measured(together: int) -> LocalCohort:
        def ask(x: torch.Tensor) -> torch.Tensor:
            batches.append(len(x))
            return x.flatten(1)[None, :, :10].log_softmax(2).expand(3, -1, -1)

        monkeypatch.setattr(local_cohort, "ONE_BATCH", together)
        cohort = LocalCohort(cropped, RouterSettings(crops=2), published=ask)
        cohort.measure(recipe, Trunk(None, {}), Holdout(16, 1))
        return cohort

    one, two = measured(10**6), measured(0)
    sizes = [int(size) for size in cropped.sizes]
    assert batches == [2 * size for size in sizes] + [size for size in sizes for _ in range(2)]
    for number in range(3):
        torch.testing.assert_close(one.columns(recipe, number), two.columns(recipe, number), rtol=1e-6, atol=1e-6)
        assert torch.equal(one._published[number], two._published[number])


def test_crops_of_a_sample_are_held_out_together() -> None:
    digits = load("digits", clients=3, seed=0)
    cropped = replace(digits, crop=RandomResizedCrop())
    cohort = LocalCohort(cropped, RouterSettings(crops=2))
    cohort.measure(RAW, Trunk(None, {}), Holdout(16, 1))
    classes, width = len(digits.classes), 1 + 64
    zeros = torch.zeros(classes, width, dtype=torch.float64)
    heads = HeldOutHeads(cohort.design(RAW), [zeros], [zeros.repeat(3, 1)], None, 0.1, 0.1)
    judged = cohort.judge(heads.design, heads)
    own = int((Holdout(16, 1).draw(0, int(digits.sizes[0]), cohort.seed) == 0).sum())
    assert own > 2
    assert torch.equal(judged.part[:own], judged.part[own : 2 * own])
