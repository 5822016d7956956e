"""Evaluation from one captured graph says what asking model by model says; needs a CUDA device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from feddrm.data import Client, Federation, Pool, QueryViews, RandomResizedCrop, Split, View, colour_shifts
from feddrm.engine import arithmetic
from feddrm.evaluation import Execution, Predictions, Queries, Replay, evaluate, pooled_queries, predict
from feddrm.models import Net, ResNet18, is_head

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

CLIENTS, CLASSES, SAMPLES = 5, 4, 70
BATCH = 32  # the last batch is not full


def network() -> Net:
    return ResNet18(branch=32).build((3, 32, 32), CLASSES, CLIENTS, seed=0).to("cuda")


def leaves(net: Net, seed: int) -> dict[str, Tensor]:
    """The network's own leaves, a little off."""
    generator = torch.Generator().manual_seed(seed)
    return {
        leaf: value.detach() + 0.05 * torch.randn(value.shape, generator=generator).to(value)
        for leaf, value in net.named_parameters()
    }


def models(net: Net, seed: int, trunks: int) -> list[dict[str, Tensor]]:
    """One model per client with heads of their own on so many different trunks."""
    bases = [leaves(net, 100 * seed + k) for k in range(trunks)]
    heads = [leaves(net, 100 * seed + 50 + i) for i in range(CLIENTS)]
    return [bases[i % trunks] | {k: v for k, v in head.items() if is_head(k)} for i, head in enumerate(heads)]


def queries() -> Queries:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 3, 32, 32, generator=generator)
    labels = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    return Queries(x.cuda(), labels.cuda(), (torch.arange(SAMPLES) % CLIENTS).cuda())


def predicted(
    net: Net, served: list[dict[str, Tensor]], precision: str, replay: Replay | None, every: bool
) -> Predictions:
    how = arithmetic(precision, "cuda")
    more = {"client_branch": served[0], "global_model": served[1]} if every else {}
    with how.set():
        execution = Execution(how, BATCH, replay=replay)
        return predict(net, served, queries(), execution=execution, **more)


@pytest.mark.parametrize("every", [False, True], ids=["classes", "all"])
@pytest.mark.parametrize("trunks", [1, 2, CLIENTS])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 3e-2)])
def test_a_replay_equals_passes_one_by_one(trunks: int, every: bool, precision: str, tolerance: float) -> None:
    """The first time, the time it is captured, and with new parameters every time after that."""
    net, replay = network(), Replay()
    kept = []
    for seed in range(4):
        served = models(net, seed, trunks)
        expected, found = (predicted(net, served, precision, how, every) for how in (None, replay))
        assert (replay.begun is not None and replay.begun.graph is not None) == (seed > 0)
        for name, value in expected._asdict().items():
            other = getattr(found, name)
            assert (value is None) == (other is None), name
            if isinstance(value, Tensor):
                scale = float(value.double().std())
                assert float((value.double() - other.double()).abs().max()) <= tolerance * scale, name
        kept.append((found.logits, found.logits.clone()))
    assert all(torch.equal(logits, then) for logits, then in kept)  # later replays leave earlier answers alone


def test_views_are_replayed() -> None:
    """All views have one form, so one graph serves them: the second view captures it."""
    net, replay, how = network(), Replay(), arithmetic("fp32", "cuda")
    test = replace(queries(), views=QueryViews(crops=True, mirrors=True).take(5))
    for seed in range(3):
        served = models(net, seed, 2)
        more = {"client_branch": served[0], "global_model": served[1]}
        with how.set():
            plain, replayed = (Execution(how, BATCH), Execution(how, BATCH, replay=replay))
            expected, found = (predict(net, served, test, execution=one, **more) for one in (plain, replayed))
        assert replay.begun is not None
        assert replay.begun.graph is not None
        for name in ("logits", "client_logits", "global_logits"):
            value, other = getattr(expected, name), getattr(found, name)
            assert float((value - other).abs().max()) <= 1e-4 * float(value.std()), name


def test_passes_of_another_form_are_captured_again() -> None:
    """As when tuning moves the trunks apart."""
    net, replay = network(), Replay()
    for trunks in (1, 1, 1, CLIENTS, CLIENTS, CLIENTS, 1):
        served = models(net, 3 + trunks, trunks)
        expected, found = (predicted(net, served, "fp32", how, False) for how in (None, replay))
        torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=1e-4 * float(expected.logits.std()))


def test_pooled_queries_are_each_clients_own() -> None:
    generator = torch.Generator().manual_seed(2)
    clients = []
    for i, shift in enumerate(colour_shifts("high", CLIENTS)):
        x = torch.randint(0, 256, (9 + i, 3, 32, 32), dtype=torch.uint8, generator=generator)
        split = Split(x, torch.randint(0, CLASSES, (len(x),), generator=generator))
        clients.append(Client(f"c{i}", split, split, View(shift)))
    made = Federation("made", tuple(clients), tuple("abcd"), "made", crop=RandomResizedCrop()).to("cuda")
    for crop in (False, True):
        one_by_one = pooled_queries(made, crop=crop, seed=4, round=7)
        together = pooled_queries(made, crop=crop, seed=4, round=7, pool=Pool.of(made, "test"))
        for name in ("x", "labels", "origin"):
            assert torch.equal(getattr(one_by_one, name), getattr(together, name)), name


def test_accuracies_are_the_same_in_every_replay() -> None:
    net = network()
    served = models(net, 1, CLIENTS)
    replay = Replay()
    found = [evaluate(predicted(net, served, "fp32", replay, True), torch.ones(CLIENTS) / CLIENTS) for _ in range(3)]
    assert found[0] == found[1] == found[2]
