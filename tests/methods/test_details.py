"""Single steps and formulas of the methods, against closed forms and literal code."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor, nn

from feddrm.data import Batch
from feddrm.engine import client_update, functional
from feddrm.methods import (
    ConFREE,
    Ditto,
    FedALA,
    FedAS,
    FedAvg,
    FedPAC,
    FedProxFT,
    FedRep,
    FedSAMFT,
    Method,
    Phase,
    Sgd,
    Slots,
    Stage,
    Tensors,
)
from feddrm.methods.confree import EPSILON, without_conflicts, worst_client_best
from feddrm.methods.fedala import mix
from feddrm.methods.fedpac import SMALLEST_SHARE, head_shares
from feddrm.methods.losses import classify
from feddrm.models import Mlp, Net, is_head, is_trunk

CLASSES, COLUMNS, LR = 3, 4, torch.tensor(0.1, dtype=torch.float64)
SGD = Sgd(momentum=0.9, weight_decay=0.01)


def network(seed: int = 1) -> Net:
    return Mlp(hidden=(7,), branch=6).build((COLUMNS,), CLASSES, seed=seed).double()


NET = functional(network())


def leaves(seed: int = 1) -> Tensors:
    return {leaf: p.detach().clone() for leaf, p in network(seed).named_parameters()}


def batches(steps: int, seed: int = 0) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(steps, 8, COLUMNS, generator=generator, dtype=torch.float64)
    y = torch.randint(CLASSES, (steps, 8), generator=generator)
    return [Batch(a, b, torch.zeros_like(b), torch.ones_like(b, dtype=torch.bool)) for a, b in zip(x, y, strict=True)]


def work(
    method: Method, received: Tensors, private: Slots, steps: int = 4, *, sgd: Sgd = SGD, lr: Tensor = LR
) -> tuple[Tensors, Slots]:
    """One client's round: upload and what it keeps. Every phase sees batches of its own."""
    stage = Stage(steps)
    lists = [batches(phase.steps, seed) for seed, phase in enumerate(method.phases(stage))]
    update = client_update(method, NET, received, private, lists, stage, sgd, lr)
    return update.upload, update.private


def slope(model: Tensors, batch: Batch) -> Tensors:
    """Gradient of the mean cross-entropy."""
    points = {leaf: value.clone().requires_grad_() for leaf, value in model.items()}
    loss = nn.functional.cross_entropy(NET(points, batch.x).logits, batch.y)
    return dict(zip(points, torch.autograd.grad(loss, list(points.values())), strict=True))


def optimised(net: Net, names: list[str], given: list[Batch], sgd: Sgd = SGD) -> None:
    """torch.optim.SGD in place, on the named parameters only."""
    parameters = dict(net.named_parameters())
    optimiser = torch.optim.SGD(
        [parameters[n] for n in names], lr=float(LR), momentum=sgd.momentum, weight_decay=sgd.weight_decay
    )
    for batch in given:
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(batch.x).logits, batch.y).backward()
        optimiser.step()


def close(one: Tensors, other: Tensors, atol: float = 1e-12) -> None:
    assert set(one) == set(other)
    for leaf, value in other.items():
        torch.testing.assert_close(one[leaf], value, rtol=0, atol=atol, msg=lambda m, leaf=leaf: f"{leaf}: {m}")


# --- SGD ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_sgd_is_torchs(momentum, decay):
    sgd = Sgd(momentum, decay)
    for steps in range(1, 6):
        net = network()
        optimised(net, list(leaves()), batches(steps), sgd)
        upload, _ = work(FedAvg(), leaves(), {"model": {}}, steps, sgd=sgd)
        close(upload, dict(net.named_parameters()), atol=1e-13)


def test_momentum_never_crosses_phases():
    net = network()
    optimised(net, [leaf for leaf in leaves() if is_head(leaf)], batches(3, seed=0))
    optimised(net, [leaf for leaf in leaves() if not is_head(leaf)], batches(3, seed=1))
    shared, private = FedRep().start(leaves())
    upload, kept = work(FedRep(), shared, private, 6)
    close({**upload, **kept["model"]}, dict(net.named_parameters()), atol=1e-13)


