"""The problems of probe, corrections and joint model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from feddrm.router.features.base import Recipe
from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.fit import head_problems
from feddrm.router.fit.head_problems import (
    MAIN_EFFECTS,
    LocalCorrections,
    OwnCorrections,
    fit_private,
    joint_classes,
    joint_clients,
    joint_label,
    joint_problem,
    own_correction,
    private_problem,
    private_samples,
    probe_problem,
)
from feddrm.router.fit.ridge_path import Chosen
from feddrm.router.solver.client_statistics import Sample, client_gradient, client_scores, logits_at
from feddrm.router.solver.problem import Problem, Scaler
from feddrm.router.solver.solve import Fit, moments_of, pooled, scaler_of, solve


def shifted_clients(sizes: tuple[int, ...] = (200, 120, 40), features: int = 5, classes: int = 3) -> list[Sample]:
    """Clients that share how classes look but for a turn of their own."""
    g = torch.Generator().manual_seed(3)
    centres = 1.5 * torch.randn(classes, features, generator=g, dtype=torch.float64)
    raw, labels = [], []
    for size in sizes:
        own = 0.8 * torch.randn(classes, features, generator=g, dtype=torch.float64)
        y = torch.randint(classes, (size,), generator=g)
        raw.append((centres + own)[y] + torch.randn(size, features, generator=g, dtype=torch.float64))
        labels.append(y)
    scaler = scaler_of(raw)
    return [Sample(scaler(x), y) for x, y in zip(raw, labels, strict=True)]


def test_the_coupled_ridge_is_a_ridge_on_each_of_the_three_parts() -> None:
    """min over A + B + D = W of |A|^2 / c + |B|^2 / c + |D|^2 equals tr(W' P W)."""
    m, k = 3, 4
    problem = joint_problem(m, k, 1, 1.0, torch.device("cpu"))
    w = torch.randn(m * k, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.arange(m * k)
    parts = torch.cat(
        [
            MAIN_EFFECTS**0.5 * torch.nn.functional.one_hot(rows // k, m).double(),
            MAIN_EFFECTS**0.5 * torch.nn.functional.one_hot(rows % k, k).double(),
            torch.eye(m * k, dtype=torch.float64),
        ],
        dim=1,
    )  # W = parts @ theta, theta penalised alike: the least norm
    theta = torch.linalg.pinv(parts) @ w
    assert problem.precision is not None
    assert torch.allclose((w.T @ problem.precision @ w).squeeze(), theta.square().sum())


def test_joint_marginals() -> None:
    logits = torch.randn(6, 12, dtype=torch.float64)
    p = logits.softmax(1).view(6, 3, 4)
    assert torch.allclose(joint_classes(logits, 3).exp(), p.sum(1))
    assert torch.allclose(joint_clients(logits, 3).exp(), p.sum(2))
    assert joint_label(2, torch.tensor([0, 3]), 4).tolist() == [8, 11]


def test_the_joint_model_learns_what_one_probe_cannot() -> None:
    samples = shifted_clients()
    pairs = [Sample(s.x, joint_label(i, s.y, 3)) for i, s in enumerate(samples)]
    whitening = moments_of([s.x for s in samples])
    joint = solve(joint_problem(3, 3, 5, 1e-3, torch.device("cpu")), pairs, whitening, rounds=100)
    probe = solve(probe_problem(3, 5, 1e-3), samples, whitening, rounds=100)
    assert joint.converged
    right = {"joint": 0, "probe": 0}
    for s in samples:
        right["joint"] += int((joint_classes(logits_at(s.x, joint.point), 3).argmax(1) == s.y).sum())
        right["probe"] += int((logits_at(s.x, probe.point).argmax(1) == s.y).sum())
    assert right["joint"] > right["probe"]


def test_private_heads_shrink_to_the_probe() -> None:
    samples = shifted_clients()
    whitening = moments_of([s.x for s in samples])
    probe = solve(probe_problem(3, 5, 1e-3), samples, whitening, rounds=100).point
    strong = fit_private(samples[0], probe, 1e4, whitening)
    weak = fit_private(samples[0], probe, 1e-3, whitening)
    assert strong[:, :-1].abs().max() < 1e-3
    own = client_scores(samples[0], probe + weak)
    assert own["loss"] < client_scores(samples[0], probe)["loss"]


def test_all_local_clients_at_once_are_each_on_its_own() -> None:
    samples = shifted_clients()
    whitening = moments_of([s.x for s in samples])
    probe = solve(probe_problem(3, 5, 1e-3), samples, whitening, rounds=100).point
    total = sum(len(s) for s in samples)
    at_once = solve(
        private_problem(3, 5, 1e-2, 3), [private_samples(samples, probe)], whitening, rounds=300, tolerance=1e-13
    )
    for sample, together in zip(samples, torch.split(at_once.point, 3), strict=True):
        alone = fit_private(sample, probe, 1e-2, whitening, share=len(sample) / total, rounds=300)
        assert (alone - together).abs().max() < 1e-2 * together.abs().max()


def test_corrections_that_clients_fit_alone_are_those_of_all_at_once() -> None:
    """Per fold, with the loss that they have on what is held out; a client without a sample keeps the probe."""
    samples = [Sample(s.x.float(), s.y) for s in shifted_clients()]
    samples.append(samples[0].rows(torch.arange(0)))

    def each(fold: int | None, inside: bool) -> list[Sample]:
        return [s.rows((torch.arange(len(s)) % 5 == 0) == inside) if fold is not None else s for s in samples]

    whitening = moments_of([s.x for s in samples])
    probe = solve(probe_problem(3, 5, 1e-3), samples, whitening, rounds=100).point
    alone = OwnCorrections(
        ("oslo", "lima", "pune", "quito"), each, [probe], 300, lambda fold: sum(map(len, each(fold, False)))
    )
    (points,), (scores,) = alone.scores(1e-2, [None])
    fitted = private_samples(each(0, False), probe)
    at_once = solve(private_problem(3, 5, 1e-2, 4), [fitted], whitening, rounds=300, tolerance=1e-13).point
    assert (points - at_once).abs().max() < 1e-2 * at_once.abs().max()
    assert not points[-3:].any()
    assert scores == client_scores(private_samples(each(0, True), probe), points)
    kept = alone.keep(Chosen(1e-2, 0.0, 0.0, (), ()), probe, 1)
    assert list(kept) == ["oslo", "lima", "pune", "quito"]
    expected = own_correction(samples[1], probe, 1e-2, 360, 60)
    assert torch.equal(kept["lima"], expected.float())


def test_corrections_of_many_clients_on_their_own_axes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many clients has fewer samples than features; fitted to the end on either axes."""
    monkeypatch.setattr(head_problems, "FINE_ROUNDS", 2000)
    monkeypatch.setattr(head_problems, "PATH_TOLERANCE", 1e-15)
    monkeypatch.setattr(head_problems, "BIAS_RIDGE", 1e-2)  # the usual one leaves biases nearly free
    g = torch.Generator().manual_seed(4)
    samples = [Sample(torch.randn(n, 12, generator=g).double(), torch.randint(3, (n,), generator=g)) for n in (9, 4, 7)]
    probe = 0.3 * torch.randn(3, 13, generator=g).double()
    rows = tuple(sample.x for sample in samples)
    design = DesignMatrix(Recipe.parse("raw"), Scaler(torch.zeros(12), torch.ones(12)), moments_of(rows), rows)

    def each(fold: int | None, inside: bool) -> list[Sample]:
        return [s.rows((torch.arange(len(s)) % 3 == 0) == inside) if fold is not None else s for s in samples]

    found = []
    for many in (3, 2):
        monkeypatch.setattr(head_problems, "MANY", many)
        corrections = LocalCorrections(("oslo", "lima", "pune"), each, design, [probe])
        assert corrections.on_axes(samples) == (many == 2)
        (points,), (scores,) = corrections.scores(0.03, [None])
        kept = corrections.keep(Chosen(0.03, 0.0, 0.0, (points,), ()), probe, 2000)
        found.append((points, scores["loss"], torch.cat(list(kept.values()))))
    for on_features, on_axes, close in zip(*found, (1e-5, 1e-5, 1e-2), strict=True):  # what is kept stops at 1e-7
        torch.testing.assert_close(on_axes, on_features, rtol=0, atol=close)


@pytest.mark.parametrize("many", [8, 2], ids=["features", "axes"])
def test_clients_whose_common_fit_would_take_too_much_memory_are_fitted_in_groups(
    monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """To the same optimum, on the features as on own axes; a group may be without any sample of a fold."""
    monkeypatch.setattr(head_problems, "FINE_ROUNDS", 2000)
    monkeypatch.setattr(head_problems, "PATH_TOLERANCE", 1e-15)
    monkeypatch.setattr(head_problems, "BIAS_RIDGE", 1e-2)
    monkeypatch.setattr(head_problems, "MANY", many)
    g = torch.Generator().manual_seed(4)
    sizes = (9, 4, 7, 8, 1, 1)  # the last two are held out
    samples = [Sample(torch.randn(n, 12, generator=g).double(), torch.randint(3, (n,), generator=g)) for n in sizes]
    probe = 0.3 * torch.randn(3, 13, generator=g).double()
    rows = tuple(sample.x for sample in samples)
    design = DesignMatrix(Recipe.parse("raw"), Scaler(torch.zeros(12), torch.ones(12)), moments_of(rows), rows)
    outputs: list[int] = []
    fit = head_problems.solve

    def counted(problem: Problem, *given: Any, **more: Any) -> Fit:
        outputs.append(problem.outputs)
        return fit(problem, *given, **more)

    monkeypatch.setattr(head_problems, "solve", counted)

    def each(fold: int | None, inside: bool) -> list[Sample]:
        return [s.rows((torch.arange(len(s)) % 3 == 0) == inside) if fold is not None else s for s in samples]

    found = []
    width = max(len(s) for s in each(0, False)) if many == 2 else 12
    two = 2 * 8 * head_problems.POINTS * 3 * (width + 1)
    for part_bytes in (None, 10 * two, two):
        corrections = LocalCorrections("abcdef", each, design, [probe], part_bytes)
        assert corrections.on_axes(samples) == (many == 2)
        (points,), (scores,) = corrections.scores(0.03, [None])
        again, _ = corrections.scores(0.03, [points])
        kept = corrections.keep(Chosen(0.03, 0.0, 0.0, (points,), ()), probe, 2000)
        found.append((points, again[0], scores["loss"], torch.cat(list(kept.values()))))
        assert max(outputs) == 3 * (2 if part_bytes == two else 6)
        outputs.clear()
    assert all(torch.equal(one, same) for one, same in zip(*found[:2], strict=True))
    for whole, grouped, close in zip(found[0], found[2], (1e-5, 1e-5, 1e-5, 1e-2), strict=True):
        torch.testing.assert_close(grouped, whole, rtol=0, atol=close)
    assert not found[2][0][-6:].any()


def test_outputs_apart_are_one_softmax_in_which_others_are_impossible() -> None:
    """Loss, gradient and right answers, against pairs (client, class) with the other clients' pairs ruled out."""
    samples = shifted_clients()
    samples[1] = samples[1].rows(torch.arange(0))  # nothing held out there
    g = torch.Generator().manual_seed(0)
    probe, point = (torch.randn(n, 6, generator=g, dtype=torch.float64) for n in (3, 9))
    pairs = []
    for i, s in enumerate(samples):
        offset = torch.full((len(s), 9), -torch.inf, dtype=torch.float64)
        offset[:, 3 * i : 3 * i + 3] = logits_at(s.x, probe)
        pairs.append(Sample(s.x, joint_label(i, s.y, 3), offset))
    apart = private_samples(samples, probe)
    assert len(apart) == sum(map(len, samples))
    for ask in (client_gradient, client_scores):
        expected, found = ask(pooled(pairs), point), ask(apart, point)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-11, atol=1e-11)


def test_a_class_a_client_never_saw_stays_finite() -> None:
    sample = shifted_clients()[0]
    only = sample.rows(sample.y != 2)
    probe = solve(probe_problem(3, 5, 1e-3), [sample], moments_of([sample.x]), rounds=50).point
    head = fit_private(only, probe, 1e-2, moments_of([only.x]))
    assert head.isfinite().all()
    assert head.abs().max() < 50
