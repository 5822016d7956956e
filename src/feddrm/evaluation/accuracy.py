"""Accuracies as pure functions of logits and labels; all are fractions in [0, 1].

*Average* accuracy: every client's model predicts the client's own samples, and clients are averaged
by ``weights``. Only the ratios of the weights matter; they come from the training sizes. *System*
accuracy: the origin of a sample is unknown, so the m models vote or a router chooses one; every sample
of the pooled test set counts the same. The *oracle* routes every sample to its own client.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from feddrm.errors import FeddrmError, SettingError
from feddrm.evaluation.answers_by_sample import AnswersBySample, check_weights, class_counts, head_routes, route, routed
from feddrm.evaluation.concordance import survival_figures, survival_rows
from feddrm.evaluation.predictions import Predictions
from feddrm.registry import check_choice
from feddrm.rules import RULES

TIES = ("smallest", "cuda")

WHOLE = 100  # clients: of more, only the cells of a confusion matrix that are not zero are written
WARP = 32  # threads that CUDA reduces in registers
LANES = 1024  # threads of a block, two votes each


def average_accuracy(predictions: Predictions | AnswersBySample, weights: Tensor) -> float:
    """Every client's model on the client's own test set, averaged over clients by ``weights``."""
    outcomes = AnswersBySample.of(predictions)
    return _weighted(_by_client(outcomes.right("own"), outcomes.origin, outcomes.clients), weights)


def oracle_accuracy(predictions: Predictions | AnswersBySample) -> float:
    """System accuracy of a router that knows the client of every sample."""
    return _share(AnswersBySample.of(predictions).right("own"))


def global_accuracy(predictions: Predictions | AnswersBySample) -> float | None:
    """The one shared model on the pooled test set; None where the method has none."""
    outcomes = AnswersBySample.of(predictions)
    return _share(outcomes.right("global")) if "global" in outcomes.answers else None


def system_accuracy(predicted: Tensor, labels: Tensor) -> float:
    """The fraction of the pooled samples whose predicted class is right."""
    return _share(predicted == labels)


def vote(logits: Tensor, ties: str = "smallest") -> Tensor:
    """The class that most of the m models choose, for logits [m, N, K].

    ``ties``: ``"smallest"`` takes the smallest of the leading classes (``torch.mode`` on a CPU);
    ``"cuda"`` takes the one that ``torch.mode`` takes on a GPU, which made the paper's numbers.
    """
    return _elected(class_counts(logits), len(logits), ties)


def _elected(counts: Tensor, clients: int, ties: str) -> Tensor:
    check_choice("ties", ties, TIES)
    if ties == "smallest":
        return counts.argmax(1)
    rank = torch.tensor(_cuda_ranks(clients), device=counts.device)
    last = (counts.cumsum(1) - 1).clamp(min=0)  # where each class's run ends among the sorted votes
    leads = counts == counts.amax(1, keepdim=True)
    return torch.where(leads, rank[last], clients).argmin(1)


def votes(predictions: Predictions | AnswersBySample) -> dict[str, float]:
    """How much the vote depends on its tie rule: the fraction of ``tied`` samples, and the accuracy by each rule.

    ``leading`` is the fraction of samples whose right class leads, alone or tied: no tie rule can be better.
    """
    outcomes = AnswersBySample.of(predictions)
    counts, labels = outcomes.votes, outcomes.labels
    leads = counts == counts.amax(1, keepdim=True)
    rules = TIES if outcomes.clients <= 2 * LANES else TIES[:1]
    return {
        "tied": float((leads.sum(1) > 1).double().mean()),
        "leading": float(leads[torch.arange(len(labels), device=leads.device), labels].double().mean()),
        **{ties: system_accuracy(_elected(counts, outcomes.clients, ties), labels) for ties in rules},
    }


@lru_cache(maxsize=16)
def _cuda_ranks(votes: int) -> list[int]:
    """The rank of each place of the sorted votes: among runs of equal length, the smallest rank wins.

    The kernel sorts the votes and identifies a run of equal votes by the place of its last one. Thread t
    reduces the places 2t and 2t + 1. The 32 threads of a warp reduce by halves (t with t + 16, + 8, ...,
    + 1), and so do the warps among themselves. Each step keeps the lower thread if counts are equal. The
    last step, even threads against odd ones, therefore decides first: the smallest number with its bits
    reversed wins (threads 0, 2, 1, 3 for eight votes). Two runs can end in one thread only where no two
    votes agree; then the first place wins, which is the smallest class.
    """
    if votes > 2 * LANES:
        raise SettingError(f"ties='cuda' is known for up to {2 * LANES} clients, not {votes}: use ties='smallest'")

    def preference(place: int) -> tuple[str, str, int]:
        warp, thread = divmod(place // 2, WARP)
        return f"{warp:05b}"[::-1], f"{thread:05b}"[::-1], place % 2

    order = sorted(range(votes), key=preference)
    ranks = [0] * votes
    for rank, place in enumerate(order):
        ranks[place] = rank
    return ranks


def routed_predictions(logits: Tensor, routes: Tensor) -> Tensor:
    """The class that each sample's chosen client predicts, for logits [m, N, K] and routes [N]."""
    return routed(logits, routes).argmax(-1)


def client_accuracy(client_logits: Tensor, origin: Tensor, weights: Tensor, rule: str = "posterior") -> float:
    """The fraction of every client's samples that are routed to it, averaged over clients by ``weights``.

    The paper's figure is that of the posterior rule, even where the density rule routes.
    """
    return routes_accuracy(route(client_logits, weights, rule), origin, weights)


