"""Temperatures of the clients' answers: fitted, held out, written and read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from feddrm.router.answer_calibration import (
    answer_figures,
    answer_temperature,
    held_out_temperatures,
    read_temperature,
    temperature_file,
)
from feddrm.router.policy import consult
from refusal import refused


def overconfident(samples: int, factor: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that are ``factor`` times those that the labels were drawn by."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(samples, 3, generator=g, dtype=torch.float64)
    return factor * logits, torch.multinomial(logits.softmax(1), 1, generator=g)[:, 0]


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_the_temperature_undoes_a_factor(factor: float) -> None:
    assert answer_temperature(*overconfident(20_000, factor)) == pytest.approx(factor, rel=0.03)


def test_a_client_without_test_samples_keeps_its_confidence() -> None:
    assert answer_temperature(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)) == 1.0


def test_a_sample_takes_no_part_in_the_temperature_it_is_measured_with() -> None:
    logits, labels = overconfident(60, 2.0)
    both = torch.stack([logits, 3 * logits])
    origin = torch.arange(60) % 2
    kept, without = held_out_temperatures(both, labels, origin)
    for client in (0, 1):
        own = origin == client
        assert kept[client] == answer_temperature(both[client][own], labels[own])
        assert set(without[client, ~own].tolist()) == {kept[client]}  # others' samples took no part anyway
        assert len(set(without[client, own].tolist())) == 5
    changed = labels.clone()
    changed[0] = (labels[0] + 1) % 3
    _, after = held_out_temperatures(both, changed, origin)
    assert after[0, 0] == without[0, 0]
    assert (after[0, origin == 0] != without[0, origin == 0]).sum() == 24  # all of its client but its own fold


def test_a_temperature_changes_how_sure_an_answer_is_and_not_the_answer() -> None:
    logits, labels = overconfident(4000, 3.0)
    origin = torch.zeros(4000, dtype=torch.int64)
    both, certain = torch.stack([logits, logits.roll(1, 1)]), torch.tensor([0.0, -torch.inf]).expand(4000, 2)
    _, without = held_out_temperatures(both, labels, origin)
    figures = answer_figures(both, certain, labels, without, 1)
    assert figures["ece"] < 0.02 < 0.1 < figures["uncalibrated_ece"]  # type: ignore[operator]
    assert figures["loss"] < figures["uncalibrated_loss"]  # type: ignore[operator]
    assert sum(figures["reliability"]["count"]) == 4000  # type: ignore[index]
    scaled = (both / without[:, :, None]).log_softmax(-1)
    assert torch.equal(consult(certain, scaled, 1).argmax(1), logits.argmax(1))


def test_a_temperature_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "temperature.json"
    file.write_bytes(temperature_file(1.75))
    assert read_temperature(file, "copy it again") == 1.75
    for text in ("{}", '{"temperature": 0}', '{"temperature": -1}', '{"temperature": true}', '{"temperature": "1"}',
                 '{"temperature": NaN}', '{"temperature": Infinity}'):  # fmt: skip
        file.write_text(text)
        with refused("temperature.json", "no positive number", "copy it again"):
            read_temperature(file, "copy it again")
