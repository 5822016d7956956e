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
from feddrm.evaluation.concordance import survival_figures, survival_rows
from feddrm.evaluation.predictions import Predictions
from feddrm.registry import check_choice
from feddrm.rules import RULES, Evidence, Rule

TIES = ("smallest", "cuda")

WARP = 32  # threads that CUDA reduces in registers
LANES = 1024  # threads of a block, two votes each


def average_accuracy(predictions: Predictions, weights: Tensor) -> float:
    """Every client's model on the client's own test set, averaged over clients by ``weights``."""
    correct = routed_predictions(predictions.logits, predictions.origin) == predictions.labels
    return _weighted(_by_client(correct, predictions.origin, len(predictions.logits)), weights)


def oracle_accuracy(predictions: Predictions) -> float:
    """System accuracy of a router that knows the client of every sample."""
    return system_accuracy(routed_predictions(predictions.logits, predictions.origin), predictions.labels)


def global_accuracy(predictions: Predictions) -> float | None:
    """The one shared model on the pooled test set; None where the method has none."""
    if predictions.global_logits is None:
        return None
    return system_accuracy(predictions.global_logits.argmax(-1), predictions.labels)


def system_accuracy(predicted: Tensor, labels: Tensor) -> float:
    """The fraction of the pooled samples whose predicted class is right."""
    return int((predicted == labels).sum()) / len(labels)


def vote(logits: Tensor, ties: str = "smallest") -> Tensor:
    """The class that most of the m models choose, for logits [m, N, K].

    ``ties``: ``"smallest"`` takes the smallest of the leading classes (``torch.mode`` on a CPU);
    ``"cuda"`` takes the one that ``torch.mode`` takes on a GPU, which made the paper's numbers.
    """
    check_choice("ties", ties, TIES)
    counts = _counts(logits)
    if ties == "smallest":
        return counts.argmax(1)
    clients = len(logits)
    rank = torch.tensor(_cuda_ranks(clients), device=logits.device)
    last = (counts.cumsum(1) - 1).clamp(min=0)  # where each class's run ends among the sorted votes
    leads = counts == counts.amax(1, keepdim=True)
    return torch.where(leads, rank[last], clients).argmin(1)


def votes(predictions: Predictions) -> dict[str, float]:
    """How much the vote depends on its tie rule: the fraction of ``tied`` samples, and the accuracy by each rule.

    ``leading`` is the fraction of samples whose right class leads, alone or tied: no tie rule can be better.
    """
    counts, labels = _counts(predictions.logits), predictions.labels
    leads = counts == counts.amax(1, keepdim=True)
    rules = TIES if len(predictions.logits) <= 2 * LANES else TIES[:1]
    return {
        "tied": float((leads.sum(1) > 1).double().mean()),
        "leading": float(leads[torch.arange(len(labels), device=leads.device), labels].double().mean()),
        **{ties: system_accuracy(vote(predictions.logits, ties), labels) for ties in rules},
    }


def _counts(logits: Tensor) -> Tensor:
    """How many of the m models choose each class, [N, K]."""
    _, samples, classes = logits.shape
    cell = logits.argmax(-1) + classes * torch.arange(samples, device=logits.device)
    return torch.bincount(cell.flatten(), minlength=samples * classes).view(samples, classes)


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


def route(client_logits: Tensor, weights: Tensor, rule: str = "density") -> Tensor:
    """The client that answers each of the N samples, for client logits [N, m]; ties go to the smallest number.

    ``weights`` are the clients' training sizes, up to a factor.
    """
    chosen = Rule.find(rule)()
    _check_weights(weights, client_logits.shape[1])
    log_prior = weights.double().log()
    # Equal weights become zeros, so that all rules then agree to the last bit.
    log_prior = (log_prior - log_prior.max()).to(client_logits.device)
    return chosen.scores(Evidence(client_logits, log_prior)).argmax(1)


def head_routes(predictions: Predictions, weights: Tensor) -> dict[str, Tensor]:
    """The clients [N] that the published head chooses by every rule; empty for a method without one."""
    logits = predictions.client_logits
    return {} if logits is None else {f"head_{rule}": route(logits, weights, rule) for rule in RULES}


