"""The GPU engine agrees with the plain loop, for every method; run on a machine with a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from feddrm.data import Client, Federation, RandomResizedCrop, Split, View, colour_shifts
from feddrm.engine import Plan, State, arithmetic, federate, first_state, functional
from feddrm.engine.cuda_graph import GraphEngine
from feddrm.engine.schedule import RoundSchedule
from feddrm.methods import (
    ConFREE,
    Ditto,
    FedALA,
    FedAS,
    FedAvg,
    FedAvgFT,
    FedBABU,
    FedDRM,
    FedDRMFT,
    FedPAC,
    FedProxFT,
    FedRep,
    FedSAMFT,
    Local,
    Method,
    Phase,
    Stage,
    Tensors,
)
from feddrm.methods.losses import classify
from feddrm.models import LeNet, Mlp, Net, Outputs
from patients import survival_federation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

SIZES, CLASSES = (90, 40, 25, 9), 5  # the last holds fewer than a batch
METHODS = [
    FedDRM(),
    FedDRMFT(tuning=2),
    FedAvg(),
    FedAvgFT(tuning=2),
    FedProxFT(tuning=2),
    FedSAMFT(tuning=2),
    Ditto(),
    FedRep(),
    FedBABU(tuning=2),
    FedPAC(),
    FedPAC(variant="original"),
    FedALA(),
    FedALA(learn_mix=False),
    FedALA(variant="original"),
    FedAS(),
    FedAS(variant="original"),
    ConFREE(),
    ConFREE(variant="original"),
    Local(),
]
LABELS = [str(m).replace("()", "") for m in METHODS]


def made(device: str = "cuda") -> Federation:
    """Noise whose brightness tells the class, cropped and shifted like photographs."""
    generator = torch.Generator().manual_seed(3)
    clients = []
    for i, (size, shift) in enumerate(zip(SIZES, colour_shifts("high", len(SIZES)), strict=True)):
        y = torch.randint(0, CLASSES, (size + 8,), generator=generator)
        x = torch.randint(0, 120, (size + 8, 3, 32, 32), generator=generator) + 25 * y[:, None, None, None]
        split = Split(x[:size].to(torch.uint8), y[:size]), Split(x[size:].to(torch.uint8), y[size:])
        clients.append(Client(f"c{i}", *split, View(shift)))
    names = tuple(map(str, range(CLASSES)))
    return Federation("made", tuple(clients), names, "made", crop=RandomResizedCrop()).to(device)


def network(method: Method) -> Net:
    clients = len(SIZES) if method.client_branch else None
    return LeNet().build((3, 32, 32), CLASSES, clients, seed=1).to("cuda")


def states(
    method: Method,
    engine: str,
    plan: Plan,
    precision: str = "fp32",
    dtype: torch.dtype = torch.float32,
    only: list[tuple[int, ...]] | None = None,
    start: State | None = None,
) -> Iterator[State]:
    """The state after every round, from the start or another state on."""
    federation, net, how = made(), network(method).to(dtype), arithmetic(precision, "cuda")
    first = first_state(method, {k: v.detach() for k, v in net.named_parameters()}, len(federation))
    forward, schedule = functional(net, how), RoundSchedule(method, plan, len(federation), only)

    def wide(leaves: Tensors, x: Tensor) -> Outputs:
        return forward(leaves, x.to(dtype))

    with how.set():
        for step in federate(schedule, wide, federation, start or first, engine=engine):
            yield step.state


def played(method: Method, engine: str, plan: Plan, **settings: Any) -> State:
    return list(states(method, engine, plan, **settings))[-1]


def apart(method: Method, one: State, other: State) -> float:
    """The largest difference of a served parameter."""
    worst = 0.0
    for i, (mine, its) in enumerate(zip(one.private, other.private, strict=True)):
        a, b = (method.serve(method.send(s.shared, i), p) for s, p in ((one, mine), (other, its)))
        assert a.keys() == b.keys()
        worst = max(worst, *(float((a[k].double() - b[k].double()).abs().max()) for k in a))
    return worst


def plan(rounds: int = 4, steps: int = 5, **settings: object) -> Plan:
    return Plan(rounds=rounds, local_steps=steps, batch_size=16, lr=0.01, **settings)


def rounds_of(method: Method, rounds: int) -> int:
    """Some more where the last two only tune."""
    return rounds + 2 if method.tuning_rounds(800) else rounds


@pytest.mark.parametrize("method", METHODS, ids=LABELS)
def test_the_graph_equals_the_loop_in_float64(method: Method) -> None:
    """In float64, where rounding is no excuse."""
    some = plan(rounds_of(method, 4))
    one, other = (played(method, engine, some, dtype=torch.float64) for engine in ("sequential", "graph"))
    assert apart(method, one, other) < 1e-9
    assert one.communication == other.communication
    start = played(method, "sequential", plan(1), dtype=torch.float64)
    assert apart(method, start, other) > 1e-3  # it did train


@pytest.mark.parametrize("method", [FedDRM(), FedAvg()], ids=lambda m: m.name)
def test_survival_is_captured(method: Method) -> None:
    """The loss of another task than classification, whose interval edges must be on the device before the capture."""
    federation = survival_federation().to("cuda")
    net = Mlp(hidden=(16,), branch=8).build(federation.shape, len(federation.classes), len(federation), seed=1)
    net.task = federation.task
    forward, schedule = functional(net.to("cuda", torch.float64)), RoundSchedule(method, plan(), len(federation))

    def wide(leaves: Tensors, x: Tensor) -> Outputs:
        return forward(leaves, x.double())

    start = first_state(method, {k: v.detach() for k, v in net.named_parameters()}, len(federation))
    ends = [
        list(federate(schedule, wide, federation, start, engine=engine))[-1].state for engine in ("sequential", "graph")
    ]
    assert apart(method, *ends) < 1e-9
    assert apart(method, start, ends[1]) > 1e-3  # it did train


@pytest.mark.parametrize("method", METHODS, ids=LABELS)
def test_clip_and_warmup_are_captured(method: Method) -> None:
    some = plan(rounds_of(method, 4), clip=0.05, warmup=2)
    one, other = (played(method, engine, some, dtype=torch.float64) for engine in ("sequential", "graph"))
    assert apart(method, one, other) < 1e-9
    free = played(method, "graph", plan(rounds_of(method, 4), warmup=2), dtype=torch.float64)
    assert apart(method, other, free) > 1e-4  # the clip did something


@pytest.mark.parametrize("method", METHODS, ids=LABELS)
def test_every_round_of_the_graph_is_close_to_the_loop_in_float32(method: Method) -> None:
    """Each from the loop's state: once rounding moves a value across a kink of ReLU, the rounds after it go apart."""
    some = plan(rounds_of(method, 3), steps=2)
    before = None
    for after in states(method, "sequential", some):
        assert apart(method, after, next(states(method, "graph", some, start=before))) < 1e-4
        before = after
    assert before is not None
    assert before.round == some.rounds


