"""What the figures of a round need of its predictions, sample by sample.

Predictions have a place for every model, sample and class: 1.2 GB for 1,000 clients, 30,000 samples and 10 classes.
AnswersBySample have none for every model. They can be made of the samples part by part and joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from feddrm.errors import FeddrmError
from feddrm.evaluation.predictions import Predictions
from feddrm.rules import RULES, Evidence, Rule
from feddrm.tasks import CLASSIFICATION, Task


class AnswersBySample(NamedTuple):
    """The answers to N samples of K classes by every way to answer, and the clients that the published head chooses.

    ``answers`` are logits: of the sample's ``own`` client, the ``global`` model, and the client that the head chooses
    by every rule. ``votes`` count the models that choose each class. Of another task than classification, ``answers``
    are the task's own and ``votes`` their mean over all models.
    """

    labels: Tensor  # [N]
    origin: Tensor  # [N]
    clients: int
    answers: Mapping[str, Tensor]  # [N, K]
    routes: Mapping[str, Tensor]  # [N]
    votes: Tensor  # [N, K]
    task: Task = CLASSIFICATION

    @classmethod
    def of(cls, predictions: Predictions | AnswersBySample, weights: Tensor | None = None) -> AnswersBySample:
        """The sample answers in predictions; without the clients' ``weights``, nothing is routed."""
        if isinstance(predictions, AnswersBySample):
            return predictions
        _, labels, origin, _, shared, task = predictions
        routes = {} if weights is None else head_routes(predictions, weights)
        if task.classifies:
            by_model, votes = predictions.logits, class_counts(predictions.logits)
        else:
            by_model = task.answers(predictions.logits.double())
            votes, shared = by_model.mean(0), None if shared is None else task.answers(shared.double())
        answers = {
            "own": routed(by_model, origin),
            **({} if shared is None else {"global": shared}),
            **{name: routed(by_model, chosen) for name, chosen in routes.items()},
        }
        return cls(labels, origin, len(by_model), answers, routes, votes, task)

    @classmethod
    def join(cls, parts: Iterable[AnswersBySample], samples: int) -> AnswersBySample:
        """The outcomes of all parts' samples, in order.

        There is room for all of them from the start. Small results that are kept between large ones that are freed
        would leave gaps in memory.
        """
        rooms: AnswersBySample | None = None
        done = 0
        for part in parts:
            if rooms is None:
                rooms = part._each(lambda values: values.new_empty(samples, *values.shape[1:]))
            for room, values in zip(rooms._tensors(), part._tensors(), strict=True):
                room[done : done + len(values)] = values
            done += len(part.labels)
        assert rooms is not None  # predictions of no sample are refused
        return rooms

    def _each(self, change: Callable[[Tensor], Tensor]) -> AnswersBySample:
        return self._replace(
            labels=change(self.labels),
            origin=change(self.origin),
            answers={way: change(values) for way, values in self.answers.items()},
            routes={rule: change(values) for rule, values in self.routes.items()},
            votes=change(self.votes),
        )

    def _tensors(self) -> list[Tensor]:
        return [self.labels, self.origin, *self.answers.values(), *self.routes.values(), self.votes]

    def right(self, way: str) -> Tensor:
        """Whether the class that a way of answering gives to each sample is right."""
        return self.answers[way].argmax(-1) == self.labels


def class_counts(logits: Tensor) -> Tensor:
    """How many of the m models choose each class [N, K], for logits [m, N, K]."""
    _, samples, classes = logits.shape
    cell = logits.argmax(-1) + classes * torch.arange(samples, device=logits.device)
    return torch.bincount(cell.flatten(), minlength=samples * classes).view(samples, classes)


def routed(by_model: Tensor, routes: Tensor) -> Tensor:
    """Every sample's answer [N, K] by its chosen model, of answers [m, N, K] and routes [N]."""
    return by_model[routes, torch.arange(len(routes), device=by_model.device)]


def route(client_logits: Tensor, weights: Tensor, rule: str = "density") -> Tensor:
    """The client that answers each of the N samples, for client logits [N, m]; ties go to the smallest number.

    ``weights`` are the clients' training sizes, up to a factor.
    """
    chosen = Rule.find(rule)()
    check_weights(weights, client_logits.shape[1])
    log_prior = weights.double().log()
    # Equal weights become zeros, so that all rules then agree to the last bit.
    log_prior = (log_prior - log_prior.max()).to(client_logits.device)
    return chosen.scores(Evidence(client_logits, log_prior)).argmax(1)


def head_routes(predictions: Predictions, weights: Tensor) -> dict[str, Tensor]:
    """The clients [N] that the published head chooses by every rule; empty for a method without one."""
    logits = predictions.client_logits
    return {} if logits is None else {f"head_{rule}": route(logits, weights, rule) for rule in RULES}


def check_weights(weights: Tensor, clients: int) -> None:
    """Refuse weights that are not one positive number for every client."""
    if weights.shape != (clients,):
        raise FeddrmError(f"weights of shape {tuple(weights.shape)} for {clients} clients: give one each")
    if not bool(((weights > 0) & weights.isfinite()).all()):  # weight 0 has an infinite score by the density rule
        raise FeddrmError(f"weights {weights.tolist()}: all must be positive, as the sizes of training sets are")