def routes_accuracy(routes: Tensor, origin: Tensor, weights: Tensor) -> float:
    """The same for the clients [N] that were chosen."""
    return _weighted(_by_client(routes == origin, origin, len(weights)), weights)


def confusion(routes: Tensor, origin: Tensor, clients: int) -> Tensor:
    """How many samples of each client (row) are routed to each client (column)."""
    return torch.bincount(origin * clients + routes, minlength=clients**2).view(clients, clients)


def confusion_as_plain(counts: Tensor) -> list[list[int]] | dict[str, list[int]]:
    """The matrix for a JSON file: whole for few clients, the cells that are not zero for many.

    A thousand clients have a million cells, and as many lines, for a few thousand samples.
    """
    if len(counts) <= WHOLE:
        rows: list[list[int]] = counts.tolist()
        return rows
    origin, routes = counts.nonzero(as_tuple=True)
    return {"from": origin.tolist(), "to": routes.tolist(), "count": counts[origin, routes].tolist()}


def per_client(
    predictions: Predictions | AnswersBySample, names: Sequence[str], weights: Tensor, ties: str = "smallest"
) -> list[dict[str, Any]]:
    """One row per client: the accuracy on its ``test`` samples of its ``own`` model and of every other way.

    ``head_density`` and ``head_posterior`` are accuracies after routing by that rule; ``recall_...`` is
    the fraction routed to the client itself. A value is None where the method has no such model.
    """
    outcomes = AnswersBySample.of(predictions, weights)
    clients, labels, origin, routes = outcomes.clients, outcomes.labels, outcomes.origin, outcomes.routes
    if len(names) != clients:
        raise FeddrmError(f"{len(names)} names for {clients} clients: give one each")
    if not outcomes.task.classifies:
        return survival_rows(outcomes, names)
    correct: dict[str, Tensor | None] = {
        "own": outcomes.right("own"),
        "global": outcomes.right("global") if "global" in outcomes.answers else None,
        "vote": _elected(outcomes.votes, clients, ties) == labels,
    }
    for rule in RULES:
        name = f"head_{rule}"
        correct[name] = outcomes.right(name) if name in routes else None
        correct[f"recall_{rule}"] = routes[name] == origin if name in routes else None
    columns = {
        key: [None] * clients if value is None else _by_client(value, origin, clients).tolist()
        for key, value in correct.items()
    }
    sizes = torch.bincount(origin, minlength=clients).tolist()
    return [
        {"name": name, "test": sizes[i]} | {key: column[i] for key, column in columns.items()}
        for i, name in enumerate(names)
    ]


def evaluate(predictions: Predictions | AnswersBySample, weights: Tensor, ties: str = "smallest") -> dict[str, Any]:
    """Every accuracy of one round, under the names of ``summary.json``; what a method lacks is None or left out.

    Of another task than classification it is the C-index instead (:mod:`feddrm.evaluation.concordance`).
    """
    outcomes = AnswersBySample.of(predictions, weights)
    routes, origin = outcomes.routes, outcomes.origin
    client = {name: routes_accuracy(chosen, origin, weights) for name, chosen in routes.items()}
    if not outcomes.task.classifies:
        return {**survival_figures(outcomes, weights), "client_accuracy": client}
    shared = global_accuracy(outcomes)
    system = {"vote": system_accuracy(_elected(outcomes.votes, outcomes.clients, ties), outcomes.labels)}
    for name in routes:
        system[name] = _share(outcomes.right(name))
    if shared is not None:
        system["global"] = shared
    return {
        "average_accuracy": average_accuracy(outcomes, weights),
        "oracle_accuracy": oracle_accuracy(outcomes),
        "global_accuracy": shared,
        "client_accuracy": client,
        "system_accuracy": system,
    }


def evaluate_participants(predictions: Predictions, participants: Sequence[int], weights: Tensor) -> dict[str, Any]:
    """The figures of one round that need the participants' models and test samples only, averaged over participants.

    ``predictions`` are those of the participants' models, in the order of their numbers, for their own samples.
    The ``weights`` are those of all clients, because the published head may choose any of them.
    """
    numbers = torch.tensor(participants)
    home = {name: chosen == predictions.origin for name, chosen in head_routes(predictions, weights).items()}
    place = torch.searchsorted(numbers.to(predictions.origin), predictions.origin)
    own, shares = AnswersBySample.of(predictions._replace(origin=place)), weights[numbers]
    if own.task.classifies:
        figures = {"average_accuracy": average_accuracy(own, shares), "global_accuracy": global_accuracy(own)}
    else:
        figures = {"average_c_index": survival_figures(own, shares)["average_c_index"]}
    client = {name: _weighted(_by_client(right, place, len(numbers)), shares) for name, right in home.items()}
    return {"clients": len(numbers), **figures, "client_accuracy": client}


def _share(right: Tensor) -> float:
    return int(right.sum()) / len(right)


def _by_client(correct: Tensor, origin: Tensor, clients: int) -> Tensor:
    """The correct fraction of every client's samples (float64, on the CPU)."""
    total, right = (torch.bincount(numbers, minlength=clients).cpu() for numbers in (origin, origin[correct]))
    if not total.all():
        raise FeddrmError(
            f"client {int(total.argmin())} has no test samples: an average over clients needs some of each"
        )
    return right.double() / total


def _weighted(fractions: Tensor, weights: Tensor) -> float:
    check_weights(weights, len(fractions))
    weights = weights.cpu().double()
    return float((weights * fractions).sum() / weights.sum())