@pytest.mark.parametrize("method", [FedDRM(), Ditto(), FedPAC(variant="original")], ids=lambda m: m.name)
def test_partial_participation_and_dropouts(method: Method) -> None:
    some = plan(8, participation=0.75, dropout=0.3, seed=5)
    one, other = (played(method, engine, some, dtype=torch.float64) for engine in ("sequential", "graph"))
    assert apart(method, one, other) < 1e-9
    assert one.communication == other.communication


def test_named_clients_answer() -> None:
    only = [(0, 2), (1,), (3,), (), (0, 1, 3), (2, 3)]
    one, other = (
        played(FedDRM(), engine, plan(6), dtype=torch.float64, only=only) for engine in ("sequential", "graph")
    )
    assert apart(FedDRM(), one, other) < 1e-9


def test_one_capture_per_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = []
    capture = GraphEngine._capture

    def counted(self: GraphEngine, stage: object, *rest: object) -> object:
        stages.append(stage)
        return capture(self, stage, *rest)

    monkeypatch.setattr(GraphEngine, "_capture", counted)
    played(FedAvgFT(tuning=3), "graph", plan(8))
    assert [stage.tuning for stage in stages] == [False, True]


@pytest.mark.parametrize("read", ["round", "lr"])
def test_a_method_that_reads_the_round_or_its_rate_is_not_replayed(read: str) -> None:
    """A graph of one round would repeat its loss in all others."""

    @dataclass(frozen=True)
    class Growing(FedAvg):
        def phases(self, stage: Stage) -> tuple[Phase, ...]:
            weight = 1.0 + getattr(stage, read)
            return (Phase(stage.steps, lambda net, slots, batch: weight * classify(net, slots, batch)),)

    method = Growing()
    one, other = (played(method, engine, plan(5), dtype=torch.float64) for engine in ("sequential", "graph"))
    assert apart(method, one, other) < 1e-9


def test_later_rounds_do_not_change_earlier_states() -> None:
    """A round's results are not written over by the next one, and nothing that was passed in changes."""
    method, federation = Ditto(), made()
    net = network(method)
    state = first_state(method, {k: v.detach() for k, v in net.named_parameters()}, len(federation))
    kept, copies = [], []
    schedule = RoundSchedule(method, plan(5), len(federation))
    for step in federate(schedule, functional(net), federation, state, engine="graph"):
        kept.append(step.state)
        copies.append({k: v.clone() for k, v in step.state.shared.items()})
    for before, copy in zip(kept, copies, strict=True):
        assert all(torch.equal(before.shared[leaf], copy[leaf]) for leaf in copy)


def test_the_same_state_gives_the_same_round() -> None:
    method, federation = FedDRM(), made()
    net = network(method)
    state = first_state(method, {k: v.detach() for k, v in net.named_parameters()}, len(federation))
    engine = GraphEngine(RoundSchedule(method, plan(9), len(federation)), functional(net), federation)
    state = engine.play(engine.play(state).state).state
    one, other = engine.play(state), engine.play(state)
    engine.close()
    assert one.loss == pytest.approx(other.loss, abs=1e-5)
    assert apart(method, one.state, other.state) < 1e-5


def test_bfloat16_is_close_to_float32() -> None:
    one, other = (played(FedDRM(), "graph", plan(4), precision=precision) for precision in ("fp32", "bf16"))
    assert all(value.dtype == torch.float32 for value in other.shared.values())
    assert 0 < apart(FedDRM(), one, other) < 0.02
