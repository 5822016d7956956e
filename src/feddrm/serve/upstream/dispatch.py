"""Asking clients in the order of the ranking: the next one where one fails, several where they are consulted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from feddrm.errors import FeddrmError
from feddrm.router.policy import consult
from feddrm.serve.http.decode import Array
from feddrm.serve.loaded_router import Row
from feddrm.serve.oip.codec import numbers, write_infer
from feddrm.serve.upstream.upstreams import Declined, NoAnswer, Upstream

Classes = NDArray[np.float64]
DECLINED = "does not take this"
NEAR = 1e-6  # probabilities travel with 24 bits


@dataclass
class Outcome:
    """What became of one sample: answers by client, with milliseconds, and who failed."""

    answers: dict[int, Classes] = field(default_factory=dict)
    milliseconds: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    def told(self, names: Sequence[str]) -> tuple[str, str]:
        """Who answered and who failed, for the audit log."""
        failed = ",".join(f"{names[c]}:{reason}" for c, reason in self.failed.items())
        return ",".join(names[c] for c in self.answers), failed

    def mixture(self, row: Row) -> tuple[Classes, dict[int, float]] | None:
        """The answers mixed by the router's weights, renormalised over who answered; None if nobody did."""
        if not self.answers:
            return None
        clients = row.order(self.answers)
        weights = torch.tensor([[row.probabilities[c] for c in clients]], dtype=torch.float64)
        if float(weights.sum()) <= 0:
            weights = torch.ones_like(weights)  # fallbacks so unlikely that their weights are zero
        log_weights = weights.log().log_softmax(1)
        answers = torch.from_numpy(np.stack([self.answers[c] for c in clients])).log()[:, None, :]
        mixed = consult(log_weights, answers)[0].exp().numpy()
        return mixed, dict(zip(clients, log_weights[0].exp().tolist(), strict=True))


async def ask_clients(
    kind: str,
    x: Array,
    rows: Sequence[Row],
    names: Sequence[str],
    peers: Mapping[str, Upstream],
    *,
    classes: int,
    k: int = 1,
    without: Sequence[str] = (),
    deadline: float,
) -> list[Outcome]:
    """``k`` answers for every sample from its best clients, or as many as can be had before the deadline.

    Samples that go to one client go in one request. Where a client fails, its samples go to the next
    of their own rankings.
    """
    until = time.monotonic() + deadline
    possible = [c for c, name in enumerate(names) if name in peers and name not in without]
    orders = [row.order(possible) for row in rows]
    outcomes = [Outcome() for _ in rows]
    while (left := until - time.monotonic()) > 0:
        groups: dict[int, list[int]] = {}
        for number, (order, outcome) in enumerate(zip(orders, outcomes, strict=True)):
            for _ in range(k - len(outcome.answers)):
                if order:
                    groups.setdefault(order.pop(0), []).append(number)
        if not groups:
            break
        found = await asyncio.gather(
            *(_ask(peers[names[client]], kind, x[places], classes, left) for client, places in groups.items())
        )
        for (client, places), (answer, milliseconds) in zip(groups.items(), found, strict=True):
            for at, number in enumerate(places):
                if isinstance(answer, str):
                    outcomes[number].failed[client] = answer
                else:
                    outcomes[number].answers[client] = answer[at]
                    outcomes[number].milliseconds[client] = milliseconds
    return outcomes


async def _ask(peer: Upstream, kind: str, x: Array, classes: int, left: float) -> tuple[Classes | str, float]:
    """Class probabilities [n, K], or why there are none."""
    if (reason := peer.why_not) is not None:
        return reason, 0.0
    body, headers = write_infer("input" if kind == "inputs" else "features", x)
    path, limit = f"/v2/models/{quote(peer.name, safe='')}/infer", 2**16 + len(x) * (64 * classes + 1024)
    began = time.perf_counter()
    try:
        with peer.request():
            async with asyncio.timeout(left):
                answer = await peer.send("POST", path, limit, content=body, headers=headers)
            found = _probabilities(*answer, len(x), classes, peer.classes)
    except TimeoutError:
        return "time-out", 0.0
    except (NoAnswer, Declined) as error:
        return str(error), 0.0
    except Exception as error:  # whatever a client does, its samples go to the next
        return type(error).__name__, 0.0
    return found, 1e3 * (time.perf_counter() - began)


def _probabilities(status: int, body: bytes, rows: int, classes: int, names: Sequence[str]) -> Classes:
    """Checked as strictly as a stranger's input: a client may be broken."""
    if status in (413, 415, 422):
        raise Declined(DECLINED)
    if status != 200:
        raise NoAnswer(f"refused ({status})")
    try:
        outputs: list[dict[str, Any]] = orjson.loads(body)["outputs"]
        data = next(out["data"] for out in outputs if out["name"] == "probabilities")
        labels = next((out["data"] for out in outputs if out["name"] == "label"), None)
        found = numbers(data, np.dtype("float64"), "probabilities").reshape(rows, classes)
    except (ValueError, KeyError, TypeError, StopIteration, FeddrmError) as error:
        raise NoAnswer("answered something else than probabilities") from error
    if not np.isfinite(found).all() or (found < 0).any() or (abs(found.sum(1) - 1) > 1e-3).any():
        raise NoAnswer("answered numbers that are no probabilities")
    if names and labels is not None and not _agree(labels, found, names):
        raise NoAnswer("answered by other classes")
    return found


def _agree(labels: Any, found: Classes, names: Sequence[str]) -> bool:
    """Whether its labels are our names of what it finds likeliest: a client of another run has others.

    Where several are as likely but for rounding, any of them will do; so will its number, which is what a
    client says that knows no names.
    """
    if not isinstance(labels, list) or len(labels) != len(found):
        return False
    for label, best, row in zip(labels, found.argmax(1).tolist(), found, strict=True):
        if label != names[best]:
            near = np.flatnonzero(row >= row[best] - NEAR).tolist()
            if not any(label in (names[i], str(i)) for i in near):
                return False
    return True
