"""Run folders as training leaves them, for tests: realistic figures, computed by a formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from feddrm.data import Federation
from feddrm.data.summary import dataset_summary

RULES = ("head_density", "head_posterior")


def metrics_line(round: int, skill: float = 0.8, stage: str = "train") -> dict[str, Any]:
    grown = skill * (1 - np.exp(-round / 12))
    return {
        "round": round,
        "stage": stage,
        "lr": 0.01,
        "loss": 2.3 * float(np.exp(-round / 15)),
        "average_accuracy": grown,
        "oracle_accuracy": grown - 0.01,
        "global_accuracy": grown - 0.15,
        "client_accuracy": {"head_density": grown - 0.1, "head_posterior": grown - 0.09},
        "system_accuracy": {
            "vote": grown - 0.2,
            "head_density": grown - 0.13,
            "head_posterior": grown - 0.12,
            "global": grown - 0.15,
        },
    }


def summary_of(line: dict[str, Any]) -> dict[str, Any]:
    def spread(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spread(v) for key, v in value.items()}
        return None if value is None else {"mean": value, "std": 0.00421}

    return {key: spread(value) for key, value in line.items() if key.endswith("_accuracy")} | {
        "window": 5,
        "rounds": line["round"],
        "seconds": {"train": 12.3456789, "evaluate": 3.2, "total": 15.6},
        "hardware": {"device": "cpu", "cores": 2},
        "versions": {"feddrm": "0.1", "torch": "2.13.0"},
    }


def evaluation_of(federation: Federation, round: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    m = len(federation)
    confusion = {}
    for rule in RULES:
        counts = rng.integers(0, 4, (m, m))
        counts[np.arange(m), np.arange(m)] += [len(c.test) // 2 for c in federation.clients]
        confusion[rule] = counts.tolist()
    per_client = [
        {
            "name": client.name,
            "train": len(client.train),
            "test": len(client.test),
            "own": float(rng.uniform(0.7, 0.9)),
            "global": float(rng.uniform(0.5, 0.7)),
            "vote": float(rng.uniform(0.4, 0.7)),
            "head_density": float(rng.uniform(0.6, 0.8)),
            "head_posterior": float(rng.uniform(0.6, 0.8)),
            "recall_density": float(rng.uniform(0.5, 0.9)),
            "recall_posterior": None,
        }
        for client in federation.clients
    ]
    return {"round": round, "per_client": per_client, "confusion": confusion}


def communication_of(rounds: int, each: int, tune: int = 0) -> dict[str, Any]:
    """The entry of a summary: two clients that get and send ``each`` bytes; none are sent in ``tune`` rounds."""

    def stage(rounds: int, up: int) -> dict[str, Any]:
        messages = 2 * rounds
        counts = {"rounds": rounds, "downloads": messages, "uploads": messages}
        sizes = {"bytes_down": messages * each, "bytes_up": messages * up}
        return {**counts, **sizes, "bytes_per_download": float(each), "bytes_per_upload": float(up)}

    stages = {"train": stage(rounds - tune, each)} | ({"tune": stage(tune, 0)} if tune else {})
    down, up = (sum(one[f"bytes_{way}"] for one in stages.values()) for way in ("down", "up"))
    return {"bytes_down": down, "bytes_up": up, "bytes_total": down + up, "stages": stages}


def metrics_of(skill: float, clients: list[str]) -> dict[str, Any]:
    """The metrics of a summary; ``system`` has no AUROC, as if all samples were of one class."""

    def figure(value: float) -> dict[str, Any]:
        return {"value": value, "interval": [value - 0.02, value + 0.01]}

    own = {
        name: figure(skill - 0.01 * i) for i, name in enumerate(("accuracy", "balanced_accuracy", "macro_f1", "ece"))
    }
    own |= {"brier": figure(0.12345), "worst_client": {"name": clients[1], **figure(skill - 0.3)}}
    system = {**own, "accuracy": figure(skill - 0.05), "auroc": None}
    return {"own": {**own, "auroc": {**figure(0.98765), "error_bound": 0.0004}}, "system": system}


def write_run(
    folder: Path,
    federation: Federation,
    *,
    method: str = "feddrm",
    skill: float = 0.8,
    finished: bool = True,
    tune: int = 0,
    rounds: int = 60,
    seed: int = 0,
    metrics: bool = False,
    each: int | None = None,
) -> Path:
    """Write a run folder; ``skill`` is the average accuracy that the run approaches, ``each`` as two clients send it.

    Older runs do not say what was sent.
    """
    folder.mkdir(parents=True)
    config = {
        "data": {"name": federation.name, "clients": len(federation), "alpha": 0.3},
        "method": {"name": method, "weight": 0.4},
        "model": {"name": "lenet", "width": 16},
        "rounds": rounds,
        "local_steps": 10,
        "batch_size": 128,
        "lr": 0.01,
        "seed": seed,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    last = rounds if finished else rounds // 2
    lines = [metrics_line(r, skill, "tune" if r > rounds - tune else "train") for r in range(5, last + 1, 5)]
    if each is not None:
        for line in lines:
            sent = communication_of(line["round"], each, max(0, line["round"] - rounds + tune))
            line["communication"] = {key: value for key, value in sent.items() if key != "stages"}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        names = [client.name for client in federation.clients]
        measured = {"metrics": metrics_of(skill, names)} if metrics else {}
        if each is not None:
            measured["communication"] = communication_of(rounds, each, tune)
        (folder / "summary.json").write_text(json.dumps({**summary_of(lines[-1]), **measured}))
    evaluation = evaluation_of(federation, last)
    if metrics:
        counts = np.eye(len(federation.classes), dtype=int) * 7 + 1
        evaluation["class_confusion"] = {"own": counts.tolist(), "system": counts.T.tolist()}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    dataset_summary(federation).write(folder)
    return folder
