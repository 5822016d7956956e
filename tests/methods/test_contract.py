"""What every method promises, whatever it learns. A new method is one row of ``ROWS``."""

from __future__ import annotations

import dataclasses
import itertools
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
    load_state,
    play_round,
    save_state,
)
from feddrm.errors import SettingError
from feddrm.methods import (
    ConFREE,
    Ditto,
    FedALA,
    FedAS,
    FedAvg,
    FedAvgFT,
    FedBABU,
    FedDRM,
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
from feddrm.models import Mlp, Net, is_head

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


# --- the contract -------------------------------------------------------------------------------


def test_every_method_has_a_row():
    assert {row.method.name for row in ROWS.values()} == set(Method.family)


def test_every_variant_has_a_row():
    rows = {(row.method.name, row.method.variant) for row in ROWS.values() if hasattr(row.method, "variant")}
    twofold = {name for name, cls in Method.family.items() if hasattr(cls, "variant")}
    assert rows == {(name, variant) for name in twofold for variant in ("paper", "original")}


@pytest.mark.parametrize("name", Method.family)
def test_a_method_says_in_one_line_what_it_does(name):
    assert 20 < len(Method.find(name).summary()) <= 110
    assert isinstance(hash(Method.make(name)), int)


@every
def test_training_raises_the_accuracy(row):
    method = row.method
    start, end = accuracy(method, begin(method)), accuracy(method, all_rounds(method)[-1].state)
    assert end >= 0.9
    assert start <= 0.6


@every
def test_only_shared_leaves_and_extras_are_uploaded(row):
    method = row.method
    for stage in stages(method):
        upload = update(method, midway(method), stage=stage).upload
        expected = {leaf for leaf in leaves_of(method) if method.shares(leaf, stage)}
        assert set(upload) == expected | set(method.extras())
        assert not expected & set(method.extras())
        if not row.heads or stage.tuning:
            assert not any(is_head(leaf) for leaf in upload)


@every
def test_uploaded_parts_are_as_documented(row):
    # Written down here once more, so that a slip in shares() does not pass unseen.
    shared = {leaf for leaf in leaves_of(row.method) if row.method.shares(leaf, Stage(1))}
    if row.method.name == "local":
        assert shared == set()
    else:
        assert shared == {leaf for leaf in leaves_of(row.method) if row.heads or not is_head(leaf)}


@every
def test_what_one_client_keeps_reaches_no_other(row):
    method = row.method
    state = all_rounds(method)[-1].state
    common = [*leaves_of(method).values()]
    own = [
        [value for _, value in tensors_in(slots) if value.numel() > 1 and not any(map(value.equal, common))]
        for slots in state.private
    ]
    elsewhere = [*state.shared.values()] if not row.heads else []
    for i, kept in enumerate(own):
        others = elsewhere + [value for j, values in enumerate(own) if j != i for value in values]
        constant = [value for value in kept if value.unique().numel() == 1]  # mixing weights that are still one
        for value in kept:
            if not any(value is c for c in constant):
                assert not any(map(value.equal, others))


@every
def test_a_client_does_not_depend_on_what_others_keep(row):
    method, state = row.method, midway(row.method)
    changed = tuple(
        slots if i == 0 else {slot: {k: moved(v) for k, v in leaves.items()} for slot, leaves in slots.items()}
        for i, slots in enumerate(state.private)
    )
    net = functional(network(method.client_branch))
    schedule = RoundSchedule(method, PLAN, 3, ((0, 1),) * PLAN.rounds)
    for stage in stages(method):
        after = PLAN.rounds - 1 if stage.tuning else state.round
        assert schedule.stage(after + 1) == stage
        one, other = (
            play_round(schedule, net, federation(), state._replace(round=after, private=private)).state.private
            for private in (state.private, changed)
        )
        same(dict(tensors_in(one[0])), dict(tensors_in(other[0])))
        # Of FedPAC's heads the server's mixture counts, not what the client kept.
        if any(state.private[1].values()) and method != FedPAC(variant="original"):
            found = dict(tensors_in(other[1]))
            assert any(not value.equal(found[name]) for name, value in tensors_in(one[1]))  # the change did matter


@every
def test_an_update_is_pure(row):
    method, state = row.method, midway(row.method)
    for stage in stages(method):
        given = batches(method, stage, 0)
        inputs = flat(state) | {
            f"{i}/{j}/{k}": t for i, s in enumerate(given) for j, b in enumerate(s) for k, t in enumerate(b)
        }
        before = {name: value.clone() for name, value in inputs.items()}
        versions = {name: value._version for name, value in inputs.items()}
        first = update(method, state, stage=stage, given=given)
        same(inputs, before)
        assert {name: value._version for name, value in inputs.items()} == versions
        same(flat(first), flat(update(method, state, stage=stage, given=given)))
        assert not any(value.requires_grad for value in [*inputs.values(), *flat(first).values()])


@every
def test_aggregation_is_pure(row):
    method, state = row.method, midway(row.method)
    uploads = [update(method, state, i).upload for i in range(3)]
    given = dict(tensors_in({"shared": state.shared} | {str(i): upload for i, upload in enumerate(uploads)}))
    before = {name: value.clone() for name, value in given.items()}
    weights = federation().weights
    once, again = (method.aggregate(state.shared, uploads, weights) for _ in range(2))
    same(given, before)
    same(once, again)


@every
@pytest.mark.parametrize("after", [2, 5])
def test_a_resumed_run_is_the_uninterrupted_one(row, after, tmp_path):
    whole = all_rounds(row.method, torch.float32)
    path = tmp_path / "state.safetensors"
    save_state(path, whole[after - 1].state)
    rest = play(row.method, load_state(path), dtype=torch.float32)
    assert [played.state.round for played in rest] == list(range(after + 1, PLAN.rounds + 1))
    for resumed, straight in zip(rest, whole[after:], strict=True):
        same(flat(resumed.state), flat(straight.state))
        assert resumed.loss == straight.loss


@every
def test_masked_places_of_a_batch_do_not_count(row):
    method, state = row.method, midway(row.method)
    generator = torch.Generator().manual_seed(5)
    for stage in stages(method):
        plain = [[unmasked(b) for b in stream] for stream in batches(method, stage, 2)]
        assert all(len(b.y) == 7 for stream in plain for b in stream)
        padded = [[with_garbage(b, generator) for b in stream] for stream in plain]
        one, other = (flat(update(method, state, 2, stage=stage, given=given)) for given in (plain, padded))
        assert set(one) == set(other)
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-12, atol=1e-12, msg=name)


