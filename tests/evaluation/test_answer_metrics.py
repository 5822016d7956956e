"""Metrics of answers: scikit-learn is the oracle, and sums of clients give the figures of pooled samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    brier_score_loss,
    confusion_matrix,
    f1_score,
    recall_score,
    roc_auc_score,
)
from torch import Tensor

from feddrm.evaluation import Predictions, answer_metrics, class_confusion, own_answers
from feddrm.evaluation.answer_metrics import (
    REPLICATES,
    SCORE_BINS,
    _resamples,
    _widening,
    _with_interval,
    answer_sums,
    metrics_of_sums,
    sampling_units,
)

NAMES = ("oslo", "lima", "kyoto")
COUNTED = ("accuracy", "balanced_accuracy", "macro_f1", "worst_client")


def made(classes: int, samples: int = 300, seed: int = 0, digits: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities with many ties (logits of few digits), labels and origins."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples,), generator=generator)
    logits = torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    logits = (logits + 1.5 * torch.nn.functional.one_hot(labels, classes)).round(decimals=digits)
    origin = torch.randint(len(NAMES), (samples,), generator=generator)
    return logits.log_softmax(1), labels, origin


def by_client(answers: Tensor, labels: Tensor, origin: Tensor) -> list[dict[str, Tensor]]:
    return [answer_sums(answers[origin == i], labels[origin == i]) for i in range(len(NAMES))]


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_figures_are_those_of_scikit_learn(classes: int) -> None:
    answers, labels, origin = made(classes)
    metrics = answer_metrics(answers, labels, origin, NAMES)
    predicted, probabilities, y = answers.argmax(1).numpy(), answers.exp().numpy(), labels.numpy()
    scores = probabilities[:, 1] if classes == 2 else probabilities
    expected = {
        "accuracy": accuracy_score(y, predicted),
        "balanced_accuracy": balanced_accuracy_score(y, predicted),
        "macro_f1": f1_score(y, predicted, average="macro"),
        "auroc": roc_auc_score(y, scores, multi_class="ovr", average="macro"),
        "brier": brier_score_loss(y, scores, labels=range(classes)),
    }
    if classes == 2:
        expected["sensitivity"] = recall_score(y, predicted)
        expected["specificity"] = recall_score(y, predicted, pos_label=0)
    assert {name: metrics[name]["value"] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert set(metrics) == {*expected, "ece", "worst_client"}
    assert class_confusion(answers.argmax(1), labels, classes).tolist() == confusion_matrix(y, predicted).tolist()


def test_the_calibration_error_is_that_of_fifteen_bins() -> None:
    answers, labels, origin = made(4)
    confidence, predicted = answers.exp().max(1)
    error = 0.0
    for i in range(15):
        inside = (confidence >= i / 15) & (confidence < (i + 1) / 15)
        if inside.any():
            gap = confidence[inside].mean() - (predicted == labels)[inside].double().mean()
            error += float(inside.double().mean() * gap.abs())
    assert answer_metrics(answers, labels, origin, NAMES)["ece"]["value"] == pytest.approx(error, abs=1e-12)


def test_the_worst_client_is_named_with_its_accuracy() -> None:
    answers, labels, origin = made(3)
    right = (answers.argmax(1) == labels).double()
    accuracies = [float(right[origin == i].mean()) for i in range(3)]
    worst = answer_metrics(answers, labels, origin, NAMES)["worst_client"]
    assert worst["name"] == NAMES[accuracies.index(min(accuracies))]
    assert worst["value"] == pytest.approx(min(accuracies), abs=1e-12)
    present = origin != 1
    few = answer_metrics(answers[present], labels[present], origin[present], NAMES)["worst_client"]
    assert few["name"] != "lima", "a client without samples is not the worst"


def test_classes_without_samples_are_left_out_of_means() -> None:
    answers, labels, origin = made(4)
    kept = labels != 2
    answers, labels, origin = answers[kept], labels[kept], origin[kept]
    metrics, predicted = answer_metrics(answers, labels, origin, NAMES), answers.argmax(1)
    recalls = [(predicted[labels == k] == k).double().mean() for k in (0, 1, 3)]
    aurocs = [roc_auc_score(labels == k, answers[:, k]) for k in (0, 1, 3)]
    assert metrics["balanced_accuracy"]["value"] == pytest.approx(float(sum(recalls)) / 3, abs=1e-12)
    assert metrics["macro_f1"]["value"] == pytest.approx(f1_score(labels, predicted, average="macro"), abs=1e-12)
    assert metrics["auroc"]["value"] == pytest.approx(sum(aurocs) / 3, abs=1e-12)


def test_what_one_class_leaves_undefined_is_none() -> None:
    answers, labels, origin = made(2)
    only = labels == 0
    metrics = answer_metrics(answers[only], labels[only], origin[only], NAMES)
    assert (metrics["auroc"], metrics["sensitivity"]) == (None, None)
    assert metrics["specificity"]["value"] == metrics["accuracy"]["value"]
    assert metrics_of_sums(by_client(answers[only], labels[only], origin[only]), NAMES)["auroc"] is None


def test_resamples_draw_every_clients_samples_with_replacement() -> None:
    origin = torch.tensor([2, 0, 0, 2, 1, 2])
    weights = torch.cat(list(_resamples(origin, torch.arange(6))), dim=1)
    assert weights.shape == (6, 1 + REPLICATES)
    assert weights[:, 0].tolist() == [1] * 6
    for client, size in enumerate([2, 1, 3]):
        assert (weights[origin == client].sum(0) == size).all()
    assert weights[:, 1:].mean(1).tolist() == pytest.approx([1] * 6, abs=0.2)
    assert len(set(map(tuple, weights.T.tolist()))) > 20


def test_shares_of_none_or_all_samples_have_intervals() -> None:
    labels, origin = torch.tensor([0, 0, 1, 1, 1, 0]), torch.tensor([0, 0, 0, 0, 0, 1])
    sure = torch.nn.functional.one_hot(torch.tensor([0, 0, 1, 1, 1, 1]), 2).double().clamp(0.1, 0.9)
    metrics = answer_metrics(sure.log(), labels, origin, ["five", "one"])
    low, high = binomtest(0, 1).proportion_ci(method="wilson")
    assert metrics["worst_client"] == {"name": "one", "value": 0, "interval": pytest.approx([low, high])}
    low, high = binomtest(3, 3).proportion_ci(method="wilson")
    assert metrics["sensitivity"] == {"value": 1, "interval": pytest.approx([low, high])}
    summed = [answer_sums(sure[origin == k].log(), labels[origin == k]) for k in range(2)]
    assert metrics_of_sums(summed, ["five", "one"])["worst_client"] == metrics["worst_client"]


@pytest.mark.parametrize(
    ("value", "widening", "interval"),
    [(0.5, 1.0, [0.405, 0.595]), (0.5, 2.0, [0.31, 0.69]), (0.3, 2.0, [0.405, 0.89]), (0.5, 9.0, [0.0, 1.0])],
)
def test_an_interval_holds_95_of_100_resamples_and_widens_about_its_value(
    value: float, widening: float, interval: list[float]
) -> None:
    resamples = torch.linspace(0.4, 0.6, 1001, dtype=torch.float64)
    figure = _with_interval(torch.cat([torch.tensor([value]).double(), resamples]), widening)
    assert figure is not None
    assert figure["interval"] == pytest.approx(interval)


def test_intervals_have_the_width_of_the_sampling_error() -> None:
    answers, labels, origin = made(3, 2000)
    metrics = answer_metrics(answers, labels, origin, NAMES)
    value = metrics["accuracy"]["value"]
    low, high = metrics["accuracy"]["interval"]
    error = math.sqrt(value * (1 - value) / 2000)
    assert low < value < high
    assert (high - low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.15)
    for metric in metrics.values():
        assert metric["interval"][0] <= metric["value"] <= metric["interval"][1]


@pytest.mark.parametrize("classes", [2, 5])
def test_sums_of_clients_give_the_figures_of_pooled_samples(classes: int) -> None:
    answers, labels, origin = made(classes, 1500, digits=4)
    exact = answer_metrics(answers, labels, origin, NAMES)
    summed = metrics_of_sums(by_client(answers, labels, origin), NAMES)
    assert set(summed) == set(exact)
    for name in COUNTED:
        assert summed[name]["value"] == exact[name]["value"], "exactly: from counts"
    assert summed["worst_client"]["name"] == exact["worst_client"]["name"]
    for name in ("brier", "ece"):
        assert summed[name]["value"] == pytest.approx(exact[name]["value"], abs=1e-12)
    for name in (*COUNTED, "brier", "ece"):
        widths = [bounds[1] - bounds[0] for bounds in (summed[name]["interval"], exact[name]["interval"])]
        assert widths[0] / widths[1] == pytest.approx(1, abs=0.25)
    assert summed["auroc"]["interval"][0] < exact["auroc"]["interval"][0] + 0.01
    assert summed["auroc"]["interval"][1] > exact["auroc"]["interval"][1] - 0.01


def test_a_client_without_samples_changes_nothing() -> None:
    answers, labels, origin = made(3)
    sums = by_client(answers, labels, origin)
    empty = answer_sums(answers[:0], labels[:0])
    assert metrics_of_sums([*sums, empty], (*NAMES, "pune")) == metrics_of_sums(sums, NAMES)


def test_the_error_of_auroc_by_histograms_is_within_its_bound() -> None:
    answers, labels, origin = made(5, digits=4)
    for scale in (0.1, 1.0, 30.0):  # scores in few bins, in many, and beyond their range
        scaled = (scale * answers).log_softmax(1)
        exact = answer_metrics(scaled, labels, origin, NAMES)["auroc"]["value"]
        summed = metrics_of_sums(by_client(scaled, labels, origin), NAMES)["auroc"]
        assert abs(summed["value"] - exact) <= summed["error_bound"] + 1e-12
        assert 0 < summed["error_bound"] < 0.1


@pytest.mark.slow
@given(st.integers(2, 4), st.integers(4, 60), st.sampled_from([1e-3, 0.05, 1.0, 50.0]), st.integers(0, 2**32 - 1))
def test_the_bound_holds_for_scikit_learns_auroc_of_any_scores(
    classes: int, samples: int, width: float, seed: int
) -> None:
    """Scores that crowd in one bin, straddle an edge of bins, are far apart or beyond the range; ties among them."""
    random = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), random.integers(classes, size=samples)])
    logits = width * random.normal(size=(len(labels), classes)).round(random.integers(0, 4))
    answers, y = torch.from_numpy(logits).log_softmax(1), torch.from_numpy(labels)
    probabilities = answers.exp().numpy()
    ranked = range(classes) if classes > 2 else (1,)
    expected = np.mean([roc_auc_score(labels == k, probabilities[:, k]) for k in ranked])
    origin = torch.from_numpy(random.integers(len(NAMES), size=len(labels)))
    stated = metrics_of_sums(by_client(answers, y, origin), NAMES)["auroc"]
    assert abs(stated["value"] - expected) <= stated["error_bound"] + 1e-12


@pytest.mark.parametrize("first", [0, 1], ids=["worst order", "best order"])
def test_the_bound_is_reached_where_all_scores_share_a_bin(first: int) -> None:
    """Within the bin every positive sample is above every negative one, or below."""
    labels = torch.tensor([first] * 5 + [1 - first] * 7)
    second = 1e-4 * torch.arange(1, 13, dtype=torch.float64)
    answers = torch.stack([torch.zeros_like(second), second], dim=1).log_softmax(1)
    exact = roc_auc_score(labels, answers[:, 1])
    assert exact == 1 - first
    stated = metrics_of_sums([answer_sums(answers, labels)], NAMES[:1])["auroc"]
    assert (stated["value"], stated["error_bound"]) == (0.5, 0.5)


def test_sums_count_every_sample_once_in_every_table() -> None:
    answers, labels, _ = made(4, 50)
    sums = answer_sums(answers, labels)
    assert {name: tuple(value.shape) for name, value in sums.items()} == {
        "confusion": (4, 4), "scores": (2, 4, SCORE_BINS), "calibration": (2, 2, 15), "brier": (2,),
    }  # fmt: skip
    assert sums["confusion"].sum() == 50
    assert sums["scores"].sum((0, 2)).tolist() == [50] * 4
    assert sums["scores"][1].sum(1).tolist() == torch.bincount(labels, minlength=4).tolist()
    assert sums["calibration"][0].sum(1).tolist() == [
        50 - int(sums["confusion"].trace()), int(sums["confusion"].trace())
    ]  # fmt: skip


def test_own_answers_are_those_of_each_samples_client() -> None:
    logits = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(0))
    origin = torch.tensor([0, 1, 2, 2, 1, 0])
    answers = own_answers(Predictions(logits, torch.zeros(6, dtype=torch.int64), origin))
    for i, client in enumerate(origin.tolist()):
        assert torch.equal(answers[i], logits[client, i].double().log_softmax(0))


def grouped(subjects: int, each: int, clients: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Whether samples are right, their clients and subjects: of half the subjects all are right."""
    chance = torch.tensor([1.0, 0.6], dtype=torch.float64)
    kind = torch.randint(2, (clients * subjects,), generator=generator).repeat_interleave(each)
    right = torch.rand(len(kind), generator=generator, dtype=torch.float64) < chance[kind]
    origin = torch.arange(clients).repeat_interleave(subjects * each)
    return right, origin, torch.arange(subjects).repeat_interleave(each).repeat(clients)


