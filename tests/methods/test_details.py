"""Single steps and formulas of the methods, against closed forms and literal code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from feddrm.data import Batch
from feddrm.engine import client_update, functional
from feddrm.methods import (
    Ditto,
    FedALA,
    FedAS,
    FedPAC,
    FedProxFT,
    FedSAMFT,
    Method,
    Phase,
    Sgd,
    Slots,
    Stage,
    Tensors,
)
from feddrm.methods.fedala import mix
from feddrm.methods.fedpac import head_shares
from feddrm.methods.losses import classify
from feddrm.models import Mlp, Net, is_head, is_trunk

from .test_server_rules import statistics

CLASSES, COLUMNS, LR = 3, 4, torch.tensor(0.1, dtype=torch.float64)
SGD = Sgd(momentum=0.9, weight_decay=0.01, lr=LR)


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


def work(method: Method, received: Tensors, private: Slots, steps: int = 4, *, sgd: Sgd = SGD) -> tuple[Tensors, Slots]:
    """One client's round: upload and what it keeps. Every phase sees batches of its own."""
    stage = Stage(steps)
    lists = [batches(phase.steps, seed) for seed, phase in enumerate(method.phases(stage))]
    update = client_update(method, NET, received, private, lists, stage, sgd)
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
    model, plain = start, Sgd(0.0, 0.0, LR)
    for batch in (first, second):
        gradient = slope(model, batch)
        model = {leaf: v - LR * (gradient[leaf] + mu * (v - start[leaf])) for leaf, v in model.items()}
    upload, _ = work(FedProxFT(mu=mu), start, {"model": {}}, 2, sgd=plain)
    close(upload, model)
    without, _ = work(FedProxFT(mu=0.0), start, {"model": {}}, 2, sgd=plain)
    assert any((without[leaf] - upload[leaf]).abs().max() > 1e-4 for leaf in upload)


def test_fedpac_pulls_the_body_alone():
    mu, plain = 0.7, Sgd(0.0, 0.0, LR)
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
    upload, kept = work(Ditto(lam=lam), received, {"personal": own}, 4, sgd=Sgd(0.0, 0.0, LR))
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
    upload = client_update(Short("original"), NET, shared, private, lists, Stage(5), Sgd(0.0, 0.01, LR)).upload
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


# --- FedPAC, original ---------------------------------------------------------------------------


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
        uploads.append(client_update(method, NET, sent, private, lists, Stage(4), SGD).upload)
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
    upload, _ = work(method, {**method.send(shared, 0), **known}, private, 2, sgd=Sgd(0.0, 0.0, rate))
    head = {leaf: upload[leaf] for leaf in leaves() if is_head(leaf)}
    gradient = slope(leaves(), batches(1, seed=1)[0])  # heads have a rate of their own, 0.1
    close(head, {leaf: value - 0.1 * gradient[leaf] for leaf, value in leaves().items() if leaf in head})
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
