"""Metrics of answers beside accuracy: balanced accuracy, F1, AUROC, Brier score, calibration error, the worst client.

A metric is a function of the weights [N, R] of N samples. The first column is ones and gives the figure. The others are
bootstrap resamples and give its 95 % interval. Whole subjects are drawn: samples of one may depend on each other. A
site of a deployed federation sends :func:`answer_sums`. The server makes samples with the same counts of them, and
computes the same metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from scipy.special import stdtrit
from torch import Tensor

from feddrm.evaluation.answers_by_sample import AnswersBySample
from feddrm.evaluation.predictions import Predictions

REPLICATES = 200
CONFIDENCE_BINS = 15  # of equal width, of the calibration error
SCORE_BINS, SCORE_RANGE = 1000, 20.0  # of log-odds between -20 and 20: a class's scores as a site sends them
NORMAL = 1.959963984540054  # the 97.5 % quantile
PART = 2**22  # weights in memory at a time

Figures = dict[str, Tensor]  # a metric's values, one per column of the weights


def answer_metrics(
    log_probabilities: Tensor, labels: Tensor, origin: Tensor, names: Sequence[str], subject: Tensor | None = None
) -> dict[str, Any]:
    """The metrics of answers [N, K] to samples of the clients ``names``, each with its interval; None if undefined.

    Classes that no sample has are left out of means over classes; F1 counts those that an answer names, as zero. With
    two classes the second one is the positive. ``subject`` [N] numbers whom each sample is of, within its client.
    Where a client's several samples are of one subject, the interval is None.
    """
    probabilities, labels, origin = log_probabilities.detach().double().exp().cpu(), labels.cpu(), origin.cpu()
    classes = probabilities.shape[1]
    confidence, predicted = probabilities.max(1)
    errors = _brier(probabilities, labels)

    def measure(weights: Tensor) -> Figures:
        aurocs = [_auroc(weights, probabilities[:, k], labels == k) for k in _ranked(classes)]
        return {
            **_of_outcomes(weights, labels, predicted, origin, (classes, len(names))),
            "auroc": torch.stack(aurocs).nanmean(0),
            "brier": errors @ weights / weights.sum(0),
            "ece": calibration_error(weights, confidence, predicted == labels),
        }

    unit = sampling_units(origin, subject)
    return _stated(_bootstrap(origin, measure, unit), names, labels, origin, unit)


def sampling_units(origin: Tensor, subject: Tensor | None) -> Tensor:
    """The number of every sample's subject among those of all clients, by first sample. Without subjects, its own."""
    rows = torch.arange(len(origin), device=origin.device)
    if subject is None:
        return rows
    own = torch.unique(torch.stack([origin, subject.to(origin)], dim=1), dim=0, return_inverse=True)[1]
    first = torch.full_like(rows, len(rows)).scatter_reduce_(0, own, rows, "amin")[own]
    unit: Tensor = torch.unique(first, return_inverse=True)[1]
    return unit


def own_answers(predictions: Predictions | AnswersBySample) -> Tensor:
    """Log class probabilities [N, K] of every sample by its own client's model."""
    return AnswersBySample.of(predictions).answers["own"].double().log_softmax(-1)


def class_confusion(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """How many samples of each class (row) are answered with each class (column)."""
    return torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes)


