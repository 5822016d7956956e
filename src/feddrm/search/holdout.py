"""Samples held out of the training data: a search compares on them, so that test samples stay unseen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feddrm.data import Client, Federation
from feddrm.data.client import Split
from feddrm.data.partition import split
from feddrm.errors import FeddrmError, SettingError


def hold_out(federation: Federation, fraction: float, seed: int) -> Federation:
    """The federation with a part of every client's training samples in the place of its test samples."""
    if not 0 < fraction < 1:
        raise SettingError(f"held_out={fraction}: give a fraction between 0 and 1, as 0.2")
    rows = [np.arange(len(client.train)) for client in federation.clients]
    parts = split(rows, np.random.RandomState(seed), round(1 - fraction, 12))
    clients = tuple(
        _divided(client, first, rest, fraction) for client, (first, rest) in zip(federation.clients, parts, strict=True)
    )
    return replace(federation, clients=clients, settings={**federation.settings, "held_out": fraction})


def _divided(client: Client, first: np.ndarray, rest: np.ndarray, fraction: float) -> Client:
    if not len(first) or not len(rest):
        raise FeddrmError(
            f"client '{client.name}' has {len(client.train)} training samples: too few to hold out {fraction:g} of "
            f"them: give it more, or change held_out"
        )
    train = client.train
    return replace(client, train=Split(train.x[first], train.y[first]), test=Split(train.x[rest], train.y[rest]))
