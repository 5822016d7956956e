"""What every method promises of its own work: settings, training, purity, resuming, precision."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from feddrm.data import Batch
from feddrm.engine import load_state, save_state
from feddrm.errors import SettingError
from feddrm.methods import Method, Stage

from .every_method import (
    CLASSES,
    COLUMNS,
    PLAN,
    ROWS,
    accuracy,
    all_rounds,
    batches,
    begin,
    every,
    flat,
    leaves_of,
    midway,
    play,
    same,
    stages,
    update,
)

WITH_ROUNDS = [name for name, member in Method.family.items() if not member.closed_form]  # others: test_closed_form.py


def test_every_method_has_a_row():
    assert {row.method.name for row in ROWS.values()} == set(WITH_ROUNDS)


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
def test_bad_settings_are_refused_in_one_line(row):
    row.method.check(800)
    for bad in row.bad:
        changed = [f.name for f in dataclasses.fields(bad) if getattr(bad, f.name) != getattr(row.method, f.name)]
        with pytest.raises(SettingError) as refusal:
            bad.check(800)
        assert "\n" not in str(refusal.value)
        assert any(name in str(refusal.value) for name in changed)
        assert any(str(getattr(bad, name)) in str(refusal.value) for name in changed)


@pytest.mark.parametrize("name", WITH_ROUNDS)
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
