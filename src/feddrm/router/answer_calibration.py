"""Calibrating the clients' answers: a temperature and scores per client and kind of head, which stay with the client.

Both come from the client's test samples. The network has seen all others, and so has the trunk under a head that is
refitted on folds: temperatures of training samples leave answers overconfident (docs/router_fit.md). Dividing logits by
a temperature changes no label, so it changes no accuracy of a client.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from feddrm.errors import FeddrmError
from feddrm.io.text import broken, json_bytes, read_json
from feddrm.router.policy import (
    TIED,
    client_slopes,
    consult,
    reliability,
    solve_temperatures,
    subject_shares,
    subjects_up_to,
)
from feddrm.router.settings import Holdout

FOLDS = Holdout(5, 5)
AT_ONCE = 2**20  # logits at most of temperatures that are fitted together: few logits take longer to begin than to do
NO_SCORES = "no scores for label sets: fit the router again ('feddrm fit-router RUN'), or leave out label_miss"


@dataclass(frozen=True, eq=False)
class AnswerCalibration:
    """What a client's test samples say about the answers of one head. It is private: it tells how good they are.

    ``scores`` are the probabilities that the head gives to the samples' own labels, in ascending order. They are None
    in a run from before label sets; its temperature may be missing, too. ``shares`` say how large a part of its
    subject each sample is; None where each is of its own.
    """

    temperature: float = 1.0
    scores: Tensor | None = None
    shares: Tensor | None = None

    @classmethod
    def fit(cls, logits: Tensor, labels: Tensor, subject: Tensor | None = None) -> AnswerCalibration:
        """From a client's logits [n, K] of its test samples. Without any, the temperature is 1, and sets hold all.

        ``subject`` [n] numbers whom each sample is of.
        """
        return cls.at(_temperatures(logits, labels, torch.ones(1, len(labels)))[0], logits, labels, subject)

    @classmethod
    def at(cls, temperature: float, logits: Tensor, labels: Tensor, subject: Tensor | None = None) -> AnswerCalibration:
        """At a temperature, from the same."""
        own = (logits.double() / temperature).softmax(1).gather(1, labels[:, None])[:, 0]
        return cls.of_scores(temperature, own, subject)

    @classmethod
    def of_scores(cls, temperature: float, scores: Tensor, subject: Tensor | None) -> AnswerCalibration:
        """From scores in the order of the samples."""
        ascending = scores.sort()
        if subject is None:
            return cls(temperature, ascending.values)
        return cls(temperature, ascending.values, subject_shares(subject.to(scores.device))[ascending.indices])

    def p_values(self, probabilities: Tensor) -> Tensor:
        """The conformal p-value of every class [..., K]: how many samples had a true label no likelier than it.

        If the query is exchangeable with the client's test samples, the p-value of its true label is at most ``miss``
        with a probability of at most ``miss`` (Vovk et al., 2005), if the temperature was not fitted on them or there
        are two classes. Samples of one subject count as one together. Then it is enough that the query's subject is
        exchangeable with the others (Lee, Barber and Willett, 2023).
        """
        if self.scores is None:
            raise FeddrmError(NO_SCORES)
        smaller = torch.searchsorted(self.scores, raised(probabilities.to(self.scores)).contiguous(), right=True)
        if self.shares is None:
            return (smaller + 1).double() / (len(self.scores) + 1)
        counted = subjects_up_to(self.shares)
        return (counted[smaller] + 1) / (counted[-1] + 1)

    def tensors(self) -> dict[str, Tensor]:
        """Temperature, scores and shares, for a file of tensors."""
        parts = {"scores": self.scores, "shares": self.shares}
        temperature = torch.tensor(self.temperature, dtype=torch.float64)
        return {"temperature": temperature, **{name: part for name, part in parts.items() if part is not None}}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], path: Path, remedy: str) -> AnswerCalibration:
        """From the tensors of a file; an older one may have no temperature or no scores."""
        try:
            return cls(float(tensors.get("temperature", 1.0)), *checked(tensors.get("scores"), tensors.get("shares")))
        except ValueError as error:
            raise broken(path, str(error), remedy) from error

    def file(self) -> bytes:
        """The content of a trained model's file. That of a refitted head is part of the head's."""
        return json_bytes({name: part.tolist() for name, part in self.tensors().items()})

    @classmethod
    def read(cls, file: Path, remedy: str) -> AnswerCalibration:
        """The calibration of a client's trained model."""
        content = read_json(file, remedy)
        value, scores, shares = (content.get(name) for name in ("temperature", "scores", "shares"))
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise broken(file, "'temperature' is no positive number", remedy)
        try:
            parts = [None if part is None else torch.tensor(part, dtype=torch.float64) for part in (scores, shares)]
        except (TypeError, ValueError) as error:
            raise broken(file, "'scores' or 'shares' are no lists of numbers", remedy) from error
        try:
            return cls(float(value), *checked(*parts))
        except ValueError as error:
            raise broken(file, str(error), remedy) from error


def raised(probabilities: Tensor) -> Tensor:
    """Probabilities raised by a rounding error, so that they reach those of equal samples in other batches."""
    return probabilities + TIED * probabilities * (1 - probabilities) + 1e-15