def test_subjects_of_one_sample_each_change_no_figure() -> None:
    answers, labels, origin = made(3)
    numbers = torch.randperm(len(labels), generator=torch.Generator().manual_seed(5))
    assert answer_metrics(answers, labels, origin, NAMES, numbers) == answer_metrics(answers, labels, origin, NAMES)


def test_resamples_draw_whole_subjects() -> None:
    origin, subject = torch.tensor([1, 0, 0, 1, 1, 0, 0, 1]), torch.tensor([7, 7, 3, 2, 7, 3, 9, 2])
    unit = sampling_units(origin, subject)
    assert unit.tolist() == [0, 1, 2, 3, 0, 2, 4, 3]
    weights = torch.cat(list(_resamples(origin, unit)), dim=1)
    assert weights[:, 0].tolist() == [1] * 8
    for one, other in ((0, 4), (2, 5), (3, 7)):
        assert torch.equal(weights[one], weights[other])
    assert (weights[[0, 3]].sum(0) == 2).all()
    assert (weights[[1, 2, 6]].sum(0) == 3).all()


@pytest.mark.slow
@pytest.mark.parametrize(("subjects", "clients"), [(6, 2), (10, 1), (8, 3)])
def test_intervals_by_subject_hold_the_truth_as_often_as_they_say(subjects: int, clients: int) -> None:
    """The truth is 80 %. Intervals that take the twelve samples of a subject as independent hold it too rarely."""
    generator = torch.Generator().manual_seed(1)
    held, times = [0, 0], 200
    for _ in range(times):
        right, origin, subject = grouped(subjects, 12, clients, generator)
        for way, whose in enumerate((subject, None)):
            unit = sampling_units(origin, whose)
            parts = [right.double() @ weights / len(right) for weights in _resamples(origin, unit)]
            figure = _with_interval(torch.cat(parts), _widening(origin, unit))
            assert figure is not None
            held[way] += figure["interval"][0] <= 0.8 <= figure["interval"][1]
    assert 0.91 <= held[0] / times <= 0.98
    assert held[1] / times < 0.8