def answer_sums(log_probabilities: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """What one client tells of its answers [n, K]: counts, and sums over its samples.

    ``scores`` [2, K, bins] counts the log-odds of every class, first of other classes' samples, then of its own.
    ``calibration`` [2, 2, bins] has counts and sums of confidence, first of wrong answers, then of right ones.
    ``brier`` has the sum and the sum of squares.
    """
    probabilities = log_probabilities.detach().double().exp().cpu()
    labels, classes = labels.cpu(), probabilities.shape[1]
    confidence, predicted = probabilities.max(1)
    own = torch.nn.functional.one_hot(labels, classes)
    place = ((probabilities.logit() / SCORE_RANGE + 1) / 2 * SCORE_BINS).clamp(0, SCORE_BINS - 1).long()
    cell = (own * classes + torch.arange(classes)) * SCORE_BINS + place
    scores = torch.bincount(cell.flatten(), minlength=2 * classes * SCORE_BINS)
    right = predicted == labels
    sides = [calibration_bins(side.double()[:, None], confidence, right)[:2] for side in (~right, right)]
    errors = _brier(probabilities, labels)
    return {
        "confusion": class_confusion(predicted, labels, classes),
        "scores": scores.view(2, classes, SCORE_BINS),
        "calibration": torch.stack([torch.stack(side)[:, :, 0] for side in sides], dim=1),
        "brier": torch.stack([errors.sum(), errors.square().sum()]),
    }


def metrics_of_sums(sums: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> dict[str, Any]:
    """The metrics of all clients' answers from their :func:`answer_sums`.

    All but AUROC equal those of :func:`answer_metrics`. AUROC has an ``error_bound``: within a bin, every pair of a
    positive and a negative sample counts as tied. Intervals come from bootstrap resamples of the counts, but that of
    the Brier score is normal. The interval of AUROC takes the classes' errors as fully dependent, so with several
    classes it is too wide.
    """
    together = {name: torch.stack([client[name] for client in sums]) for name in sums[0]}
    classes = together["confusion"].shape[1]
    # Every table counts each sample once, client by client, so one set of weights suits them all.
    origin, labels, predicted = _samples(together["confusion"])
    counts, confidences = together["calibration"].unbind(1)
    client, side, place = _samples(counts.long())
    confidence = (confidences / counts.clamp(min=1))[client, side, place]
    ranked = [together["scores"][:, :, k] for k in _ranked(classes)]

    def measure(weights: Tensor) -> Figures:
        return {
            **_of_outcomes(weights, labels, predicted, origin, (classes, len(names))),
            "auroc": torch.stack([_auroc(weights, score, own == 1) for _, own, score in map(_samples, ranked)]),
            "ece": calibration_error(weights, confidence, side == 1),
        }

    unit = sampling_units(origin, None)
    figures = _bootstrap(origin, measure, unit)
    aurocs = figures["auroc"]
    figures["auroc"] = torch.cat([aurocs[:, :1], aurocs[:, 1:].sort(1).values], dim=1).nanmean(0)
    stated = _stated(figures, names, labels, origin, unit)
    stated["brier"] = _brier_of(together["brier"], together["confusion"].sum((1, 2)))
    if stated["auroc"] is not None:
        stated["auroc"]["error_bound"] = float(torch.stack([_tied(table.sum(0)) for table in ranked]).nanmean())
    return stated


def calibration_bins(weights: Tensor, confidence: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per bin of confidence and column of the weights: how many samples, the sum of confidence, how many right."""
    place = (confidence * CONFIDENCE_BINS).long().clamp(0, CONFIDENCE_BINS - 1)
    parts = (weights, weights * confidence[:, None], weights * right[:, None])
    count, sure, correct = (_total(CONFIDENCE_BINS, place, values) for values in parts)
    return count, sure, correct


def calibration_error(weights: Tensor, confidence: Tensor, right: Tensor) -> Tensor:
    """Expected calibration error: the bins' gaps between confidence and accuracy, weighted by their samples."""
    count, sure, correct = calibration_bins(weights, confidence, right)
    return (sure - correct).abs().sum(0) / count.sum(0)


def _of_outcomes(weights: Tensor, labels: Tensor, predicted: Tensor, origin: Tensor, sizes: tuple[int, int]) -> Figures:
    """What follows from labels and predicted classes alone; ``clients`` [m, R] are the clients' accuracies."""
    classes, clients = sizes
    hits = weights * (predicted == labels)[:, None]
    correct, samples = _total(classes, labels, hits), _total(classes, labels, weights)
    answers = _total(classes, predicted, weights)
    recall = correct / samples
    return {
        "accuracy": correct.sum(0) / samples.sum(0),
        "balanced_accuracy": recall.nanmean(0),
        "macro_f1": (2 * correct / (samples + answers)).nanmean(0),
        **({"sensitivity": recall[1], "specificity": recall[0]} if classes == 2 else {}),
        "clients": _total(clients, origin, hits) / _total(clients, origin, weights),
    }


def _total(cells: int, cell: Tensor, values: Tensor) -> Tensor:
    """Sums of rows [N, R] by cell."""
    empty = torch.zeros(cells, values.shape[1], dtype=torch.float64, device=values.device)
    return empty.index_add_(0, cell, values)


def _auroc(weights: Tensor, scores: Tensor, positive: Tensor) -> Tensor:
    """The probability that a positive sample has a higher score than a negative one; a tie counts as half."""
    scores = scores.contiguous()
    own, group = torch.unique(scores[positive], return_inverse=True)
    # Cell 2 g lies between the scores g - 1 and g of positive samples, cell 2 g + 1 at score g. The last: the positive.
    cell = torch.searchsorted(own, scores) + torch.searchsorted(own, scores, right=True)
    cell[positive] = 2 * len(own) + 1
    mass = _total(2 * len(own) + 2, cell, weights)
    below = mass[:-2:2].cumsum(0) + mass[1:-2:2].cumsum(0) - mass[1:-2:2] / 2
    pairs = (weights[positive] * below[group]).sum(0)
    return pairs / (mass[-1] * mass[:-1].sum(0))


def _tied(table: Tensor) -> Tensor:
    """Half of the pairs [2, bins] of a negative and a positive sample that share a bin: what AUROC may be wrong by."""
    negative, positive = table.double().unbind()
    return (negative * positive).sum() / (negative.sum() * positive.sum()) / 2


def _ranked(classes: int) -> range:
    """The classes whose AUROC is averaged: of two, the second alone, as both have the same."""
    return range(1 if classes == 2 else 0, classes)


def _brier(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The squared error of every sample, summed over classes; with two classes, that of one of them."""
    classes = probabilities.shape[1]
    errors = (probabilities - torch.nn.functional.one_hot(labels, classes)).square().sum(1)
    return errors / 2 if classes == 2 else errors


def _brier_of(sums: Tensor, tested: Tensor) -> dict[str, Any]:
    """The score and its normal interval from every client's sum and sum of squares [m, 2]."""
    total, squares = sums.unbind(1)
    value, samples = float(total.sum() / tested.sum()), int(tested.sum())
    variance = float((squares - total.square() / tested.clamp(min=1)).clamp(min=0).sum()) / samples**2
    width = NORMAL * math.sqrt(variance)
    return {"value": value, "interval": [max(0.0, value - width), value + width]}


def _samples(counts: Tensor) -> tuple[Tensor, ...]:
    """One sample per count: its place along every dimension of the table."""
    return counts.nonzero().repeat_interleave(counts[counts > 0], dim=0).unbind(1)


def _bootstrap(origin: Tensor, measure: Callable[[Tensor], Figures], unit: Tensor) -> Figures:
    parts = [measure(weights) for weights in _resamples(origin, unit)]
    return {name: torch.cat([part[name] for part in parts], dim=-1) for name in parts[0]}


def _resamples(origin: Tensor, unit: Tensor) -> Iterator[Tensor]:
    """Weights [N, r]: the samples as they are, then resamples of whole units with replacement within every client."""
    owner = _owners(origin, unit)
    order = owner.argsort(stable=True)
    sizes = torch.bincount(owner)
    first, size = (values[owner[order]][:, None] for values in (sizes.cumsum(0) - sizes, sizes))
    yield torch.ones(len(origin), 1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    rows = max(1, PART // len(origin))
    for begun in range(0, REPLICATES, rows):
        columns = min(rows, REPLICATES - begun)
        drawn = torch.rand(len(owner), columns, dtype=torch.float64, generator=generator)
        picked = order[first + (drawn * size).long()]
        yield torch.zeros_like(drawn).scatter_add_(0, picked, torch.ones_like(drawn))[unit]


def _owners(origin: Tensor, unit: Tensor) -> Tensor:
    """The client of every unit."""
    return origin.new_empty(int(unit.max()) + 1).scatter_(0, unit, origin)


def _widening(origin: Tensor, unit: Tensor) -> float | None:
    """By what factor an interval is wider than the bootstrap's, because few subjects show less of their spread.

    The t quantile and the divisor of a variance are those of the subjects, relative to those of as many samples: the
    factor is 1 if every subject has one sample. None if a client's several samples are of one subject.
    """
    owner = _owners(origin, unit)
    samples, units = torch.bincount(origin), torch.bincount(owner)
    if len(owner) == len(origin):
        return 1.0
    if bool(((units == 1) & (samples > 1)).any()):
        return None
    clients = int((units > 0).sum())

    def reach(count: int) -> float:
        free = count - clients
        return float(stdtrit(free, 0.975)) * math.sqrt(count / free)

    return reach(len(owner)) / reach(len(origin))


def _stated(figures: Figures, names: Sequence[str], labels: Tensor, origin: Tensor, unit: Tensor) -> dict[str, Any]:
    """Plain values for ``summary.json``. The interval of the worst client is that of the client with this name."""
    clients = figures.pop("clients")
    worst = int(clients[:, 0].nan_to_num(math.inf).argmin())
    shares = {"accuracy": labels >= 0, "sensitivity": labels == 1, "specificity": labels == 0}
    sizes = {name: int(torch.bincount(unit[rows]).count_nonzero()) for name, rows in shares.items()}
    widening = _widening(origin, unit)
    stated = {name: _with_interval(values, widening, sizes.get(name)) for name, values in figures.items()}
    own = origin == worst
    own_unit = torch.unique(unit[own], return_inverse=True)[1]
    alone = _widening(origin[own], own_unit)
    least = _with_interval(clients[worst], alone, int(own_unit.max()) + 1)
    return {**stated, "worst_client": {"name": names[worst], **(least or {})}}


def _with_interval(values: Tensor, widening: float | None, size: int | None = None) -> dict[str, Any] | None:
    """The figure and its bootstrap interval. A share of ``size`` subjects that is 0 or 1 is so in every resample, too.

    Its interval is Wilson's. Without a ``widening``, nothing is known of the spread: there is no interval.
    """
    if not bool(values[0].isfinite()):
        return None
    value = float(values[0])
    if widening is None:
        return {"value": value, "interval": None}
    if size and value in (0.0, 1.0):
        reach = NORMAL**2 / (size + NORMAL**2)
        return {"value": value, "interval": [0.0, reach] if value == 0 else [1 - reach, 1.0]}
    bounds = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = values[1:].nanquantile(bounds).tolist()
    if widening != 1:
        # The resamples of a calibration error may all lie above it: no end moves towards the other.
        low, most = max(0.0, min(low, value - widening * (value - low))), max(1.0, high)
        high = min(max(high, value + widening * (high - value)), most)
    return {"value": value, "interval": [low, high]}
