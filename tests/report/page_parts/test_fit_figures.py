"""What fit-router prints of its figures: rows in groups, and the sentence that says which to look at."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from feddrm.report.page_parts.fit_figures import fit_rows, fit_sentence
from feddrm.report.run_record import RunRecord

CLIENT = {"joint_posterior": 0.98, "exact_density": 0.9945, "head_density": 0.9}
SYSTEM = {
    "vote": 0.2,
    "rival_entropy": 0.4,
    "stacked": 0.844,
    "consult_all": 0.8,
    "exact_density": 0.8287,
    "later_rule": 0.1,
    "head_density": 0.7842,
}


def record(folder: Path, system: Mapping[str, float], last_oracle: float | None = None) -> RunRecord:
    """A run with these means in its summary, and an oracle of its own in the last round."""
    summary = json.loads((folder / "summary.json").read_text())
    kept = {key: value for key, value in summary.items() if not key.endswith("_accuracy")}
    kept |= {key: {"mean": 0.7, "std": 0.01} for key in ("average_accuracy", "oracle_accuracy")}
    for kind, scores in (("client", CLIENT), ("system", system)):
        kept[f"{kind}_accuracy"] = {rule: {"mean": mean, "std": None} for rule, mean in scores.items()}
    (folder / "summary.json").write_text(json.dumps(kept))
    if last_oracle is not None:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        lines[-1] = json.dumps(json.loads(lines[-1]) | {"oracle_accuracy": last_oracle})
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return RunRecord.read(folder)


def test_every_figure_stands_once_in_its_group(make_run: Callable[..., Path]) -> None:
    assert fit_rows(record(make_run(), SYSTEM)) == [
        ["client: right client named", "exact, density", "99.45"],
        ["", "head, density", "90.00"],
        ["", "joint model, posterior", "98.00"],
        ["system: one client asked", "exact, density", "82.87"],
        ["", "head, density", "78.42"],
        ["system: several asked", "consult all", "80.00"],
        ["", "vote", "20.00"],
        ["system: heads of this fit", "stacked", "84.40"],
        ["system: for comparison", "rival: least entropy", "40.00"],
        ["", "later rule", "10.00"],
        ["oracle: own client asked", "own heads", "70.00"],
    ]


@pytest.mark.parametrize(
    ("rules", "ways"),
    [
        ([*SYSTEM], "one client asked 82.9, all consulted 80.0, stacked heads 84.4"),
        (["vote", "exact_density"], "one client asked 82.9"),
    ],
)
def test_the_sentence_compares_after_the_last_round(make_run: Callable[..., Path], rules: list[str], ways: str) -> None:
    """A mean of the ceiling over several rounds lags behind a router that was fitted after the last one."""
    run = record(make_run(), {rule: SYSTEM[rule] for rule in rules}, last_oracle=0.831)
    rounds = json.loads((run.folder / "summary.json").read_text())["rounds"]
    assert fit_sentence(run) == (
        f"After round {rounds}, right answers to queries of unknown origin, in percent: {ways}; 83.1 if each went to "
        "its own client. The router names that client for 99.5 %."
    )
