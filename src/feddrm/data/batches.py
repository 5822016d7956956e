"""Batches of fixed shape: which samples and which crops a client uses at each step of a round's phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from feddrm.data.client import Client, Split
from feddrm.data.crop import RandomResizedCrop, take
from feddrm.data.federation import Federation
from feddrm.errors import SettingError


class Batch(NamedTuple):
    """The input of one step. ``mask`` is False at the places of a batch that hold no sample."""

    x: Tensor
    y: Tensor
    client: Tensor
    mask: Tensor


class Draw(NamedTuple):
    """All random choices of one phase: sample numbers [step, place], mask, and crop boxes [step, place, 4]."""

    samples: Tensor
    mask: Tensor
    boxes: Tensor | None

    def to(self, device: torch.device | str) -> Draw:
        boxes = None if self.boxes is None else self.boxes.to(device)
        return Draw(self.samples.to(device), self.mask.to(device), boxes)


def generator_for(*key: int) -> torch.Generator:
    """A CPU generator that depends on ``key`` alone.

    Draws keyed by (seed, client, round, phase) need no state between rounds. A resumed run and a client
    on another machine therefore train on exactly the same batches.
    """
    state = np.random.SeedSequence(key).generate_state(2, np.uint32)
    generator = torch.Generator()
    generator.manual_seed(int(state[0]) << 31 ^ int(state[1]))
    return generator


def draw(
    count: int,
    steps: int,
    batch_size: int,
    generator: torch.Generator,
    *,
    crop: RandomResizedCrop | None = None,
    size: tuple[int, int] = (0, 0),
) -> Draw:
    """Draw the batches of one phase: without replacement from a shuffle of all samples, then from the next shuffle.

    The last batch of a shuffle holds the remaining samples, and its other places are masked. A client
    with fewer samples than a batch uses all of them at every step.
    """
    if batch_size < 1 or steps < 0 or count < 1:
        raise SettingError(f"cannot draw {steps} batches of {batch_size} from {count} samples: all must be positive")
    samples = torch.zeros(steps, batch_size, dtype=torch.int64)
    mask = torch.zeros(steps, batch_size, dtype=torch.bool)
    shuffled, used = torch.empty(0, dtype=torch.int64), count
    for step in range(steps):
        if used >= count:
            shuffled, used = torch.randperm(count, generator=generator), 0
        part = shuffled[used : used + batch_size]
        samples[step, : len(part)] = part
        mask[step, : len(part)] = True
        used += len(part)
    boxes = None
    if crop is not None:
        boxes = crop.boxes(steps * batch_size, *size, generator).view(steps, batch_size, 4)
    return Draw(samples, mask, boxes)


@dataclass(frozen=True, eq=False)
class Participant:
    """One client as training needs it: its number keys every draw, ``crop`` is the federation's random crop."""

    number: int
    client: Client
    crop: RandomResizedCrop | None = None

    @classmethod
    def of(cls, federation: Federation, number: int) -> Participant:
        """The client with this number."""
        return cls(number, federation.clients[number], federation.crop)


def draw_for(participant: Participant, *, steps: int, batch_size: int, seed: int, round: int, phase: int) -> Draw:
    """The draw of one client, round and phase. It depends on the arguments alone, on every machine."""
    samples = participant.client.train
    return draw(
        len(samples),
        steps,
        batch_size,
        generator_for(seed, participant.number, round, phase),
        crop=participant.crop,
        size=tuple(samples.x.shape[-2:]) if participant.crop else (0, 0),  # type: ignore[arg-type]
    )


def batch(client: Client, number: int, split: Split, drawn: Draw, step: int) -> Batch:
    """The batch of one step of a draw, as network input of the client."""
    index = drawn.samples[step]
    boxes = None if drawn.boxes is None else drawn.boxes[step]
    x = client.view(split.x[index] if boxes is None else take(split.x, index), boxes)
    return Batch(x, split.y[index], torch.full_like(index, number), drawn.mask[step])
