"""Asking clients for predictions: best client first, the next one where a client fails, several to consult."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from feddrm.errors import FeddrmError
from feddrm.router.label_sets import ROUNDING, SHARE, mixed_p_values
from feddrm.router.policy import consult
from feddrm.serve.http.decode import Array
from feddrm.serve.http.number_array import number_array
from feddrm.serve.oip.codec import write_infer
from feddrm.serve.telemetry.tracing import outgoing_headers, span
from feddrm.serve.upstream.upstreams import TIME_OUT, Declined, Upstream, UpstreamFailure

ClassProbabilities = NDArray[np.float64]
DECLINED = "does not take this"
NO_SETS = "has no scores for label sets"
REFUSED_KEY = "refused the gateway's API key (401): correct its key_env or key_file in clients.yaml"
TOLERANCE = 1e-6  # probabilities are sent with 24 bits


@dataclass(frozen=True, slots=True)
class Question:
    """One sample's clients, best first, and the router's probabilities of all clients.

    No further client is asked once those that failed hold more than ``may_lose`` of the probability: the answer would
    be withheld. With ``label_miss`` clients are asked until those that answered hold enough of the
    probability for a label set.
    """

    ranking: Sequence[int]
    probabilities: Sequence[float]
    may_lose: float = math.inf
    label_miss: float | None = None


@dataclass
class SampleAnswers:
    """What the clients answered about one sample, by client number: probabilities, milliseconds, failures.

    ``p_values`` of the classes are there if a label set was requested.
    """

    probabilities: dict[int, ClassProbabilities] = field(default_factory=dict)
    p_values: dict[int, ClassProbabilities] = field(default_factory=dict)
    milliseconds: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    def summary(self, names: Sequence[str]) -> tuple[str, str]:
        """Who answered and who failed, for the audit log."""
        failed = ",".join(f"{names[c]}:{reason}" for c, reason in self.failed.items())
        return ",".join(names[c] for c in self.probabilities), failed

    def lost(self, probabilities: Sequence[float]) -> float:
        """How much of the router's probability the clients hold that failed."""
        return math.fsum(probabilities[client] for client in self.failed)

    def mixture(
        self, ranking: Sequence[int], probabilities: Sequence[float]
    ) -> tuple[ClassProbabilities, dict[int, float]] | None:
        """The mixed class probabilities, and the weight of every client that answered; None if none did.

        The weights are the router's ``probabilities`` of the clients, renormalised over those that answered.
        """
        if not self.probabilities:
            return None
        clients = [client for client in ranking if client in self.probabilities]
        chosen = torch.tensor([[probabilities[c] for c in clients]], dtype=torch.float64)
        if float(chosen.sum()) <= 0:
            chosen = torch.ones_like(chosen)  # fallbacks so unlikely that their weights are zero
        log_weights = chosen.log().log_softmax(1)
        answers = torch.from_numpy(np.stack([self.probabilities[c] for c in clients])).log()[:, None, :]
        mixed = consult(log_weights, answers)[0].exp().numpy()
        return mixed, dict(zip(clients, log_weights[0].exp().tolist(), strict=True))

    def mixed_p_values(self, probabilities: Sequence[float]) -> torch.Tensor | None:
        """The p-values [1, K] for a label set; None unless those that answered hold enough of the probability."""
        clients = list(self.p_values)
        weights = torch.tensor([[probabilities[c] for c in clients]], dtype=torch.float64)
        if float(weights.sum()) < SHARE - ROUNDING:
            return None
        answers, p_values = (
            torch.from_numpy(np.stack([values[c] for c in clients]))[:, None]
            for values in (self.probabilities, self.p_values)
        )
        return mixed_p_values(weights.log(), answers, p_values)


async def ask_clients(
    kind: str,
    x: Array,
    questions: Sequence[Question],
    upstreams: Sequence[Upstream | None],
    *,
    classes: int,
    k: int = 1,
    deadline: float,
) -> list[SampleAnswers]:
    """The answers of every sample's ``k`` best clients, or of as many as answer before the deadline (in seconds).

    ``upstreams`` has one entry per client, None for a client that is away. Samples for the same client go in one
    request. Where a client fails, each of its samples goes to the next client of the sample's own ranking, unless too
    much of the probability is lost (:class:`Question`).
    """
    end = time.monotonic() + deadline
    remaining = [[client for client in question.ranking if upstreams[client] is not None] for question in questions]
    answers = [SampleAnswers() for _ in questions]
    while (seconds := end - time.monotonic()) > 0:
        groups = _next_clients(questions, remaining, answers, k)
        if not groups:
            break
        requests = []
        for client, samples in groups.items():
            upstream = upstreams[client]
            assert upstream is not None
            miss = next((questions[i].label_miss for i in samples if questions[i].label_miss is not None), None)
            requests.append(_ask(upstream, kind, x[samples], classes, seconds, miss))
        for (client, samples), reply in zip(groups.items(), await asyncio.gather(*requests), strict=True):
            for row, sample in enumerate(samples):
                if isinstance(reply, str):
                    answers[sample].failed[client] = reply
                else:
                    answers[sample].probabilities[client] = reply.probabilities[row]
                    answers[sample].milliseconds[client] = reply.milliseconds
                    if reply.p_values is not None:
                        answers[sample].p_values[client] = reply.p_values[row]
    return answers