def test_a_phase_with_its_own_rate_ignores_the_schedule():
    class Own(FedAvg):
        def phases(self, stage: Stage) -> tuple[Phase, ...]:
            (phase,) = FedAvg.phases(self, stage)
            return (Phase(phase.steps, phase.loss, sgd=Sgd(0.0, 0.0, lr=0.5)),)

    upload, _ = work(Own(), leaves(), {"model": {}}, 1)
    gradient = slope(leaves(), batches(1)[0])
    close(upload, {leaf: value - 0.5 * gradient[leaf] for leaf, value in leaves().items()})


# --- penalties and perturbations ----------------------------------------------------------------


def test_sam_takes_the_gradient_uphill():
    rho, model, batch = 0.3, leaves(), batches(1)[0]
    gradient = slope(model, batch)
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradient.values()))  # one norm over all leaves
    uphill = slope({leaf: value + rho * gradient[leaf] / norm for leaf, value in model.items()}, batch)
    upload, _ = work(FedSAMFT(rho=rho), model, {"model": {}}, 1)
    wanted = {leaf: value - LR * (uphill[leaf] + SGD.weight_decay * value) for leaf, value in model.items()}
    close(upload, wanted)
    assert any((uphill[leaf] - g).abs().max() > 1e-3 for leaf, g in gradient.items())


def test_sam_is_plain_sgd_while_tuning():
    (phase,) = FedSAMFT(rho=0.3).phases(Stage(4, tuning=True))
    assert phase.sam_radius == 0.0


def test_fedprox_pulls_back_to_what_was_received():
    mu, start = 0.7, leaves()
    first, second = batches(2)
    model, plain = start, Sgd(0.0, 0.0)
    for batch in (first, second):
        gradient = slope(model, batch)
        model = {leaf: v - LR * (gradient[leaf] + mu * (v - start[leaf])) for leaf, v in model.items()}
    upload, _ = work(FedProxFT(mu=mu), start, {"model": {}}, 2, sgd=plain)
    close(upload, model)
    without, _ = work(FedProxFT(mu=0.0), start, {"model": {}}, 2, sgd=plain)
    assert any((without[leaf] - upload[leaf]).abs().max() > 1e-4 for leaf in upload)


def test_fedpac_pulls_the_body_alone():
    mu, plain = 0.7, Sgd(0.0, 0.0)
    shared, private = FedPAC(mu=mu).start(leaves())
    model = leaves()
    for batch in batches(2, seed=0):
        gradient = slope(model, batch)
        model = {leaf: v - LR * gradient[leaf] if is_head(leaf) else v for leaf, v in model.items()}
    for batch in batches(2, seed=1):
        gradient = slope(model, batch)
        model |= {leaf: model[leaf] - LR * (gradient[leaf] + mu * (model[leaf] - shared[leaf])) for leaf in shared}
    upload, kept = work(FedPAC(mu=mu), shared, private, sgd=plain)
    close({**upload, **kept["model"]}, model)


def test_dittos_anchor_is_the_received_model():
    lam, received, own = 0.8, leaves(1), leaves(2)
    upload, kept = work(Ditto(lam=lam), received, {"personal": own}, 4, sgd=Sgd(0.0, 0.0))
    model = received
    for batch in batches(2, seed=0):
        gradient = slope(model, batch)
        model = {leaf: v - LR * gradient[leaf] for leaf, v in model.items()}
    close(upload, model)
    for batch in batches(2, seed=1):
        gradient = slope(own, batch)
        own = {leaf: v - LR * (gradient[leaf] + lam * (v - received[leaf])) for leaf, v in own.items()}
    close(kept["personal"], own)
    assert set(kept) == {"model", "personal"}
    assert kept["model"] == {}


# --- FedALA -------------------------------------------------------------------------------------


def own_and_ones(method: FedALA) -> Slots:
    _, private = method.start(leaves(2))
    return private


def test_fedala_learns_its_mix():
    method = FedALA()
    _, kept = work(method, leaves(1), own_and_ones(method), 10)
    weights = torch.cat([w.flatten() for w in kept["mix"].values()])
    assert set(kept["mix"]) == set(leaves())
    assert weights.min() >= 0
    assert weights.max() <= 1
    assert (weights < 1).double().mean() > 0.2
    assert ((weights > 0) & (weights < 1)).any()


