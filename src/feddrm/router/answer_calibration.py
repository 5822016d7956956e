"""Calibrating the clients' answers: one temperature per client and kind of head, which stays with the client.

The temperature is fitted on the client's test samples. The network has seen all others, and so has the trunk under a
head that is refitted on folds: temperatures of training samples leave answers overconfident (docs/router.md). Dividing
logits by a temperature changes no label, so it changes no accuracy of a client.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from feddrm.io.text import broken, json_bytes, read_json
from feddrm.router.policy import client_slopes, consult, reliability, solve_temperature
from feddrm.router.settings import Holdout

FOLDS = Holdout(5, 5)


def answer_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature of a client from its logits [n, K] of test samples; 1 without any."""
    return solve_temperature(lambda scale: client_slopes(logits, labels, scale)) if len(labels) else 1.0


def temperature_file(temperature: float) -> bytes:
    """The content of the file of a trained model's temperature. It is private: it tells how good the model is."""
    return json_bytes({"temperature": temperature})


def read_temperature(file: Path, remedy: str) -> float:
    """The temperature of a client's trained model."""
    value = read_json(file, remedy).get("temperature")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise broken(file, "'temperature' is no positive number", remedy)
    return float(value)


def held_out_temperatures(logits: Tensor, labels: Tensor, origin: Tensor) -> tuple[list[float], Tensor]:
    """Every client's temperature, and for every client and test sample one that was fitted without the sample [m, N].

    ``logits`` [m, N, K] are those of all clients' heads. A client's temperature depends on its own samples alone.
    """
    kept: list[float] = []
    without = torch.empty(logits.shape[:2], dtype=torch.float64, device=logits.device)
    for client, scores in enumerate(logits):
        own = (origin == client).nonzero()[:, 0]
        kept.append(answer_temperature(scores[own], labels[own]))
        without[client] = kept[-1]
        part = FOLDS.draw(client, len(own), seed=0).to(own.device)
        for fold in range(FOLDS.used):
            rest = own[part != fold]
            without[client, own[part == fold]] = answer_temperature(scores[rest], labels[rest])
    return kept, without


def answer_figures(
    logits: Tensor, log_weights: Tensor, labels: Tensor, temperatures: Tensor, k: int | None
) -> dict[str, object]:
    """How far the answers of the ``k`` best clients can be trusted: calibration error and log-loss."""
    figures: dict[str, object] = {}
    for prefix, scale in (("", temperatures), ("uncalibrated_", torch.ones_like(temperatures))):
        answers = consult(log_weights, (logits / scale[:, :, None]).log_softmax(-1), k)
        curve = reliability(answers, labels)
        figures[f"{prefix}ece"] = curve.error
        figures[f"{prefix}loss"] = -float(answers.gather(1, labels[:, None]).mean())
        if not prefix:
            figures["reliability"] = curve.as_dict()
    return figures