def unmasked(b: Batch) -> Batch:
    return Batch(*(field[b.mask] for field in b))


def with_garbage(b: Batch, generator: torch.Generator) -> Batch:
    """Five more places, masked, somewhere in between."""
    order = torch.randperm(len(b.y) + 5, generator=generator)
    x = torch.cat([b.x, 50 * torch.randn(5, COLUMNS, generator=generator, dtype=b.x.dtype)])
    y = torch.cat([b.y, torch.randint(CLASSES, (5,), generator=generator)])
    client = torch.cat([b.client, torch.randint(3, (5,), generator=generator)])
    mask = torch.cat([b.mask, torch.zeros(5, dtype=torch.bool)])
    return Batch(x[order], y[order], client[order], mask[order])


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_precision_of_the_leaves_does_not_change(row, dtype):
    method = row.method
    found = all_rounds(method, dtype)[-1].state
    assert {value.dtype for value in flat(found).values() if value.is_floating_point()} <= {dtype}
    answer = update(method, midway(method, dtype), dtype=dtype)
    assert {value.dtype for value in flat(answer).values() if value.is_floating_point()} == {dtype}
    served = method.serve(method.send(found.shared, 0), found.private[0])
    assert set(served) == set(leaves_of(method))
    assert {value.dtype for value in served.values()} == {dtype}
    assert all(value.isfinite().all() for value in flat(found).values())


@every
def test_the_smallest_number_of_local_steps_works(row):
    """With one step a second phase would get nothing, and whatever it trains would never move."""
    two_phases = row.method.name in ("ditto", "fedrep", "fedpac", "confree", "fedala", "fedas")
    if two_phases:
        with pytest.raises(SettingError, match=r"local_steps=1: .* give at least 2"):
            row.method.phases(Stage(1, tuning=False))
    plan = dataclasses.replace(PLAN, rounds=2, local_steps=2 if two_phases else 1)
    state = play(row.method, begin(row.method), plan=plan)[-1].state
    assert all(value.isfinite().all() for value in flat(state).values())