def _next_clients(
    questions: Sequence[Question], remaining: Sequence[list[int]], answers: Sequence[SampleAnswers], k: int
) -> dict[int, list[int]]:
    """The clients to ask next, taken from those that remain, and the samples that each is asked about."""
    groups: dict[int, list[int]] = {}
    for sample, (question, clients, answer) in enumerate(zip(questions, remaining, answers, strict=True)):
        if answer.failed and answer.lost(question.probabilities) > question.may_lose:
            continue
        asked = list(answer.probabilities)
        share = 0.0 if question.label_miss is None else SHARE - ROUNDING
        while clients and (len(asked) < k or math.fsum(question.probabilities[c] for c in asked) < share):
            asked.append(clients.pop(0))
            groups.setdefault(asked[-1], []).append(sample)
    return groups


class ClientReply(NamedTuple):
    """One client's class probabilities [n, K], their p-values if they were requested, and the milliseconds it took."""

    probabilities: ClassProbabilities
    p_values: ClassProbabilities | None
    milliseconds: float


async def _ask(
    upstream: Upstream, kind: str, x: Array, classes: int, seconds: float, label_miss: float | None
) -> ClientReply | str:
    """A client's reply, or the reason why there is none."""
    if (reason := upstream.unavailable_because) is not None:
        return reason
    with span("ask client", **{"feddrm.client": upstream.name, "feddrm.samples": len(x)}) as asked:
        reply = await _exchange(upstream, kind, x, classes, seconds, label_miss, outgoing_headers(asked))
        if isinstance(reply, str):
            asked.fail(reply)
    return reply


async def _exchange(
    upstream: Upstream,
    kind: str,
    x: Array,
    classes: int,
    seconds: float,
    label_miss: float | None,
    trace: Mapping[str, str],
) -> ClientReply | str:
    parameters = None if label_miss is None else {"label_miss": label_miss}
    body, headers = write_infer("input" if kind == "inputs" else "features", x, parameters)
    names = sum(len(name) + 8 for name in upstream.classes) if label_miss is not None else 0
    limit = 2**16 + len(x) * ((64 if label_miss is None else 128) * classes + names + 1024)
    path = f"/v2/models/{quote(upstream.name, safe='')}/infer"
    started = time.perf_counter()
    try:
        with upstream.request():
            async with asyncio.timeout(seconds):
                status, content = await upstream.send("POST", path, limit, content=body, headers={**headers, **trace})
            answered = _read_probabilities(status, content, len(x), classes, upstream.classes, label_miss is not None)
    except TimeoutError:
        return TIME_OUT
    except (UpstreamFailure, Declined) as error:
        return str(error)
    except Exception as error:  # whatever a client does, its samples go to the next one
        return type(error).__name__
    return ClientReply(*answered, 1e3 * (time.perf_counter() - started))


def _read_probabilities(
    status: int, body: bytes, rows: int, classes: int, names: Sequence[str], sets: bool
) -> tuple[ClassProbabilities, ClassProbabilities | None]:
    """The probabilities of a client's response, and its p-values if label ``sets`` need them.

    They are checked as strictly as a caller's input: the client may be broken.
    """
    if status in (413, 415, 422):
        raise Declined(DECLINED)
    if status == 409 and sets:
        raise Declined(NO_SETS)
    if status != 200:
        raise UpstreamFailure(REFUSED_KEY if status == 401 else f"refused ({status})")
    try:
        outputs = {out["name"]: out.get("data") for out in orjson.loads(body)["outputs"]}
        labels = outputs.get("label")
        probabilities = number_array(outputs["probabilities"], np.dtype("float64"), "it").reshape(rows, classes)
        p_values = None
        if sets and "p_values" in outputs:
            p_values = number_array(outputs["p_values"], np.dtype("float64"), "it").reshape(rows, classes)
    except (ValueError, KeyError, TypeError, AttributeError, FeddrmError) as error:
        raise UpstreamFailure("answered something else than probabilities") from error
    if (
        not np.isfinite(probabilities).all()
        or (probabilities < 0).any()
        or (abs(probabilities.sum(1) - 1) > 1e-3).any()
    ):
        raise UpstreamFailure("answered numbers that are no probabilities")
    if names and labels is not None and not _labels_fit(labels, probabilities, names):
        raise UpstreamFailure("answered by other classes")
    if sets and p_values is None:  # a server of another kind
        raise Declined(NO_SETS)
    if p_values is not None and not ((p_values >= 0) & (p_values <= 1 + TOLERANCE)).all():
        raise UpstreamFailure("answered numbers that are no p-values")
    return probabilities, p_values


def _labels_fit(labels: Any, probabilities: ClassProbabilities, names: Sequence[str]) -> bool:
    """Whether each label is our name of the likeliest class: a client of another run has other names.

    Where several classes are equally likely up to rounding, each of them fits. So does the number of the class, which
    a client without class names answers.
    """
    if not isinstance(labels, list) or len(labels) != len(probabilities):
        return False
    for label, best, row in zip(labels, probabilities.argmax(1).tolist(), probabilities, strict=True):
        if label != names[best]:
            ties = np.flatnonzero(row >= row[best] - TOLERANCE).tolist()
            if not any(label in (names[i], str(i)) for i in ties):
                return False
    return True