def test_fedalas_first_mixing_step():
    method, received = FedALA(), leaves(1)
    private = own_and_ones(method)
    batch = batches(1, seed=0)[0]
    gradient = slope(received, batch)  # all weights one: the mix is the received model
    _, kept = work(method, received, private, 2)
    for leaf, weight in kept["mix"].items():
        moved = 1 - LR * gradient[leaf] * (received[leaf] - private["personal"][leaf])  # and no decay
        torch.testing.assert_close(weight, moved.clamp(0, 1), rtol=0, atol=1e-13)


def test_fedala_as_released_never_moves_its_mix():
    method, received = FedALA(learn_mix=False), leaves(1)
    upload, kept = work(method, received, own_and_ones(method), 4)
    assert all((weight == 1).all() for weight in kept["mix"].values())
    net = network(1)
    optimised(net, list(received), batches(2))  # FedAvg with half of the steps
    close(upload, dict(net.named_parameters()))
    close(kept["personal"], upload, atol=0)


def test_fedalas_original_mixes_the_last_layers():
    method, received = FedALA(variant="original", layers=2), leaves(1)
    private = own_and_ones(method)
    _, kept = work(method, received, private, 4)
    assert set(kept["mix"]) == {"head.weight", "head.bias"}
    assert any((weight < 1).any() for weight in kept["mix"].values())
    served = method.serve(received, kept)
    close(served, mix({**kept, "shared": received}), atol=0)
    assert all(served[leaf] is received[leaf] for leaf in received if not is_head(leaf))


def test_fedalas_original_mixes_at_rate_one_without_momentum_or_decay():
    method, received = FedALA(variant="original"), leaves(1)
    private = own_and_ones(method)
    own, weights = private["personal"], {leaf: w.clone() for leaf, w in private["mix"].items()}
    for batch in batches(3, seed=0):
        mixed = {**received, **{leaf: own[leaf] + (received[leaf] - own[leaf]) * w for leaf, w in weights.items()}}
        gradient = slope(mixed, batch)
        weights = {leaf: (w - gradient[leaf] * (received[leaf] - own[leaf])).clamp(0, 1) for leaf, w in weights.items()}
    _, kept = work(method, received, private, 6)
    close(kept["mix"], weights)
    assert any(((w > 0) & (w < 1)).any() for w in weights.values())


@pytest.mark.parametrize("method", [FedALA(), FedALA(variant="original"), FedAS(), FedAS(variant="original"), Ditto()])
def test_the_training_loss_is_of_the_model_that_travels(method):
    """Not of mixing weights, alignment or a personal model."""
    logged = [phase.loss for phase in method.phases(Stage(10)) if isinstance(phase, Phase) and phase.logged]
    assert logged == [classify]


@given(st.floats(0, 1))
def test_the_mix_goes_from_own_to_received(share):
    own, received = leaves(2), leaves(1)
    weights = {leaf: torch.full_like(value, share) for leaf, value in own.items()}
    mixed = mix({"personal": own, "shared": received, "mix": weights})
    close(mixed, {leaf: (1 - share) * own[leaf] + share * received[leaf] for leaf in own}, atol=1e-14)


# --- FedAS --------------------------------------------------------------------------------------


class AlignOnly(FedAS):
    """The alignment of a round without the training after it."""

    def phases(self, stage: Stage) -> tuple[Phase, ...]:
        return FedAS.phases(self, stage)[:1]


def test_fedas_aligns_the_trunk_alone():
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


def test_fedass_first_alignment_only_decays():
    shared, private = FedAS().start(leaves())
    upload, _ = work(AlignOnly(), shared, private, 5)  # a fifth of them: one step
    for leaf, value in shared.items():
        wanted = value * (1 - LR * SGD.weight_decay) if is_trunk(leaf) else value
        torch.testing.assert_close(upload[leaf], wanted, rtol=0, atol=1e-15)