@every
def test_tuning_does_not_change_the_shared_leaves(row):
    method, rounds = row.method, all_rounds(row.method)
    assert method.tuning_rounds(800) == row.tuning
    tuning = method.tuning_rounds(PLAN.rounds)
    assert [played.stage.tuning for played in rounds] == [False] * (PLAN.rounds - tuning) + [True] * tuning
    assert (tuning > 0) == (row.tuning > 0)
    for before, played in itertools.pairwise(rounds):
        if played.stage.tuning:
            same(before.state.shared, played.state.shared)
            for i in range(3):
                one, other = (method.serve(state.shared, state.private[i]) for state in (before.state, played.state))
                assert not all(value.equal(other[leaf]) for leaf, value in one.items())
        elif before.state.shared:
            assert any(not value.equal(played.state.shared[leaf]) for leaf, value in before.state.shared.items())


@every
def test_a_client_that_does_not_answer_keeps_its_state(row):
    method, state = row.method, midway(row.method)
    answering = [(), (), (0, 2), (), (1,), ()]
    seen = [state, *(played.state for played in play(method, state, only=answering))]
    for before, after in itertools.pairwise(seen):
        here = answering[after.round - 1]
        for i in range(3):
            if i not in here:
                assert after.private[i] is before.private[i]
        if not here:
            same(before.shared, after.shared)
    assert method.aggregate(state.shared, [], torch.zeros(0, dtype=torch.float64)) == state.shared


@every
def test_a_client_alone_is_the_whole_federation(row):
    method, state = row.method, midway(row.method)
    net, stage = functional(network(method.client_branch)), Stage(PLAN.local_steps)
    alone = RoundSchedule(method, PLAN, 3, ((1,),) * PLAN.rounds)
    after = play_round(alone, net, federation(), state).state.shared
    one = federation().clients[1]
    lists = []
    for number, phase in enumerate(method.phases(stage)):
        drawn = draw_for(
            Participant.of(federation(), 1), steps=phase.steps, batch_size=16, seed=7, round=3, phase=number
        )
        lists.append([batch(one, 1, one.train, drawn, step) for step in range(phase.steps)])
    lr = torch.tensor(PLAN.rate(3))
    received = method.send(state.shared, 1)
    upload = client_update(method, net, received, state.private[1], lists, stage, PLAN.sgd(lr)).upload
    leaves = [leaf for leaf in upload if leaf in state.shared and leaf not in method.extras()]
    assert leaves or method.name == "local"
    for leaf in leaves:
        if row.alone:
            torch.testing.assert_close(after[leaf], upload[leaf], rtol=0, atol=1e-14)
        else:
            # In the same direction at least.
            ours, theirs = (v[leaf] - state.shared[leaf] for v in (after, upload))
            assert (ours * theirs).sum() > 0.999 * ours.norm() * theirs.norm()


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.weights])
def test_uploads_are_averaged_by_sample_counts(name):
    method = ROWS[name].method
    state = midway(method)
    uploads = [update(method, state, i).upload for i in (0, 2)]
    weights = torch.tensor([40 / 47, 7 / 47], dtype=torch.float64)
    after = method.aggregate(state.shared, uploads, weights)
    for leaf in uploads[0]:
        if leaf in state.shared and leaf not in method.extras():
            wanted = (40 * uploads[0][leaf] + 7 * uploads[1][leaf]) / 47
            torch.testing.assert_close(after[leaf], wanted, rtol=0, atol=1e-14)


@every
def test_bad_settings_are_refused_in_one_line(row):
    row.method.check(800)
    for bad in row.bad:
        changed = [f.name for f in dataclasses.fields(bad) if getattr(bad, f.name) != getattr(row.method, f.name)]
        with pytest.raises(SettingError) as refusal:
            bad.check(800)
        assert "\n" not in str(refusal.value)
        assert any(name in str(refusal.value) for name in changed)
        assert any(str(getattr(bad, name)) in str(refusal.value) for name in changed)


@pytest.mark.parametrize("name", Method.family)
def test_every_setting_can_be_refused(name):
    rows = [row for row in ROWS.values() if row.method.name == name]
    fields = {f.name for f in dataclasses.fields(Method.family[name]) if f.type != "bool"}
    tried = {
        f.name
        for row in rows
        for bad in row.bad
        for f in dataclasses.fields(bad)
        if getattr(bad, f.name) != getattr(row.method, f.name)
    }
    assert tried == fields
