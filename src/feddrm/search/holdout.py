"""Samples held out of the training data: a search compares on them, so that test samples stay unseen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feddrm.data import Client, Federation
from feddrm.data.partition import split_rows
from feddrm.errors import FeddrmError, SettingError


def hold_out(federation: Federation, fraction: float, seed: int) -> Federation:
    """The federation with a part of every client's training samples in the place of its test samples."""
    if not 0 < fraction < 1:
        raise SettingError(f"held_out={fraction}: give a fraction between 0 and 1, as 0.2")
    rng = np.random.RandomState(seed)
    clients = tuple(_divided(client, fraction, rng) for client in federation.clients)
    return replace(federation, clients=clients, settings={**federation.settings, "held_out": fraction})


def _divided(client: Client, fraction: float, rng: np.random.RandomState) -> Client:
    train = client.train
    subject = None if train.subject is None else train.subject.numpy()
    first, rest = split_rows(len(train), rng, round(1 - fraction, 12), subject)
    if not len(first) or not len(rest):
        few = f"{len(train)} training samples" + ("" if subject is None else f" of {train.subjects} subjects")
        raise FeddrmError(
            f"client '{client.name}' has {few}: too few to hold out {fraction:g} of them: give it more, or change "
            "held_out"
        )
    return replace(client, train=train.at(first), test=train.at(rest))
