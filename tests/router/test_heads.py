from __future__ import annotations

import pytest
import torch

from feddrm.router.fit.head_problems import (
    MAIN_EFFECTS,
    fit_private,
    joint_classes,
    joint_clients,
    joint_label,
    joint_problem,
    private_problem,
    private_samples,
    probe_problem,
)
from feddrm.router.fit.selection import Holdout, RidgePath, choose_ridge, split
from feddrm.router.fit.stacking import Stack, client_curves, fit_stack
from feddrm.router.solver.solve import (
    Problem,
    Sample,
    add,
    client_gradient,
    client_scores,
    logits_at,
    moments_of,
    pooled,
    scaler_of,
    solve,
)
from refusal import refused


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
    whitening = moments_of(samples)
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
    whitening = moments_of(samples)
    probe = solve(probe_problem(3, 5, 1e-3), samples, whitening, rounds=100).point
    strong = fit_private(samples[0], probe, 1e4, whitening)
    weak = fit_private(samples[0], probe, 1e-3, whitening)
    assert strong[:, :-1].abs().max() < 1e-3
    own = client_scores(samples[0], probe + weak)
    assert own["loss"] < client_scores(samples[0], probe)["loss"]


def test_all_local_clients_at_once_are_each_on_its_own() -> None:
    samples = shifted_clients()
    whitening = moments_of(samples)
    probe = solve(probe_problem(3, 5, 1e-3), samples, whitening, rounds=100).point
    total = sum(len(s) for s in samples)
    at_once = solve(
        private_problem(3, 5, 1e-2, 3), [private_samples(samples, probe)], whitening, rounds=300, tolerance=1e-13
    )
    for sample, together in zip(samples, torch.split(at_once.point, 3), strict=True):
        alone = fit_private(sample, probe, 1e-2, whitening, share=len(sample) / total, rounds=300)
        assert (alone - together).abs().max() < 1e-2 * together.abs().max()


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
    probe = solve(probe_problem(3, 5, 1e-3), [sample], moments_of([sample]), rounds=50).point
    head = fit_private(only, probe, 1e-2, moments_of([only]))
    assert head.isfinite().all()
    assert head.abs().max() < 50


def test_strengths_are_chosen_by_held_out_losses_of_all_clients() -> None:
    samples = shifted_clients()
    holdout = Holdout(4, 2)
    parts = holdout.draw([len(s) for s in samples], seed=0)
    folds = [split(samples, parts, fold) for fold in range(2)]
    whitening = moments_of(samples)
    chosen = choose_ridge(lambda ridge: probe_problem(3, 5, ridge), folds, whitening)
    assert chosen.loss == min(step[1] for step in chosen.path)
    assert len(chosen.folds) == 2
    again = add(
        [client_scores(s, point) for (_, inside), point in zip(folds, chosen.folds, strict=True) for s in inside]
    )
    assert float(again["loss"] / again["count"]) == chosen.loss
    both = [
        ([private_samples(a, point)], [private_samples(b, point)])
        for (a, b), point in zip(folds, chosen.folds, strict=True)
    ]
    own = choose_ridge(lambda ridge: private_problem(3, 5, ridge, 3), both, whitening)
    assert own.loss < chosen.loss
    assert own.folds[0].shape == (9, 6)


def test_parts_are_disjoint_and_cover_everything() -> None:
    samples = shifted_clients()
    parts = Holdout(5, 5).draw([len(s) for s in samples], seed=1)
    for client, part in zip(samples, parts, strict=True):
        assert sorted(set(part.tolist())) == [0, 1, 2, 3, 4]
        assert len(part) == len(client)
    doubled = Holdout(5, 5).draw([10], seed=1, copies=2)[0]
    assert torch.equal(doubled[:10], doubled[10:])
    assert Holdout.suggested(500) == Holdout(5, 5)
    assert Holdout.suggested(42_000) == Holdout(16, 1)
    with refused("holdout of 3 of 2 parts"):
        Holdout(2, 3).check()


def test_ridge_protects_small_clients() -> None:
    """More features than samples: without validation an unregularised fit would be worse than guessing the prior."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 80, generator=g, dtype=torch.float64)
    samples = [Sample(x[:30], torch.zeros(30, dtype=torch.int64)), Sample(x[30:], torch.ones(30, dtype=torch.int64))]
    parts = Holdout(3, 3).draw([30, 30], seed=0)
    folds = [split(samples, parts, fold) for fold in range(3)]
    chosen = choose_ridge(
        lambda ridge: Problem(2, 80, ridge), folds, moments_of(samples), ridges=(10.0, 1.0, 0.1, 1e-3)
    )
    assert chosen.ridge == 10.0


@pytest.mark.parametrize(
    ("losses", "kept", "tried"),
    [
        ((5, 5, 3, 4, 1), 2, 4),  # the first two so strong that nothing moved; ends at the first worse one
        ((5, 3, 3, 3), 1, 4),  # of equal ones the strongest
        ((5, 6), 0, 2),
    ],
)
def test_the_path_of_strengths(losses: tuple[int, ...], kept: int, tried: int) -> None:
    path = RidgePath([10.0**-k for k in range(5)], folds=1)
    for number, loss in enumerate(losses):
        if path.ridge is None:
            break
        assert path.ridge == 10.0**-number
        score = {"count": torch.tensor(2.0), "loss": torch.tensor(2.0 * loss), "correct": torch.tensor(1.0)}
        path.take([torch.full((1, 1), float(number))], [score])
    assert len(path.chosen.path) == tried
    assert (path.chosen.ridge, path.chosen.loss) == (10.0**-kept, losses[kept])
    assert float(path.chosen.folds[0]) == kept


def test_the_stack_is_the_convex_optimum() -> None:
    g = torch.Generator().manual_seed(0)
    truth = torch.randn(400, 4, generator=g, dtype=torch.float64)
    y = torch.multinomial((2 * truth).softmax(1), 1, generator=g)[:, 0]
    good = (truth + 0.3 * torch.randn(400, 4, generator=g, dtype=torch.float64)).log_softmax(1)
    noise = torch.randn(400, 4, generator=g, dtype=torch.float64).log_softmax(1)
    clients = [(torch.stack([good, noise])[:, half], y[half]) for half in (slice(0, 150), slice(150, None))]
    stack = fit_stack(["good", "noise"], clients)
    weights = torch.tensor(list(stack.weights.values()), dtype=torch.float64)
    sums = add([client_curves(models, labels, weights) for models, labels in clients])
    assert (sums["slope"] / 400).abs().max() < 1e-3  # a little ridge remains
    assert stack.weights["good"] > 1.2
    assert abs(stack.weights["noise"]) < 0.2
    answer = stack({"good": good, "noise": noise, "more": noise})
    assert torch.allclose(answer.exp().sum(1), torch.ones(400, dtype=torch.float64))
    with refused("'noise'"):
        stack({"good": good})
    assert Stack({"good": 1.0})({"good": good}).argmax(1).equal(good.argmax(1))