def routed_predictions(logits: Tensor, routes: Tensor) -> Tensor:
    """The class that each sample's chosen client predicts, for logits [m, N, K] and routes [N]."""
    return logits[routes, torch.arange(len(routes), device=logits.device)].argmax(-1)


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


def per_client(
    predictions: Predictions, names: Sequence[str], weights: Tensor, ties: str = "smallest"
) -> list[dict[str, Any]]:
    """One row per client: the accuracy on its ``test`` samples of its ``own`` model and of every other way.

    ``head_density`` and ``head_posterior`` are accuracies after routing by that rule; ``recall_...`` is
    the fraction routed to the client itself. A value is None where the method has no such model.
    """
    clients, labels, origin = len(predictions.logits), predictions.labels, predictions.origin
    if len(names) != clients:
        raise FeddrmError(f"{len(names)} names for {clients} clients: give one each")
    chosen = head_routes(predictions, weights)
    if not predictions.task.classifies:
        return survival_rows(predictions, names, chosen)
    correct: dict[str, Tensor | None] = {
        "own": routed_predictions(predictions.logits, origin) == labels,
        "global": None if predictions.global_logits is None else predictions.global_logits.argmax(-1) == labels,
        "vote": vote(predictions.logits, ties) == labels,
    }
    for rule in RULES:
        routes = chosen.get(f"head_{rule}")
        correct[f"head_{rule}"] = None if routes is None else routed_predictions(predictions.logits, routes) == labels
        correct[f"recall_{rule}"] = None if routes is None else routes == origin
    columns = {
        key: [None] * clients if value is None else _by_client(value, origin, clients).tolist()
        for key, value in correct.items()
    }
    sizes = torch.bincount(origin, minlength=clients).tolist()
    return [
        {"name": name, "test": sizes[i]} | {key: column[i] for key, column in columns.items()}
        for i, name in enumerate(names)
    ]


def evaluate(predictions: Predictions, weights: Tensor, ties: str = "smallest") -> dict[str, Any]:
    """Every accuracy of one round, under the names of ``summary.json``; what a method lacks is None or left out.

    Of another task than classification it is the C-index instead (:mod:`feddrm.evaluation.concordance`).
    """
    routes, origin = head_routes(predictions, weights), predictions.origin
    client = {name: _weighted(_by_client(r == origin, origin, len(weights)), weights) for name, r in routes.items()}
    if not predictions.task.classifies:
        return {**survival_figures(predictions, weights, routes), "client_accuracy": client}
    shared = global_accuracy(predictions)
    system = {"vote": system_accuracy(vote(predictions.logits, ties), predictions.labels)}
    for name, chosen in routes.items():
        system[name] = system_accuracy(routed_predictions(predictions.logits, chosen), predictions.labels)
    if shared is not None:
        system["global"] = shared
    return {
        "average_accuracy": average_accuracy(predictions, weights),
        "oracle_accuracy": oracle_accuracy(predictions),
        "global_accuracy": shared,
        "client_accuracy": client,
        "system_accuracy": system,
    }


def _by_client(correct: Tensor, origin: Tensor, clients: int) -> Tensor:
    """The correct fraction of every client's samples (float64, on the CPU)."""
    total, right = (torch.bincount(numbers, minlength=clients).cpu() for numbers in (origin, origin[correct]))
    if not total.all():
        raise FeddrmError(
            f"client {int(total.argmin())} has no test samples: an average over clients needs some of each"
        )
    return right.double() / total


def _weighted(fractions: Tensor, weights: Tensor) -> float:
    _check_weights(weights, len(fractions))
    weights = weights.cpu().double()
    return float((weights * fractions).sum() / weights.sum())


def _check_weights(weights: Tensor, clients: int) -> None:
    if weights.shape != (clients,):
        raise FeddrmError(f"weights of shape {tuple(weights.shape)} for {clients} clients: give one each")
    if not bool(((weights > 0) & weights.isfinite()).all()):  # weight 0 has an infinite score by the density rule
        raise FeddrmError(f"weights {weights.tolist()}: all must be positive, as the sizes of training sets are")
