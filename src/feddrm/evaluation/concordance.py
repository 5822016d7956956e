"""The C-index of survival models: of pairs of patients whose order is known, the fraction that risks put in order.

Harrell et al., "Evaluating the yield of medical tests", JAMA 247 (1982). Risks are minus the expected number of
intervals that are survived, a function of survival probabilities. So risks by different clients' models are on one
scale, and the C-index of a system compares patients of all clients, each with the risk by the model that answers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from feddrm.errors import DivergedError
from feddrm.evaluation.answers_by_sample import AnswersBySample
from feddrm.tasks import Survival

PAIRS = 2**24  # in memory at a time


def c_index(risk: Tensor, labels: Tensor) -> float | None:
    """The C-index of risks [N] for labels of :class:`feddrm.tasks.Survival`; None if no pair can be compared.

    A pair counts if the one patient's event was seen before the other's time, or on the day on which the other's
    follow-up ended. The patient with the earlier event should have the higher risk. Equal risks count half. So does
    lifelines; it refuses risks that are NaN, too, because no comparison with them holds.
    """
    if missing := int(risk.isnan().sum()):
        raise DivergedError(
            f"{missing} of {len(risk)} risks are NaN, so their patients have no order: train with a lower --lr, or "
            f"scale the data"
        )
    days, event = labels // 2, labels % 2 == 1
    right = tied = pairs = 0
    for part in torch.split(event.nonzero()[:, 0], max(1, PAIRS // max(1, len(labels)))):
        first = days[part, None]
        comparable = (first < days) | ((first == days) & ~event)
        pairs += int(comparable.sum())
        right += int((comparable & (risk[part, None] > risk)).sum())
        tied += int((comparable & (risk[part, None] == risk)).sum())
    return (right + tied / 2) / pairs if pairs else None


def client_c_indices(risk: Tensor, labels: Tensor, origin: Tensor, clients: int) -> list[float | None]:
    """The C-index among the patients of every client."""
    return [c_index(risk[origin == client], labels[origin == client]) for client in range(clients)]


def average_c_index(by_client: Sequence[float | None], weights: Tensor) -> float | None:
    """The clients' own C-indices, averaged by ``weights`` over the clients that have one."""
    known = [(value, weight) for value, weight in zip(by_client, weights.tolist(), strict=True) if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if known else None


def _risks(outcomes: AnswersBySample) -> dict[str, Tensor]:
    """The risks [N] by every way to answer: own and global model, mean of all models' curves, and the chosen models."""
    task = outcomes.task
    assert isinstance(task, Survival)
    models = {way: curve for way, curve in outcomes.answers.items() if way not in outcomes.routes}
    curves = {**models, "averaged": outcomes.votes, **outcomes.answers}
    return {way: task.risk(curve) for way, curve in curves.items()}


def survival_figures(outcomes: AnswersBySample, weights: Tensor) -> dict[str, Any]:
    """Every C-index of one round, under the names of ``summary.json``."""
    risks, labels = _risks(outcomes), outcomes.labels
    pooled = {name: c_index(risk, labels) for name, risk in risks.items()}
    own = client_c_indices(risks["own"], labels, outcomes.origin, outcomes.clients)
    return {
        "average_c_index": average_c_index(own, weights),
        "oracle_c_index": pooled.pop("own"),
        "global_c_index": pooled.get("global"),
        "system_c_index": pooled,
    }


def survival_rows(outcomes: AnswersBySample, names: Sequence[str]) -> list[dict[str, Any]]:
    """One row per client: its ``test`` patients, the ``events`` among them, and the C-index of every way to answer.

    ``recall_...`` is the fraction of its patients that are routed to the client itself.
    """
    labels, origin = outcomes.labels, outcomes.origin
    columns = {name: client_c_indices(risk, labels, origin, len(names)) for name, risk in _risks(outcomes).items()}
    for name, chosen in outcomes.routes.items():
        home = [(chosen[origin == client] == client).double().mean() for client in range(len(names))]
        columns[name.replace("head_", "recall_")] = [float(share) for share in home]
    own = [labels[origin == client] for client in range(len(names))]
    return [
        {"name": name, "test": len(own[i]), "events": int((own[i] % 2).sum())}
        | {key: column[i] for key, column in columns.items()}
        for i, name in enumerate(names)
    ]
