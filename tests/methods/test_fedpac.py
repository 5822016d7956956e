"""FedPAC: the pull on the body, and the original: aligned features and mixed heads."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from feddrm.engine import client_update
from feddrm.methods import FedPAC, Sgd, Stage, Tensors
from feddrm.methods.fedpac import SMALLEST_SHARE, head_shares
from feddrm.models import is_head

from .one_client import CLASSES, LR, NET, SGD, batches, close, leaves, slope, work


def test_the_pull_acts_on_the_body_only():
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


# --- the original variant -----------------------------------------------------------------------


def statistics(x: Tensor, y: Tensor) -> Tensors:
    """What a client with these features would upload."""
    member = nn.functional.one_hot(y, CLASSES).double()
    return {"sums": member.T @ x, "counts": member.sum(0), "squares": x.square().sum()}


def test_statistics_are_measured_before_and_after_training():
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


def test_every_client_receives_its_own_mixture_of_heads_only():
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


def test_one_alignment_step_in_closed_form():
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
def test_head_shares_are_optimal_however_far_apart_clients_are(seed, far):
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


def test_equal_clients_have_equal_head_shares():
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
