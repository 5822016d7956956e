"""Batches: drawn without replacement, keyed by seed, client, round and phase, as the client sees them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feddrm.data import Federation, Participant, RandomResizedCrop, batch, draw, draw_for, generator_for, load
from feddrm.errors import FeddrmError


@pytest.fixture(scope="module")
def digits() -> Federation:
    return load("digits")


@given(samples=st.integers(1, 60), steps=st.integers(0, 12), size=st.integers(1, 20), seed=st.integers(0, 1000))
def test_without_replacement_until_the_samples_run_out(samples: int, steps: int, size: int, seed: int) -> None:
    drawn = draw(samples, steps, size, generator_for(seed))
    assert drawn.samples.shape == drawn.mask.shape == (steps, size)
    per_pass = -(-samples // size)  # batches until everything has been seen once
    for first in range(0, steps, per_pass):
        part, mask = drawn.samples[first : first + per_pass], drawn.mask[first : first + per_pass]
        seen = part[mask].tolist()
        assert len(set(seen)) == len(seen)
        if len(part) == per_pass:
            assert sorted(seen) == list(range(samples))
    assert bool(drawn.mask.any(dim=1).all())
    assert bool((drawn.samples[~drawn.mask] == 0).all())


def test_fresh_shuffle_per_client_round_and_phase(digits: Federation) -> None:
    def first(client: int = 0, round: int = 1, phase: int = 0, seed: int = 0) -> list[int]:
        drawn = draw_for(Participant.of(digits, client), steps=3, batch_size=16, seed=seed, round=round, phase=phase)
        return drawn.samples.flatten().tolist()

    assert first() == first()
    others = [first(client=1), first(round=2), first(phase=1), first(seed=1)]
    assert all(first() != other for other in others)
    assert len({tuple(o) for o in others}) == 4


def test_the_stream_of_a_run_never_changes(digits: Federation) -> None:
    """Runs resume, and sites train, on batches drawn by another version: seeds are part of the format."""
    a, b = np.random.SeedSequence((2025, 3, 7, 1)).generate_state(2, np.uint32).tolist()
    assert (a, b) == (1770096454, 3584467988)
    assert generator_for(2025, 3, 7, 1).initial_seed() == a << 31 ^ b
    drawn = draw_for(Participant.of(digits, 3), steps=4, batch_size=16, seed=2025, round=7, phase=1)
    again = draw(len(digits.clients[3].train), 4, 16, generator_for(2025, 3, 7, 1))
    assert torch.equal(drawn.samples, again.samples)


def test_batches_hold_the_input_of_the_client_s_network(digits: Federation) -> None:
    client = digits.clients[3]
    drawn = draw_for(Participant.of(digits, 3), steps=6, batch_size=32, seed=0, round=1, phase=0)
    for step in range(6):
        x, y, who, mask = batch(client, 3, client.train, drawn, step)
        assert x.shape == (32, 1, 8, 8)
        assert x.dtype == torch.float32
        assert torch.equal(y, client.train.y[drawn.samples[step]])
        assert torch.equal(x, client.view(client.train.x[drawn.samples[step]]))
        assert who.tolist() == [3] * 32
        assert torch.equal(mask, drawn.mask[step])


def test_boxes_come_with_a_crop() -> None:
    drawn = draw(50, 4, 8, generator_for(1), crop=RandomResizedCrop(), size=(32, 32))
    assert drawn.boxes is not None
    assert drawn.boxes.shape == (4, 8, 4)
    plain = draw(50, 4, 8, generator_for(1))
    assert plain.boxes is None
    assert torch.equal(plain.samples, drawn.samples), "crops must not disturb the shuffle"
    assert len(drawn.to("cpu").samples) == 4
    tall = draw(50, 4, 64, generator_for(1), crop=RandomResizedCrop(ratio=(0.4, 0.6)), size=(40, 20)).boxes
    assert tall is not None
    assert (tall[..., 0] + tall[..., 2]).max() == 40
    assert (tall[..., 1] + tall[..., 3]).max() == 20
    assert (tall[..., 2] < 40).any(), "width is to height as the ratio says: otherwise no box would fit"


def test_impossible_batches() -> None:
    with pytest.raises(FeddrmError, match="cannot draw 3 batches of 0 from 10 samples"):
        draw(10, 3, 0, generator_for(0))
