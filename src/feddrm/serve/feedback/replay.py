"""Replay: what another artifact would have decided about the queries whose features a use log has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from feddrm.errors import FeddrmError
from feddrm.io.run_files import RunFiles
from feddrm.io.staging import Snapshot
from feddrm.predictor.predictor import Predictor, private_slots
from feddrm.report.paired_difference import PairedDifference
from feddrm.router import Router, load_router
from feddrm.router.artifact import artifact_version
from feddrm.serve.feedback.serving_state import artifact_folder
from feddrm.serve.feedback.use_log import reading

ABSTAINS = "(abstains)"
QUERY = "SELECT features, outcome, client, label FROM uses WHERE features IS NOT NULL AND artifact = ? ORDER BY number"
REMEDY = "record features with 'feddrm serve --use-log FILE --record-features N'"


class Recorded(NamedTuple):
    """The features of queries, their outcomes where these are known, and who answered what."""

    features: NDArray[np.float32]
    outcomes: Sequence[str | None]
    clients: Sequence[str | None]
    labels: Sequence[str | None]


@dataclass(frozen=True)
class ReplayResult:
    """Decisions of two artifacts on the same queries.

    ``moves`` counts changed decisions by the former and the new client. ``better`` and ``worse`` count those whose new
    client is right in place of a wrong one, and the other way round. ``gain`` is the difference of
    the accuracies on all ``judged`` queries, new less old. They have an outcome, and either both artifacts choose the
    same client, or both clients' answers are known.
    """

    queries: int
    changed: int
    moves: Mapping[tuple[str, str], int]
    judged: int
    unknown: int  # changed decisions with an outcome for which a client's answer is not known
    better: int
    worse: int
    gain: PairedDifference | None

    def as_dict(self) -> dict[str, Any]:
        moves = [{"from": old, "to": new, "queries": number} for (old, new), number in self.moves.items()]
        gain = None if self.gain is None else {"mean": self.gain.mean, "interval": self.gain.interval}
        counts = {name: getattr(self, name) for name in ("queries", "changed", "judged", "unknown", "better", "worse")}
        return {**counts, "gain": gain, "moves": moves}


def replay(use_log: Path, run: Path, new: Path, rule: str = "density", coverage: float = 1.0) -> ReplayResult:
    """Compare a run's router with another one on recorded features.

    Answers of clients whose private parts are in the run's folder are computed, if they take features.
    """
    folders = artifact_folder(run), artifact_folder(new)
    routers = [load_router(folder) for folder in folders]
    recorded = _read(use_log, routers[0], folders[0])
    if routers[1].recipe != routers[0].recipe or not _same_trunk(*routers):
        raise FeddrmError(
            f"{folders[1]} computes other features ({routers[1].recipe.name}) than {folders[0]} "
            f"({routers[0].recipe.name}): replay needs the same trunk and features; try it as a challenger"
        )
    choices = [_choices(router, recorded.features, rule, coverage) for router in routers]
    changed = [i for i, pair in enumerate(zip(*choices, strict=True)) if pair[0] != pair[1]]
    moves = Counter((choices[0][i], choices[1][i]) for i in changed)
    answers = _ClientAnswers(run, recorded)
    same, unknown, gains = 0, 0, []
    for i, outcome in enumerate(recorded.outcomes):
        old, chosen = choices[0][i], choices[1][i]
        if outcome is None:
            continue
        if old == chosen:
            same += 1
            continue
        rights = [answers.right(client, i, outcome) for client in (old, chosen)]
        if rights[0] is None or rights[1] is None:
            unknown += 1
        else:
            gains.append(int(rights[1]) - int(rights[0]))
    judged = same + len(gains)
    return ReplayResult(
        queries=len(recorded.outcomes),
        changed=len(changed),
        moves=dict(moves.most_common()),
        judged=judged,
        unknown=unknown,
        better=gains.count(1),
        worse=gains.count(-1),
        gain=PairedDifference.of([float(gain) for gain in gains] + [0.0] * same) if judged else None,
    )


def _read(use_log: Path, router: Router, folder: Path) -> Recorded:
    with reading(use_log) as database:
        rows = database.execute(QUERY, (artifact_version(folder),)).fetchall()
    if not rows:
        raise FeddrmError(
            f"{use_log} has no features of queries to {folder}: {REMEDY}, or give the run that was served"
        )
    features, outcomes, clients, labels = zip(*rows, strict=True)
    width = router.weight.shape[1]
    return Recorded(np.frombuffer(b"".join(features), "<f4").reshape(-1, width).copy(), outcomes, clients, labels)


def _same_trunk(old: Router, new: Router) -> bool:
    """Whether both routers compute the same features of a sample."""
    return old.leaves.keys() == new.leaves.keys() and all(
        torch.equal(value, new.leaves[leaf]) for leaf, value in old.leaves.items()
    )


def _choices(router: Router, features: NDArray[np.float32], rule: str, coverage: float) -> list[str]:
    decision = router.route_features(torch.from_numpy(features), rule=rule, coverage=coverage)
    pairs = zip(decision.client.tolist(), decision.reason, strict=True)
    return [ABSTAINS if reason else router.names[client] for client, reason in pairs]


class _ClientAnswers:
    """The labels that clients of a run give to recorded features; nobody is right who abstains."""

    def __init__(self, run: Path, recorded: Recorded) -> None:
        self.run, self.recorded = RunFiles(run), recorded
        self._labels: dict[str, list[str] | None] = {}

    def right(self, client: str, query: int, outcome: str) -> bool | None:
        """Whether the client's answer is the outcome; None if its answer cannot be computed here."""
        if client == ABSTAINS:
            return False
        if self.recorded.clients[query] == client and self.recorded.labels[query] is not None:
            return self.recorded.labels[query] == outcome
        if client not in self._labels:
            self._labels[client] = self._answer(client)
        labels = self._labels[client]
        return None if labels is None else labels[query] == outcome

    def _answer(self, client: str) -> list[str] | None:
        files = self.run.client(client)
        if private_slots(files, self.run, Snapshot.of(self.run.router)) is None:
            return None
        predictor = Predictor.load(files.path, self.run.path)
        if not predictor.takes_features:
            return None
        (probabilities,) = predictor([("features", self.recorded.features)])
        return [predictor.classes[best] for best in probabilities.argmax(1).tolist()]