def checked(scores: Tensor | None, shares: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Scores and shares; a ValueError if they are no probabilities in ascending order, or no parts of subjects."""
    if scores is None:
        return None, None
    if scores.ndim != 1 or not bool(((scores >= 0) & (scores <= 1)).all() and (scores.diff() >= 0).all()):
        raise ValueError("'scores' are no ascending probabilities")
    if shares is None:
        return scores.double(), None
    if shares.shape != scores.shape or not bool(((shares > 0) & (shares <= 1)).all()):
        raise ValueError("'shares' are not one part of a subject for each score")
    return scores.double(), shares.double()


@dataclass(frozen=True, eq=False)
class HeldOutAnswers:
    """The answers of all clients' heads to test samples, calibrated without the sample.

    ``log_classes`` [m, N, K] are log-probabilities, ``p_values`` [m, N, K] those of the classes. A sample's
    temperature is fitted without its fold; the scores behind its p-values are those of all other subjects' samples.
    """

    log_classes: Tensor
    p_values: Tensor

    @classmethod
    def of(
        cls, logits: Tensor, labels: Tensor, origin: Tensor, subject: Tensor | None = None
    ) -> tuple[list[AnswerCalibration], HeldOutAnswers]:
        """Every client's calibration, and the held-out answers.

        ``logits`` [m, N, K] are those of all clients' heads. A client's calibration depends on its own samples alone.
        ``subject`` [N] numbers whom each sample is of, within its client: folds have whole subjects.
        """
        kept, all_answers = [], cls(torch.empty_like(logits), torch.empty_like(logits))
        for i, scores in enumerate(logits):
            rows = (origin == i).nonzero()[:, 0]
            whom = None if subject is None else subject[rows.cpu()]
            calibration, own = cls.of_client(i, scores, labels, rows, whom)
            kept.append(calibration)
            all_answers.log_classes[i], all_answers.p_values[i] = own.log_classes, own.p_values
        return kept, all_answers

    @classmethod
    def of_client(
        cls, client: int, logits: Tensor, labels: Tensor, own: Tensor, subject: Tensor | None = None
    ) -> tuple[AnswerCalibration, HeldOutAnswers]:
        """The same of one client, from its logits [n, K] of some samples, all of ``own`` among them.

        ``subject`` numbers whom its own samples are of.
        """
        part = FOLDS.draw(client, len(own), seed=0, subject=subject if len(own) else None).to(own.device)
        held_out = part == torch.arange(FOLDS.used, device=own.device)[:, None]
        seen = torch.cat([torch.ones_like(held_out[:1]), ~held_out])
        first, *others = _temperatures(logits[own], labels[own], seen)
        kept = AnswerCalibration.at(first, logits[own], labels[own], subject)
        subjects = len(own) if subject is None else len(torch.unique(subject))
        log_classes = (logits / kept.temperature).log_softmax(-1)
        p_values = kept.p_values(log_classes.exp()).to(logits)
        for temperature, held in zip(others, held_out, strict=True):
            answers = (logits[own] / temperature).log_softmax(-1)
            right = answers.gather(1, labels[own][:, None])[:, 0].exp()
            found, whom = answers[held].exp(), None if subject is None else subject[held.cpu()]
            counts = (subjects + 1) * AnswerCalibration.of_scores(temperature, right, subject).p_values(found)
            log_classes[own[held]] = answers[held]
            p_values[own[held]] = ((counts - _of_own_subject(right[held], found, whom)) / subjects).to(p_values)
        return kept, cls(log_classes, p_values)


def _of_own_subject(right: Tensor, found: Tensor, subject: Tensor | None) -> Tensor:
    """What part of every sample's own subject [n, K] had a true label no likelier than each class.

    ``right`` [n] are the probabilities of the true labels, ``found`` [n, K] those of the classes.
    """
    if subject is None:
        return (right[:, None] <= raised(found)).double()
    out = torch.empty_like(found, dtype=torch.float64)
    for number in torch.unique(subject):
        rows = (subject == number).nonzero()[:, 0].to(found.device)
        out[rows] = (right[rows] <= raised(found[rows])[:, :, None]).double().mean(2)
    return out


def _temperatures(logits: Tensor, labels: Tensor, seen: Tensor) -> list[float]:
    """The temperatures of parts of a client's samples, ``seen`` [parts, n], all at once where they are few."""
    few = max(1, AT_ONCE // max(1, logits.numel()))
    solved = [
        solve_temperatures(partial(client_slopes, logits, labels, seen=parts), torch.ones(len(parts)).double())
        for parts in torch.split(seen, few)
    ]
    return torch.cat(solved).tolist()


def answer_figures(
    logits: Tensor, held_out: Tensor, log_weights: Tensor, labels: Tensor, k: int | None
) -> dict[str, object]:
    """How far the answers of the ``k`` best clients can be trusted: calibration error and log-loss.

    ``held_out`` are the same answers as ``logits``, calibrated (:class:`HeldOutAnswers`).
    """
    figures: dict[str, object] = {}
    for prefix, log_classes in (("", held_out), ("uncalibrated_", logits.log_softmax(-1))):
        figures |= trust(consult(log_weights, log_classes, k), labels, prefix)
    return figures


def trust(answers: Tensor, labels: Tensor, prefix: str = "") -> dict[str, object]:
    """Calibration error and log-loss of answers [N, K]; without a prefix also their reliability diagram."""
    curve = reliability(answers, labels)
    loss = -float(answers.gather(1, labels[:, None]).mean())
    diagram = {} if prefix else {"reliability": curve.as_dict()}
    return {f"{prefix}ece": curve.error, f"{prefix}loss": loss, **diagram}