def test_fedass_original_aligns_only_with_classes_the_survey_saw():
    """A class that its few batches missed has no mean; taking zero for it would pull its features to nothing."""
    method = FedAS(variant="original")
    shared, private = method.start(leaves(1))
    private = {**private, "prev": leaves(2)}
    survey, alignment = batches(1, seed=0), batches(1, seed=1)
    survey = [b._replace(y=b.y % 2) for b in survey]  # nothing of class 2
    assert (alignment[0].y == 2).any()

    class Short(FedAS):
        def phases(self, stage: Stage) -> tuple:
            return FedAS.phases(self, stage)[:2]

        def finish(self, slots: Slots, stage: Stage) -> tuple[Tensors, Slots]:
            return slots["model"], {}

    lists = [survey, alignment]
    upload = client_update(Short("original"), NET, shared, private, lists, Stage(5), Sgd(0.0, 0.01), LR).upload
    model = {leaf: value.clone().requires_grad_() for leaf, value in leaves(1).items()}
    before = NET(leaves(2), survey[0].x).features
    features, y = NET(model, alignment[0].x).features, alignment[0].y
    loss = sum(
        (x - before[survey[0].y == k].mean(0)).square().mean() / len(y)
        for x, k in zip(features, y, strict=True)
        if k != 2
    )
    loss.backward()
    for leaf, value in leaves(1).items():
        wanted = value - LR * (model[leaf].grad + 0.01 * value) if is_trunk(leaf) else value  # the trunk alone
        torch.testing.assert_close(upload[leaf], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("steps", "align"), [(2, 1), (4, 1), (5, 1), (9, 1), (10, 2), (25, 5)])
def test_fedas_aligns_for_a_fifth_of_the_steps_and_at_least_one(steps, align):
    assert [phase.steps for phase in FedAS().phases(Stage(steps))] == [align, steps - align]


def test_fedas_keeps_the_trained_model_as_the_next_anchor():
    shared, private = FedAS().start(leaves())
    upload, kept = work(FedAS(), shared, private, 5)
    close(kept["prev"], {**upload, **kept["model"]}, atol=0)


def test_fedass_original_weights_by_fisher_information():
    method, weights = FedAS(variant="original"), torch.tensor([0.5, 0.5], dtype=torch.float64)

    def upload(value: float, fisher: float) -> Tensors:
        return {"trunk.w": torch.full((2,), value, dtype=torch.float64), "fisher": torch.tensor(fisher).double()}

    shared = {"trunk.w": torch.zeros(2).double()}
    mixed = method.aggregate(shared, [upload(1.0, 3.0), upload(5.0, 1.0)], weights)
    close(mixed, {"trunk.w": torch.full((2,), 2.0, dtype=torch.float64)})
    # All clients fit perfectly: sample counts decide, and the model is not wiped out.
    still = method.aggregate(shared, [upload(1.0, 0.0), upload(5.0, 0.0)], weights)
    close(still, {"trunk.w": torch.full((2,), 3.0, dtype=torch.float64)})


def test_fedass_fisher_trace_is_the_squared_gradient():
    method = FedAS(variant="original")
    shared, private = method.start(leaves())
    upload, kept = work(method, shared, private, 5)
    gradient = slope({**upload_leaves(upload), **kept["model"]}, batches(1, seed=3)[0])
    wanted = sum(g.square().sum() for g in gradient.values())
    torch.testing.assert_close(upload["fisher"], wanted, rtol=1e-12, atol=0)


def upload_leaves(upload: Tensors) -> Tensors:
    return {leaf: value for leaf, value in upload.items() if leaf != "fisher"}


# --- ConFREE ------------------------------------------------------------------------------------

number = st.floats(-3, 3, allow_nan=False).map(lambda x: round(x, 3))


@st.composite
def moves(draw) -> tuple[Tensor, Tensor]:
    """Some clients' moves [client, coordinate] and weights."""
    m, size = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    rows = draw(st.lists(st.lists(number, min_size=size, max_size=size), min_size=m, max_size=m))
    sizes = draw(st.lists(st.integers(1, 9), min_size=m, max_size=m))
    weights = torch.tensor(sizes, dtype=torch.float64)
    return torch.tensor(rows, dtype=torch.float64), weights / weights.sum()


def pairwise(d: Tensor) -> Tensor:
    """The rule as the specification words it, pair by pair."""
    out = d.clone()
    for i, j in itertools.combinations(range(len(d)), 2):
        product = d[i] @ d[j]
        if product < 0:
            out[i] -= product / (d[j] @ d[j] + 1e-8) * d[j]
            out[j] -= product / (d[i] @ d[i] + 1e-8) * d[i]
    return out


@given(moves())
def test_confree_is_the_double_loop(drawn):
    d, weights = drawn
    half = d.shape[1] // 2
    start = torch.linspace(-1, 1, d.shape[1], dtype=torch.float64)
    # Conflicts are judged over the whole body, however it is cut into leaves.
    shared = {"a": start[:half], "b": start[half:].reshape(1, -1)}
    uploads = [{"a": (start + row)[:half], "b": (start + row)[half:].reshape(1, -1)} for row in d]
    exact = torch.stack([torch.cat([u["a"], u["b"][0]]) for u in uploads]) - start
    found = ConFREE().aggregate(shared, uploads, weights)
    wanted = start + weights @ pairwise(exact)
    torch.testing.assert_close(torch.cat([found["a"], found["b"][0]]), wanted, rtol=1e-9, atol=1e-9)