def test_of_one_subject_alone_there_is_no_interval() -> None:
    right, origin, subject = grouped(5, 8, 2, torch.Generator().manual_seed(2))
    answers = torch.where(right[:, None], torch.tensor([0.8, 0.2]), torch.tensor([0.3, 0.7])).double().log()
    labels = torch.zeros_like(origin)
    subject[origin == 0] = 4
    metrics = answer_metrics(answers, labels, origin, NAMES[:2], subject)
    plain = answer_metrics(answers, labels, origin, NAMES[:2])
    assert metrics["accuracy"] == {"value": plain["accuracy"]["value"], "interval": None}
    own = origin == 1
    other = answer_metrics(answers[own], labels[own], origin[own] * 0, NAMES[1:2], subject[own])
    assert other["accuracy"]["interval"] is not None
    alone = answer_metrics(answers[~own], labels[~own], origin[~own], NAMES[:1], subject[~own])
    assert alone["worst_client"] == {"name": NAMES[0], "value": alone["accuracy"]["value"], "interval": None}


def test_shares_of_all_samples_count_subjects() -> None:
    answers, labels = torch.tensor([[0.1, 0.9]], dtype=torch.float64).log().expand(12, 2), torch.ones(12).long()
    metrics = answer_metrics(answers, labels, torch.zeros(12).long(), ["one"], torch.arange(3).repeat_interleave(4))
    low, high = binomtest(3, 3).proportion_ci(method="wilson")
    assert metrics["accuracy"] == {"value": 1, "interval": pytest.approx([low, high])}
