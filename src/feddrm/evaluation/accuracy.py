"""Accuracies as pure functions of logits and labels, all of them fractions in [0, 1].

*Average* accuracy asks every client about its own samples and weighs clients by ``weights``; only
the ratios of the weights matter, and they come from the training sizes. *System* accuracy does not
know whose a sample is: the m models vote, or a router picks one; it counts every sample of the
pooled test set alike. The *oracle* routes every sample to its own client.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from feddrm.errors import FeddrmError, SettingError
from feddrm.evaluation.predictions import Answers
from feddrm.registry import nearest
from feddrm.rules import RULES, Rule

TIES = ("smallest", "cuda")

WARP = 32  # threads that CUDA reduces in registers
LANES = 1024  # threads of a block, two votes each


def average_accuracy(answers: Answers, weights: Tensor) -> float:
    """Every client's model on the client's own test set, averaged over clients by ``weights``."""
    correct = routed_predictions(answers.logits, answers.origin) == answers.labels
    return _weighted(_by_client(correct, answers.origin, len(answers.logits)), weights)


def oracle_accuracy(answers: Answers) -> float:
    """System accuracy of a router that knows whose every sample is."""
    return system_accuracy(routed_predictions(answers.logits, answers.origin), answers.labels)


def global_accuracy(answers: Answers) -> float | None:
    """The one shared model on the pooled test set; None where the method has none."""
    if answers.global_logits is None:
        return None
    return system_accuracy(answers.global_logits.argmax(-1), answers.labels)


def system_accuracy(predictions: Tensor, labels: Tensor) -> float:
    """The fraction of the pooled samples that is predicted right, each counting alike."""
    return int((predictions == labels).sum()) / len(labels)


def vote(logits: Tensor, ties: str = "smallest") -> Tensor:
    """The class that most of the m models choose, for logits [m, N, K].

    ``ties``: ``"smallest"`` takes the smallest of the classes that lead (``torch.mode`` on a CPU),
    ``"cuda"`` the one that ``torch.mode`` takes on a GPU, where the paper's numbers were made.
    """
    if ties not in TIES:
        raise SettingError(f"unknown ties '{ties}'{nearest(ties, TIES)} (known: {', '.join(TIES)})")
    counts = _counts(logits)
    if ties == "smallest":
        return counts.argmax(1)
    clients = len(logits)
    rank = torch.tensor(_cuda_ranks(clients), device=logits.device)
    last = (counts.cumsum(1) - 1).clamp(min=0)  # where each class's run ends among the sorted votes
    leads = counts == counts.amax(1, keepdim=True)
    return torch.where(leads, rank[last], clients).argmin(1)


def votes(answers: Answers) -> dict[str, float]:
    """What the vote owes to its tie rule: the fraction of samples that are ``tied``, and its accuracy by each rule.

    ``leading`` is the fraction whose class leads, alone or not: no rule can be better.
    """
    counts, labels = _counts(answers.logits), answers.labels
    leads = counts == counts.amax(1, keepdim=True)
    rules = TIES if len(answers.logits) <= 2 * LANES else TIES[:1]
    return {
        "tied": float((leads.sum(1) > 1).double().mean()),
        "leading": float(leads[torch.arange(len(labels), device=leads.device), labels].double().mean()),
        **{ties: system_accuracy(vote(answers.logits, ties), labels) for ties in rules},
    }


def _counts(logits: Tensor) -> Tensor:
    """How many of the m models choose each class, [N, K]."""
    _, samples, classes = logits.shape
    cell = logits.argmax(-1) + classes * torch.arange(samples, device=logits.device)
    return torch.bincount(cell.flatten(), minlength=samples * classes).view(samples, classes)


@lru_cache(maxsize=16)
def _cuda_ranks(votes: int) -> list[int]:
    """How early each place of the sorted votes is preferred where the counts ending there are equal.

    The kernel sorts the votes and knows a run by the place of its last one. Thread t reduces the
    places 2t and 2t + 1, the 32 threads of a warp reduce by halves (t with t + 16, + 8, ..., + 1),
    and so do the warps among themselves. Each step keeps the lower thread if counts are equal, so
    the last step, even threads against odd ones, decides first: the smallest number with its bits
    reversed wins (threads 0, 2, 1, 3 for eight votes). Two runs can end in one thread only where no
    two votes agree, and then the first place, the smallest class, wins.
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
    return chosen.scores(client_logits, log_prior).argmax(1)


