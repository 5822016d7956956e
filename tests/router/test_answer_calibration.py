"""Calibrations of the clients' answers: temperature and scores, fitted, held out, written and read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from feddrm.router import answer_calibration
from feddrm.router.answer_calibration import AnswerCalibration, HeldOutAnswers, answer_figures
from feddrm.router.policy import consult
from refusal import refused
from visits import visits_of


def overconfident(samples: int, factor: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that are ``factor`` times those that the labels were drawn by."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(samples, 3, generator=g, dtype=torch.float64)
    return factor * logits, torch.multinomial(logits.softmax(1), 1, generator=g)[:, 0]


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_the_temperature_undoes_a_factor(factor: float) -> None:
    assert AnswerCalibration.fit(*overconfident(20_000, factor)).temperature == pytest.approx(factor, rel=0.03)


@pytest.mark.parametrize("at_once", [1, answer_calibration.AT_ONCE])
def test_temperatures_of_parts_are_those_of_their_samples_alone(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_calibration, "AT_ONCE", at_once)
    logits, labels = overconfident(200, 3.0)
    seen = torch.rand(4, 200, generator=torch.Generator().manual_seed(1)) < torch.tensor([[1.1], [0.5], [0.02], [-0.1]])
    found = answer_calibration._temperatures(logits, labels, seen)
    alone = [AnswerCalibration.fit(logits[part], labels[part]).temperature for part in seen]
    assert found == pytest.approx(alone, rel=1e-9)
    assert found[3] == 1.0, "no samples"
    assert len({round(temperature, 6) for temperature in found}) == 4


def test_a_client_without_test_samples_keeps_its_confidence_and_excludes_no_class() -> None:
    calibration = AnswerCalibration.fit(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    assert calibration.temperature == 1.0
    assert calibration.p_values(torch.tensor([[0.0, 0.1, 0.9]])).tolist() == [[1.0, 1.0, 1.0]]


def test_p_values_count_the_samples_whose_label_was_no_likelier() -> None:
    calibration = AnswerCalibration(1.0, torch.tensor([0.2, 0.4, 0.4, 0.9], dtype=torch.float64))
    found = calibration.p_values(torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.6, 1.0]]).double())
    assert found.tolist() == [[1 / 5, 2 / 5, 2 / 5], [4 / 5, 4 / 5, 1.0]]
    with refused("no scores for label sets", "fit the router again", "leave out label_miss"):
        AnswerCalibration().p_values(torch.ones(1, 3))


def test_with_two_classes_p_values_do_not_depend_on_the_temperature() -> None:
    logits, labels = overconfident(300, 3.0)
    for classes, equal in ((2, True), (3, False)):
        own = labels % classes
        found = [
            calibration.p_values((logits[:50, :classes] / calibration.temperature).softmax(1))
            for calibration in (AnswerCalibration.at(t, logits[50:, :classes], own[50:]) for t in (1.0, 3.0))
        ]
        assert torch.equal(*found) is equal


def test_p_values_of_equal_samples_are_equal_though_batches_round_them_apart() -> None:
    g = torch.Generator().manual_seed(0)
    samples = 8 * torch.randn(6, 3, generator=g)  # few different ones: scores are tied
    logits, labels = samples.repeat(10, 1), torch.arange(60) % 3
    calibration = AnswerCalibration.fit(logits, labels)
    probabilities = (samples.double() / calibration.temperature).softmax(1)
    for sign in (-1, 1):
        rounded = (samples.double() * (1 + sign * 2e-7) / calibration.temperature).softmax(1)
        assert calibration.p_values(rounded).equal(calibration.p_values(probabilities))


def test_own_queries_miss_their_label_as_rarely_as_promised() -> None:
    """Means over many draws of 19 calibration samples: (n + 1) x miss is a whole number, so the miss is exact."""
    for miss in (0.05, 0.1, 0.2):
        missed = []
        for seed in range(400):
            logits, labels = overconfident(119, 2.0, seed)
            p = AnswerCalibration.fit(logits[:19], labels[:19]).p_values((logits[19:] / 2).softmax(1))
            missed.append(float((p.gather(1, labels[19:, None]) <= miss + 1e-9).double().mean()))
        assert sum(missed) / len(missed) == pytest.approx(miss, abs=0.015)


def test_a_sample_takes_no_part_in_the_calibration_it_is_measured_with() -> None:
    logits, labels = overconfident(60, 2.0)
    both = torch.stack([logits, 3 * logits])
    origin = torch.arange(60) % 2
    kept, held_out = HeldOutAnswers.of(both, labels, origin)
    for client in (0, 1):
        own = origin == client
        expected = AnswerCalibration.fit(both[client][own], labels[own])
        assert kept[client].temperature == expected.temperature
        answers = (both[client][~own] / expected.temperature).log_softmax(-1)  # others' samples took no part anyway
        assert torch.equal(held_out.log_classes[client, ~own], answers)
        assert torch.equal(held_out.p_values[client, ~own], expected.p_values(answers.exp()))
    changed = labels.clone()
    changed[0] = (labels[0] + 1) % 3
    _, after = HeldOutAnswers.of(both, changed, origin)
    assert torch.equal(after.p_values[0, 0], held_out.p_values[0, 0])
    assert torch.equal(after.log_classes[0, 0], held_out.log_classes[0, 0])
    # A sample's p-values are those of its client's other scores, by the temperature of the other folds.
    sample = int((origin == 0).nonzero()[3])
    others = (origin == 0) & (torch.arange(60) != sample)
    scale = (both[0, sample, 0] - both[0, sample, 1]) / held_out.log_classes[0, sample, :2].diff().neg()
    right = (both[0][others] / scale).softmax(1).gather(1, labels[others][:, None])[:, 0]
    expected = AnswerCalibration(1.0, right.sort().values).p_values(held_out.log_classes[0, sample].exp())
    assert torch.allclose(held_out.p_values[0, sample], expected)
    # All of its client but its own fold.
    assert (after.log_classes[0] != held_out.log_classes[0]).any(1)[origin == 0].sum() == 24


def test_a_subject_s_samples_are_calibrated_without_each_other() -> None:
    logits, labels = overconfident(60, 3.0)
    origin = torch.zeros(60, dtype=torch.int64)
    subject = torch.arange(20).repeat(3)
    changed = torch.where(subject == 4, (labels + 1) % 3, labels)
    before, after = (HeldOutAnswers.of(logits[None], y, origin, subject)[1].log_classes[0] for y in (labels, changed))
    assert torch.equal(before[subject == 4], after[subject == 4])
    assert (before != after).any(1).sum() == 48, "all but its own fold of four subjects"
    plain, by_number = (HeldOutAnswers.of(logits[None], labels, origin, s)[1] for s in (None, torch.arange(60)))
    assert torch.equal(plain.log_classes, by_number.log_classes)
    assert torch.equal(plain.p_values, by_number.p_values)


def test_samples_of_one_subject_count_as_one_together() -> None:
    """Of three patients, one has four visits: half of them, as one whole patient, are no likelier than 0.5."""
    scores, whose = torch.tensor([0.1, 0.9, 0.4, 0.8, 0.6, 0.7]).double(), torch.tensor([5, 5, 5, 5, 2, 8])
    calibration = AnswerCalibration.of_scores(1.0, scores, whose)
    found = calibration.p_values(torch.tensor([[0.05, 0.5, 0.75, 0.95]]).double())
    expected = [1 / 4, (1 + 2 / 4) / 4, (1 + 2 / 4 + 2) / 4, 1.0]
    assert found[0].tolist() == pytest.approx(expected, abs=1e-12)


def test_repeated_samples_of_a_subject_change_no_p_value() -> None:
    logits, labels = overconfident(40, 2.0)
    queries, _ = overconfident(30, 2.0, seed=1)
    once = AnswerCalibration.at(2.0, logits, labels)
    often = torch.randint(1, 6, (40,), generator=torch.Generator().manual_seed(0))
    rows = torch.arange(40).repeat_interleave(often)
    again = AnswerCalibration.at(2.0, logits[rows], labels[rows], subject=rows)
    probabilities = (queries / 2).softmax(1)
    assert torch.allclose(again.p_values(probabilities), once.p_values(probabilities), atol=1e-12)
    origin = torch.zeros(len(rows), dtype=torch.int64)
    _, held_out = HeldOutAnswers.of(logits[None][:, rows], labels[rows], origin, rows)
    first = torch.cat([torch.zeros(1, dtype=torch.int64), often.cumsum(0)[:-1]])
    for sample in range(0, 40, 7):  # its p-values are those of the other subjects, by the temperature of its fold
        row = int(first[sample])
        scale = (logits[sample, 0] - logits[sample, 1]) / held_out.log_classes[0, row, :2].diff().neg()
        others = torch.arange(40) != sample
        expected = AnswerCalibration.at(float(scale), logits[others], labels[others])
        assert torch.allclose(
            held_out.p_values[0, row], expected.p_values(held_out.log_classes[0, row].exp()), atol=1e-9
        )


def test_queries_of_new_subjects_miss_their_label_as_rarely_as_promised() -> None:
    """19 patients with 1, 10 or 30 visits each, which resemble each other. Counted one by one, sets miss more."""
    subjects, missed = 19, {True: 0.0, False: 0.0}
    for seed in range(600):
        whose, scores = visits_of(subjects + 1, seed)
        known = whose < subjects
        for by_subject in missed:
            own = whose[known] if by_subject else None
            calibration = AnswerCalibration.of_scores(1.0, scores[known], own)
            missed[by_subject] += float((calibration.p_values(scores[~known]) <= 0.1 + 1e-9).double().mean()) / 600
    assert missed[True] == pytest.approx(0.1, abs=0.025)
    assert missed[False] > 0.14


def test_a_temperature_changes_how_sure_an_answer_is_and_not_the_answer() -> None:
    logits, labels = overconfident(4000, 3.0)
    origin = torch.zeros(4000, dtype=torch.int64)
    both, certain = torch.stack([logits, logits.roll(1, 1)]), torch.tensor([0.0, -torch.inf]).expand(4000, 2)
    _, held_out = HeldOutAnswers.of(both, labels, origin)
    figures = answer_figures(both, held_out.log_classes, certain, labels, 1)
    assert figures["ece"] < 0.02 < 0.1 < figures["uncalibrated_ece"]  # type: ignore[operator]
    assert figures["loss"] == pytest.approx(float(torch.nn.functional.nll_loss(held_out.log_classes[0], labels)))
    assert figures["loss"] < figures["uncalibrated_loss"]  # type: ignore[operator]
    assert sum(figures["reliability"]["count"]) == 4000  # type: ignore[index]
    assert torch.equal(consult(certain, held_out.log_classes, 1).argmax(1), logits.argmax(1))


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "temperature.json"
    written = AnswerCalibration.fit(*overconfident(20, 2.0))
    file.write_bytes(written.file())
    read = AnswerCalibration.read(file, "copy it again")
    assert read.temperature == written.temperature
    assert read.scores is not None
    assert written.scores is not None
    assert torch.equal(read.scores, written.scores)
    visits = AnswerCalibration.at(2.0, *overconfident(20, 2.0), subject=torch.arange(20) // 3)
    file.write_bytes(visits.file())
    for again in (AnswerCalibration.read(file, ""), AnswerCalibration.of(visits.tensors(), file, "")):
        assert again.shares is not None
        assert visits.shares is not None
        assert torch.equal(again.shares, visits.shares)
    file.write_text('{"temperature": 1.75}')  # of a run from before label sets
    old = AnswerCalibration.read(file, "copy it again")
    assert (old.temperature, old.scores) == (1.75, None)
    for text in ("{}", '{"temperature": 0}', '{"temperature": -1}', '{"temperature": true}', '{"temperature": "1"}',
                 '{"temperature": NaN}', '{"temperature": Infinity}'):  # fmt: skip
        file.write_text(text)
        with refused("temperature.json", "no positive number", "copy it again"):
            AnswerCalibration.read(file, "copy it again")
    for scores in ("[0.5, 0.2]", "[1.5]", "[NaN]", "3", "[[0.1]]"):
        file.write_text('{"temperature": 1, "scores": ' + scores + "}")
        with refused("temperature.json", "'scores' are no ascending probabilities", "copy it again"):
            AnswerCalibration.read(file, "copy it again")
    for shares in ("[0.5]", "[0.5, 0]", "[0.5, 1.5]", "[0.5, NaN]", "1"):
        file.write_text('{"temperature": 1, "scores": [0.1, 0.2], "shares": ' + shares + "}")
        with refused("temperature.json", "'shares' are not one part of a subject for each score", "copy it again"):
            AnswerCalibration.read(file, "copy it again")
    for parts in ('"scores": ["a"]', '"scores": {"a": 1}', '"scores": [0.1], "shares": ["a"]'):
        file.write_text('{"temperature": 1, ' + parts + "}")
        with refused("temperature.json", "'scores' or 'shares' are no lists of numbers", "copy it again"):
            AnswerCalibration.read(file, "copy it again")


def test_a_head_s_calibration_is_read_from_its_tensors() -> None:
    path, written = Path("head.safetensors"), AnswerCalibration.fit(*overconfident(20, 2.0))
    read = AnswerCalibration.of(written.tensors(), path, "copy it again")
    assert written.scores is not None
    assert read.scores is not None
    assert (read.temperature, read.scores.tolist()) == (written.temperature, written.scores.tolist())
    old = AnswerCalibration.of({}, path, "copy it again")
    assert (old.temperature, old.scores) == (1.0, None)
    with refused("head.safetensors is broken", "no ascending probabilities", "copy it again"):
        AnswerCalibration.of({"scores": torch.tensor([0.5, 0.2])}, path, "copy it again")
