"""Every method, by rows, and a toy federation to try them on. A new method is one row of ``ROWS``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

from feddrm.data import Batch, Client, Federation, Participant, Split, batch, draw_for
from feddrm.engine import (
    Plan,
    RoundResult,
    RoundSchedule,
    State,
    Update,
    client_update,
    federate,
    first_state,
    functional,
)
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
    Slots,
    Stage,
    Tensors,
)
from feddrm.models import Mlp, Net

CLASSES, COLUMNS = 3, 4
NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class Row:
    """A method and what is particular about it.

    ``heads`` where class heads travel; ``alone`` where a client that answers alone has its upload
    taken as it is, ``weights`` where uploads are averaged by sample counts; ``tuning`` of 800
    rounds; ``bad`` values of every setting.
    """

    method: Method
    heads: bool = False
    alone: bool = True
    weights: bool = True
    tuning: int = 0
    bad: tuple[Method, ...] = ()


TUNINGS = (-1, 801)
ROWS = {
    "feddrm": Row(FedDRM(), bad=tuple(FedDRM(lam=lam) for lam in (0.0, -0.5, 1.1, NAN))),
    "feddrmft": Row(
        FedDRMFT(),
        tuning=100,
        bad=(*map(FedDRMFT, TUNINGS), *(FedDRMFT(lam=lam) for lam in (0.0, NAN))),
    ),
    "fedavg": Row(FedAvg(), heads=True),
    "fedavgft": Row(FedAvgFT(), heads=True, tuning=100, bad=tuple(map(FedAvgFT, TUNINGS))),
    "fedproxft": Row(
        FedProxFT(),
        heads=True,
        tuning=100,
        bad=(*map(FedProxFT, TUNINGS), *(FedProxFT(mu=mu) for mu in (-0.1, NAN, INF))),
    ),
    "fedsamft": Row(
        FedSAMFT(),
        heads=True,
        tuning=100,
        bad=(*map(FedSAMFT, TUNINGS), *(FedSAMFT(rho=rho) for rho in (0.0, -1.0, NAN, INF))),
    ),
    "fedbabu": Row(FedBABU(), tuning=200, bad=tuple(map(FedBABU, TUNINGS))),
    "fedrep": Row(FedRep()),
    "fedpac": Row(FedPAC(), bad=(*(FedPAC(mu=mu) for mu in (-1.0, NAN, INF)), FedPAC(variant="papr"))),
    "fedpac-original": Row(
        FedPAC(variant="original"),
        heads=True,
        bad=tuple(FedPAC(variant="original", align=align) for align in (-1.0, NAN, INF)),
    ),
    "confree": Row(ConFREE(), weights=False, bad=(*(ConFREE(radius=r) for r in (-0.1, 1.0, NAN)), ConFREE(variant=""))),
    "confree-original": Row(ConFREE(variant="original"), alone=False, weights=False),
    "fedas": Row(FedAS(), bad=(FedAS(variant="Original"),)),
    "fedas-original": Row(FedAS(variant="original"), weights=False),
    "ditto": Row(Ditto(), heads=True, bad=tuple(Ditto(lam=lam) for lam in (-1.0, NAN, INF))),
    "fedala": Row(FedALA(), heads=True, bad=(FedALA(layers=0), FedALA(variant="new"))),
    "fedala-inert": Row(FedALA(learn_mix=False), heads=True),
    "fedala-original": Row(FedALA(variant="original"), heads=True),
    "local": Row(Local(), weights=False),
}

PLAN = Plan(rounds=6, local_steps=5, batch_size=16, lr=0.1, seed=7)
every = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())


# --- a toy federation ---------------------------------------------------------------------------


@cache
def federation(dtype: torch.dtype = torch.float64) -> Federation:
    """Three clients that see the same three clouds from different places; one holds less than a batch."""
    generator = torch.Generator().manual_seed(3)
    centres = 2.0 * torch.eye(CLASSES, COLUMNS)

    def samples(count: int, client: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(count) % CLASSES
        x = centres[y] + 0.6 * torch.randn(count, COLUMNS, generator=generator)
        x[:, -1] += client
        return x, y

    names = {"oslo": 40, "lima": 23, "suva": 7}
    made = Federation.from_arrays(
        {name: samples(count, i) for i, (name, count) in enumerate(names.items())},
        test={name: samples(6, i) for i, name in enumerate(names)},
    )
    return dataclasses.replace(made, clients=tuple(cast(client, dtype) for client in made.clients))


def cast(client: Client, dtype: torch.dtype) -> Client:
    train, test = (Split(split.x.to(dtype), split.y) for split in (client.train, client.test))
    return dataclasses.replace(client, train=train, test=test)


@cache
def network(client_branch: bool, dtype: torch.dtype = torch.float64) -> Net:
    return Mlp(hidden=(24,), branch=16).build((COLUMNS,), CLASSES, 3 if client_branch else None, seed=1).to(dtype)


def leaves_of(method: Method, dtype: torch.dtype = torch.float64) -> Tensors:
    return {leaf: p.detach().clone() for leaf, p in network(method.client_branch, dtype).named_parameters()}


def begin(method: Method, dtype: torch.dtype = torch.float64) -> State:
    return first_state(method, leaves_of(method, dtype), len(federation()))


def play(
    method: Method, state: State, *, plan: Plan = PLAN, dtype: torch.dtype = torch.float64, only=None
) -> list[RoundResult]:
    net = functional(network(method.client_branch, dtype))
    return list(federate(RoundSchedule(method, plan, 3, only), net, federation(dtype), state))


def all_rounds(method: Method, dtype: torch.dtype = torch.float64) -> tuple[RoundResult, ...]:
    return _all_rounds(method, dtype)


@cache
def _all_rounds(method: Method, dtype: torch.dtype) -> tuple[RoundResult, ...]:
    return tuple(play(method, begin(method, dtype), dtype=dtype))


def midway(method: Method, dtype: torch.dtype = torch.float64) -> State:
    """After two rounds, so that every slot has something of its own in it."""
    return all_rounds(method, dtype)[1].state


def batches(method: Method, stage: Stage, client: int, dtype: torch.dtype = torch.float64) -> list[list[Batch]]:
    one = federation(dtype).clients[client]
    lists = []
    for number, phase in enumerate(method.phases(stage)):
        drawn = draw_for(
            Participant.of(federation(dtype), client), steps=phase.steps, batch_size=16, seed=1, round=3, phase=number
        )
        lists.append([batch(one, client, one.train, drawn, step) for step in range(phase.steps)])
    return lists


def update(
    method: Method,
    state: State,
    client: int = 0,
    *,
    stage: Stage | None = None,
    given: list[list[Batch]] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Update:
    stage = stage or Stage(PLAN.local_steps)
    given = given or batches(method, stage, client, dtype)
    net = functional(network(method.client_branch, dtype))
    received = method.send(state.shared, client)
    lr = torch.tensor(0.05, dtype=dtype)
    return client_update(method, net, received, state.private[client], given, stage, PLAN.sgd(lr))


def stages(method: Method) -> list[Stage]:
    """The stages the method knows."""
    steps = PLAN.local_steps
    return [Stage(steps), Stage(steps, tuning=True)] if method.tuning_rounds(800) else [Stage(steps)]


# --- comparing ----------------------------------------------------------------------------------


def tensors_in(slots: Slots) -> Iterator[tuple[str, Tensor]]:
    for slot, leaves in slots.items():
        for leaf, value in leaves.items():
            yield f"{slot}/{leaf}", value


def flat(what: Update | State) -> Tensors:
    if isinstance(what, Update):
        slots = {"upload": what.upload, "loss": {"loss": what.loss}} | {
            f"private/{k}": v for k, v in what.private.items()
        }
    else:
        slots = {"shared": what.shared}
        slots |= {f"private/{i}/{k}": v for i, own in enumerate(what.private) for k, v in own.items()}
    return dict(tensors_in(slots))


def same(one: Tensors, other: Tensors) -> None:
    assert set(one) == set(other)
    for name, value in one.items():
        assert value.dtype == other[name].dtype, name
        assert torch.equal(value, other[name]), name


def moved(value: Tensor) -> Tensor:
    return value + 0.25 if value.is_floating_point() else value


def accuracy(method: Method, state: State) -> float:
    """The served models on their own clients' training samples, every client alike."""
    net = functional(network(method.client_branch))
    right = []
    for i, client in enumerate(federation().clients):
        model = method.serve(method.send(state.shared, i), state.private[i])
        right.append((net(model, client.train.x).logits.argmax(1) == client.train.y).double().mean())
    return float(torch.stack(right).mean())