def routed_predictions(logits: Tensor, routes: Tensor) -> Tensor:
    """What the client each sample is sent to predicts, for logits [m, N, K] and routes [N]."""
    return logits[routes, torch.arange(len(routes), device=logits.device)].argmax(-1)


def client_accuracy(
    client_logits: Tensor, origin: Tensor, weights: Tensor, rule: str = "posterior", *, pooled: bool = False
) -> float:
    """How many samples are sent home: averaged over clients by ``weights``, or every sample alike if ``pooled``.

    The paper's figure is the weighted one by the posterior rule, whichever rule does the routing.
    """
    home = route(client_logits, weights, rule) == origin
    if pooled:
        return int(home.sum()) / len(origin)
    return _weighted(_by_client(home, origin, client_logits.shape[1]), weights)


def confusion(routes: Tensor, origin: Tensor, clients: int) -> Tensor:
    """How many samples of each client (row) are sent to each client (column)."""
    return torch.bincount(origin * clients + routes, minlength=clients**2).view(clients, clients)


def per_client(
    answers: Answers, names: Sequence[str], weights: Tensor, ties: str = "smallest"
) -> list[dict[str, str | int | float | None]]:
    """One row per client: how its ``test`` samples fare with its ``own`` model and by every other way.

    ``head_density`` and ``head_posterior`` are accuracies after routing by that rule, ``recall_...``
    the fraction that is sent home. None where the method has no such model.
    """
    clients, labels, origin = len(answers.logits), answers.labels, answers.origin
    if len(names) != clients:
        raise FeddrmError(f"{len(names)} names for {clients} clients: give one each")
    right: dict[str, Tensor | None] = {
        "own": routed_predictions(answers.logits, origin) == labels,
        "global": None if answers.global_logits is None else answers.global_logits.argmax(-1) == labels,
        "vote": vote(answers.logits, ties) == labels,
    }
    for rule in RULES:
        routes = None if answers.client_logits is None else route(answers.client_logits, weights, rule)
        right[f"head_{rule}"] = None if routes is None else routed_predictions(answers.logits, routes) == labels
        right[f"recall_{rule}"] = None if routes is None else routes == origin
    columns = {
        key: [None] * clients if value is None else _by_client(value, origin, clients).tolist()
        for key, value in right.items()
    }
    sizes = torch.bincount(origin, minlength=clients).tolist()
    return [
        {"name": name, "test": sizes[i]} | {key: column[i] for key, column in columns.items()}
        for i, name in enumerate(names)
    ]


def evaluate(answers: Answers, weights: Tensor, ties: str = "smallest") -> dict[str, Any]:
    """Every accuracy of one round, under the names of ``summary.json``; what a method lacks is None or left out."""
    shared = global_accuracy(answers)
    client: dict[str, float] = {}
    system = {"vote": system_accuracy(vote(answers.logits, ties), answers.labels)}
    if answers.client_logits is not None:
        for rule in RULES:
            routes = route(answers.client_logits, weights, rule)
            client[f"head_{rule}"] = client_accuracy(answers.client_logits, answers.origin, weights, rule)
            system[f"head_{rule}"] = system_accuracy(routed_predictions(answers.logits, routes), answers.labels)
    if shared is not None:
        system["global"] = shared
    return {
        "average_accuracy": average_accuracy(answers, weights),
        "oracle_accuracy": oracle_accuracy(answers),
        "global_accuracy": shared,
        "client_accuracy": client,
        "system_accuracy": system,
    }


def _by_client(right: Tensor, origin: Tensor, clients: int) -> Tensor:
    """The fraction that is right of every client's samples (float64, on the CPU)."""
    all_, good = (torch.bincount(of, minlength=clients).cpu() for of in (origin, origin[right]))
    if not all_.all():
        raise FeddrmError(
            f"client {int(all_.argmin())} has no test samples: an average over clients needs some of each"
        )
    return good.double() / all_


def _weighted(fractions: Tensor, weights: Tensor) -> float:
    _check_weights(weights, len(fractions))
    weights = weights.cpu().double()
    return float((weights * fractions).sum() / weights.sum())


def _check_weights(weights: Tensor, clients: int) -> None:
    if weights.shape != (clients,):
        raise FeddrmError(f"weights of shape {tuple(weights.shape)} for {clients} clients: give one each")
    if not bool(((weights > 0) & weights.isfinite()).all()):  # of weight 0 the density rule would make infinity
        raise FeddrmError(f"weights {weights.tolist()}: all must be positive, as the sizes of training sets are")