def test_confree_takes_opposite_moves_apart():
    d = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [0.0, -1.0]]).double()
    share = without_conflicts(d @ d.T, torch.full((3,), 1 / 3, dtype=torch.float64))
    # 0 and 1 are at right angles; 2 conflicts with both: each loses half of d2's mirror image.
    wanted = pairwise(d).mean(0)
    torch.testing.assert_close(share @ d, wanted, rtol=0, atol=1e-12)
    assert not torch.allclose(wanted, d.mean(0))


@given(moves())
def test_without_conflicts_it_is_averaging(drawn):
    d, weights = drawn
    d = d.abs()
    assert torch.equal(without_conflicts(d @ d.T, weights), weights)


@given(moves())
def test_a_conflict_averse_step_without_radius_or_conflict_is_the_mean(drawn):
    d = drawn[0].abs()
    share = worst_client_best(d @ d.T, radius=0.0)
    torch.testing.assert_close(share, torch.full((len(d),), 1 / len(d), dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("radius", [0.2, 0.5, 0.9])
def test_a_conflict_averse_step_serves_the_worst_client_best(radius):
    # Two clients without conflict: the guide is the mean, and the dual has one unknown.
    d = torch.tensor([[3.0, 0.0, 1.0], [0.2, 0.5, 0.0]]).double()
    guide = d.mean(0)
    ball = radius * guide.norm()

    def dual(w: float) -> float:
        g = w * d[0] + (1 - w) * d[1]
        return float(g @ guide + ball * g.norm())

    w = minimize_scalar(dual, bounds=(0, 1), method="bounded", options={"xatol": 1e-12}).x
    g = w * d[0] + (1 - w) * d[1]
    wanted = (guide + ball * g / g.norm()) / (1 + radius**2)
    found = worst_client_best(d @ d.T, radius) @ d
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-3)
    # At least as good for whoever fares worst as the mean of the same length of step.
    assert (d @ found).min() >= (d @ guide).min() / (1 + radius**2)


def test_epsilon_is_the_specifications():
    assert EPSILON == 1e-8


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1e6])
def test_a_conflict_averse_step_does_not_depend_on_how_far_clients_moved(scale):
    """At the end of a cosine schedule a tensor's moves are some 1e-7 long, and their products 1e-14."""
    d = torch.randn(5, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, other = (worst_client_best((s * d) @ (s * d).T, 0.5) for s in (1.0, scale))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert one.max() - one.min() > 0.1  # far from the mean


@pytest.mark.parametrize("seed", range(8))
def test_a_conflict_averse_step_of_many_clients_solves_the_dual(seed):
    """Against a general solver, in vectors instead of coefficients; clients of very different sizes."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(3, 9))
    d = rng.normal(size=(m, 20)) * np.exp(rng.normal(size=(m, 1))) + rng.normal() / 2
    projected = d.copy()
    for i, j in itertools.permutations(range(m), 2):
        projected[i] -= min(0.0, projected[i] @ d[j]) / (d[j] @ d[j]) * d[j]
    guide = projected.mean(0)
    ball = 0.5 * np.linalg.norm(guide)
    found = minimize(
        lambda w: (w @ d @ guide + ball * np.linalg.norm(w @ d)) / ball**2,
        np.full(m, 1 / m),
        bounds=[(0, 1)] * m,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 1000},
    )
    wanted = (guide + ball * found.x @ d / np.linalg.norm(found.x @ d)) / 1.25
    gram = torch.from_numpy(d @ d.T)
    share = worst_client_best(torch.stack([gram, torch.zeros_like(gram)]), 0.5)  # beside a tensor nobody moved
    np.testing.assert_allclose(share[0].numpy() @ d, wanted, atol=2e-3 * np.linalg.norm(wanted))
    assert share[1].isfinite().all()


# --- FedPAC, original ---------------------------------------------------------------------------


def statistics(x: Tensor, y: Tensor) -> Tensors:
    """What a client with these features would upload."""
    member = nn.functional.one_hot(y, CLASSES).double()
    return {"sums": member.T @ x, "counts": member.sum(0), "squares": x.square().sum()}


def drawn_statistics(seed: int, gap: float = 1.0) -> list[Tensors]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(12) % CLASSES
    features = torch.randn(4, 12, 2, generator=generator, dtype=torch.float64)
    return [statistics(x + gap * i * y[:, None], y) for i, x in enumerate(features)]


@pytest.mark.parametrize("gap", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_head_shares_lie_on_the_simplex(seed, gap):
    shares = head_shares(drawn_statistics(seed, gap))
    assert shares.shape == (4, 4)
    assert (shares >= 0).all()
    torch.testing.assert_close(shares.sum(1), torch.ones(4).double(), rtol=0, atol=1e-12)
    assert not ((shares > 0) & (shares < 0.99 * SMALLEST_SHARE)).any()


def test_head_shares_of_two_clients_in_closed_form():
    uploads = drawn_statistics(0, gap=0.3)[:2]
    total = [float(u["counts"].sum()) for u in uploads]
    mean = [u["sums"] / n for u, n in zip(uploads, total, strict=True)]
    variance = [float(u["squares"] / n - h.square().sum()) / n for u, h, n in zip(uploads, mean, total, strict=True)]
    gap = float((mean[0] - mean[1]).square().sum())
    # a' (diag V + D_0) a with a = (1 - s, s): the other's head costs its variance and the bias.
    take_0 = variance[0] / (variance[0] + variance[1] + gap)
    take_1 = variance[1] / (variance[0] + variance[1] + gap)
    wanted = torch.tensor([[1 - take_0, take_0], [take_1, 1 - take_1]]).double()
    assert 0.05 < take_0 < 0.45
    torch.testing.assert_close(head_shares(uploads), wanted, rtol=0, atol=1e-5)


def cheapest_on_the_simplex(matrix: np.ndarray) -> np.ndarray:
    """By trying every set of clients that may have a share: on one of them the gradient is constant."""
    best, least = np.zeros(len(matrix)), np.inf
    for size in range(1, len(matrix) + 1):
        for chosen in itertools.combinations(range(len(matrix)), size):
            share = np.zeros(len(matrix))
            share[list(chosen)] = np.linalg.solve(matrix[np.ix_(chosen, chosen)], np.ones(size))
            share /= share.sum()
            if (share >= 0).all() and share @ matrix @ share < least:
                best, least = share, share @ matrix @ share
    return best


@pytest.mark.parametrize("far", [0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("seed", range(3))
def test_head_shares_are_the_cheapest_however_far_some_clients_are(seed, far):
    """Two groups of clients: the distance between groups must not drown the trade-off within them."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(60) % CLASSES
    uploads = [
        statistics(torch.randn(60, 2, generator=generator, dtype=torch.float64) + far * (i >= 3), y) for i in range(6)
    ]
    n = 60
    mean = np.stack([(u["sums"] / n).flatten() for u in uploads])
    variance = np.array([float(u["squares"]) / n - (h**2).sum() for u, h in zip(uploads, mean, strict=True)]) / n
    for i, found in enumerate(head_shares(uploads)):
        gaps = mean[i] - mean
        wanted = cheapest_on_the_simplex(np.diag(variance) + gaps @ gaps.T)
        wanted[wanted < SMALLEST_SHARE] = 0
        np.testing.assert_allclose(found, wanted / wanted.sum(), atol=1e-7)
        assert (found[:3] > 0).sum() + (found[3:] > 0).sum() >= 2  # nobody stands alone


def test_a_client_whose_features_do_not_vary_keeps_its_head():
    still = statistics(torch.zeros(12, 2, dtype=torch.float64), torch.zeros(12, dtype=torch.long))
    shares = head_shares([still, *drawn_statistics(0)])
    torch.testing.assert_close(shares[0], torch.eye(5, dtype=torch.float64)[0], rtol=0, atol=1e-9)


def test_clients_alike_share_equally():
    (one, *_) = drawn_statistics(0)
    torch.testing.assert_close(
        head_shares([one] * 3), torch.full((3, 3), 1 / 3, dtype=torch.float64), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize(("take", "kept"), [(4e-3, True), (1.5e-3, True), (7e-4, False), (1e-9, False)])
def test_tiny_head_shares_are_dropped(take, kept):
    # One class, one feature, n samples of variance one: V = 1/n, and the gap sets the share.
    n = 100.0
    gap = math.sqrt((1 / take - 2) / n)

    def one_class(mean: float) -> Tensors:
        counts = torch.tensor([n, 0.0, 0.0], dtype=torch.float64)
        return {"sums": counts[:, None] * mean, "counts": counts, "squares": counts.sum() * (1 + mean**2)}

    shares = head_shares([one_class(0.0), one_class(gap)])
    wanted = torch.tensor([[1 - take, take], [take, 1 - take]], dtype=torch.float64)
    if kept:
        torch.testing.assert_close(shares, wanted, rtol=0, atol=1e-4)
    else:
        assert torch.equal(shares, torch.eye(2, dtype=torch.float64))  # exactly


def test_fedpacs_statistics_come_from_real_samples():
    """For the heads' mixture under the body that all clients received; for the prototypes after training."""
    method = FedPAC(variant="original")
    shared, private = method.start(leaves())
    upload, _ = work(method, method.send(shared, 1), private, 4)

    def seen_by(model: Tensors, seed: int) -> Tensors:
        seen = batches(2, seed)
        return statistics(torch.cat([NET(model, b.x).features for b in seen]), torch.cat([b.y for b in seen]))

    wanted = seen_by(leaves(), seed=0)
    close({name: upload[name] for name in wanted}, wanted)
    wanted = seen_by({leaf: upload[leaf] for leaf in leaves()}, seed=3)
    close({name: upload[f"class_{name}"] for name in ("sums", "counts")}, {k: wanted[k] for k in ("sums", "counts")})
    assert int(upload["client"]) == 1


def test_fedpac_sends_every_client_its_own_heads_and_nobody_elses():
    method = FedPAC(variant="original")
    shared, private = method.start(leaves())
    uploads = []
    for client in range(3):
        sent = method.send(shared, client)
        lists = [batches(phase.steps, 10 * client + k) for k, phase in enumerate(method.phases(Stage(4)))]
        uploads.append(client_update(method, NET, sent, private, lists, Stage(4), SGD, LR).upload)
    after = method.aggregate(shared, uploads, torch.full((3,), 1 / 3, dtype=torch.float64))
    shares = head_shares(uploads)
    for client in range(3):
        sent = method.send(after, client)
        assert set(sent) == {*leaves(), "client", "prototypes", "seen"}
        wanted = sum(shares[client, j] * uploads[j]["head.weight"] for j in range(3))
        torch.testing.assert_close(sent["head.weight"], wanted, rtol=0, atol=1e-12)
    counts = sum(u["class_counts"] for u in uploads)
    wanted = sum(u["class_sums"] for u in uploads) / counts.clamp_min(1)[:, None]
    np.testing.assert_allclose(after["prototypes"], wanted)


def test_fedpacs_alignment_step():
    """One step of the body: the mean over samples of the mean over features, nothing for a class nobody has seen."""
    method, align = FedPAC(variant="original", align=0.6), 0.6
    shared, private = method.start(leaves())
    prototypes = torch.randn(CLASSES, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    known = {"prototypes": prototypes, "seen": torch.tensor([True, False, True])}
    rate = torch.tensor(0.03, dtype=torch.float64)
    upload, _ = work(method, {**method.send(shared, 0), **known}, private, 2, sgd=Sgd(0.0, 0.0), lr=rate)
    head = {leaf: upload[leaf] for leaf in leaves() if is_head(leaf)}
    gradient = slope(leaves(), batches(1, seed=1)[0])  # heads have a rate of their own, 0.1, with the usual decay
    close(
        head, {leaf: value - 0.1 * (gradient[leaf] + 5e-4 * value) for leaf, value in leaves().items() if leaf in head}
    )
    model = {leaf: value.clone().requires_grad_() for leaf, value in {**leaves(), **head}.items()}
    (batch,) = batches(1, seed=2)
    out = NET(model, batch.x)
    loss = nn.functional.cross_entropy(out.logits, batch.y)
    for x, y in zip(out.features, batch.y, strict=True):
        if y != 1:
            loss = loss + align * (x - prototypes[y]).square().mean() / len(batch.y)
    loss.backward()
    assert (batch.y == 1).any()
    close(
        {leaf: upload[leaf] for leaf in shared},
        {leaf: value - rate * model[leaf].grad for leaf, value in shared.items()},
    )
