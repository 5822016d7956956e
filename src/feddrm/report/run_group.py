"""Groups of runs that differ by their seed alone: found below folders, named, averaged and compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from feddrm.errors import FeddrmError, SettingError
from feddrm.io.run_files import CONFIG, METRICS, SUMMARY
from feddrm.report.accuracy_measures import BEST, AnswerMetric, Measure, Score
from feddrm.report.paired_difference import PairedDifference
from feddrm.report.run_record import Metrics, RunRecord, Scores, SentBytes

# Settings that say where and how fast a run was computed, or where a file lay, not what was computed.
CIRCUMSTANCES = ("seed", "device", "engine", "threads", "plugins")


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """The given run folders, and of any other folder the runs below it that have figures; each one once."""
    runs: list[Path] = []
    for folder in folders:
        if (folder / CONFIG).is_file() or not folder.is_dir():
            runs.append(folder)
            continue
        below = sorted(path.parent for path in folder.rglob(CONFIG))
        figures = [(run, file) for run in below for file in (run / SUMMARY, run / METRICS) if file.is_file()]
        with_figures = list(dict.fromkeys(run for run, file in figures if file.stat().st_size))
        if not with_figures:
            raise FeddrmError(f"'{folder}' is not a run (no {CONFIG}) and holds none with figures: name a run's folder")
        runs += with_figures
    if not runs:
        raise SettingError("there is no run to report: name at least one run folder")
    return list(dict.fromkeys(run.resolve() for run in runs))


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Finished runs that differ by their seed alone, or any single run."""

    name: str
    records: tuple[RunRecord, ...]

    @property
    def first(self) -> RunRecord:
        """The run that stands for the group where one must be shown."""
        return self.records[0]

    @property
    def seeds(self) -> list[Any]:
        return [record.seed for record in self.records]

    @property
    def finished(self) -> bool:
        return self.first.finished

    @cached_property
    def by_measure(self) -> Mapping[Measure, list[Score]]:
        """The scores of every run that has the measure."""
        measures = sorted({m for record in self.records for m in record.scores}, key=lambda m: m.order)
        return {m: [r.scores[m] for r in self.records if m in r.scores] for m in measures}

    @cached_property
    def scores(self) -> Scores:
        """Means and standard deviations over seeds; those of a single run are its own. With the best answer."""
        if len(self.records) == 1:
            scores = dict(self.first.scores)
        else:
            means = {m: [score.mean for score in scores] for m, scores in self.by_measure.items()}
            scores = {m: Score(fmean(v), stdev(v) if len(v) > 1 else None) for m, v in means.items()}
        return scores if self.best_answer is None else {**scores, BEST: scores[self.best_answer]}

    def after_last_round(self, measure: Measure) -> Score:
        """The score after the last round, beside a router that was fitted then: a mean over rounds lags behind."""
        values = [record.after_last_round(measure) for record in self.records if measure in record.scores]
        return Score(fmean(values), stdev(values) if len(values) > 1 else None)

    @cached_property
    def metrics(self) -> Metrics:
        """The metrics of the answers that every run has: means over seeds; of a single run, its own."""
        if len(self.records) == 1:
            return self.first.metrics
        keys = [key for key in self.first.metrics if all(key in record.metrics for record in self.records)]
        values = {key: [record.metrics[key].value for record in self.records] for key in keys}
        return {key: AnswerMetric(fmean(v), std=stdev(v)) for key, v in values.items()}

    @property
    def sent(self) -> SentBytes | None:
        """What a training has sent, as a mean over seeds; None if a run does not say."""
        known = [record.sent for record in self.records if record.sent is not None]
        if len(known) < len(self.records):
            return None
        each = [sent.each for sent in known if sent.each is not None]
        return SentBytes(fmean(each) if len(each) == len(known) else None, fmean(sent.total for sent in known))

    def sent_until(self, rounds: Sequence[int]) -> list[float] | None:
        """The bytes of all rounds until each of ``rounds``, as means over seeds; None if a run does not say."""
        sent = [[p.sent for record in self.records for p in record.points if p.round == round] for round in rounds]
        values = [[value for value in of_round if value is not None] for of_round in sent]
        complete = all(len(of_round) == len(self.records) for of_round in values)
        return [fmean(of_round) for of_round in values] if complete else None

    @cached_property
    def best_answer(self) -> Measure | None:
        """How queries of unknown origin are answered best, by the mean over all seeds: one way for all of them."""
        complete = [m for m, scores in self.by_measure.items() if len(scores) == len(self.records)]
        answers = [m for m in complete if m.kind == "system" or m == Measure("global")]
        return max(answers, key=lambda m: fmean(score.mean for score in self.by_measure[m]), default=None)

    def count(self, measure: Measure) -> int:
        """How many of the runs have the measure."""
        return len(self.records) if measure == BEST else len(self.by_measure.get(measure, ()))

    def curve(self, measure: Measure) -> tuple[list[int], list[float], list[float]]:
        """Rounds, means and standard deviations over seeds (0 of one run), where every run has the measure."""
        curves = [dict(zip(*record.curve(measure), strict=True)) for record in self.records]
        rounds = [round for round in curves[0] if all(round in curve for curve in curves)]
        values = [[curve[round] for curve in curves] for round in rounds]
        return rounds, [fmean(v) for v in values], [stdev(v) if len(v) > 1 else 0.0 for v in values]

    def less(self, other: RunGroup, measure: Measure, its: Measure | None = None) -> PairedDifference | None:
        """The paired difference to another group by the same measure, or by ``its`` own; None if no run is common.

        Runs are common that have the same seed and data.

        A mean over the last rounds lags behind the last one. So figures over unequal numbers of rounds, such as a vote
        and a router that was fitted after the last round, are compared after the last round.
        """
        mine, theirs = self._chosen(measure), other._chosen(its or measure)
        rivals = other._paired_runs(theirs)
        pairs = [(run, rivals[key]) for key, run in self._paired_runs(mine).items() if key in rivals]
        if not pairs:
            return None
        if all(one.averaged(mine) == two.averaged(theirs) for one, two in pairs):
            return PairedDifference.of([one.scores[mine].mean - two.scores[theirs].mean for one, two in pairs])
        return PairedDifference.of([one.after_last_round(mine) - two.after_last_round(theirs) for one, two in pairs])

    def _chosen(self, measure: Measure) -> Measure:
        return (self.best_answer or measure) if measure == BEST else measure

    def _paired_runs(self, measure: Measure) -> dict[tuple[Any, str], RunRecord]:
        return {(run.seed, run.data_key): run for run in self.records if run.finished and measure in run.scores}


def group_runs(records: Sequence[RunRecord]) -> tuple[RunGroup, ...]:
    """The groups, in the order of their first runs. Unfinished runs stay alone."""
    alike: dict[str, list[RunRecord]] = {}
    for i, record in enumerate(records):
        alike.setdefault(_settings_key(record) if record.finished else str(i), []).append(record)
    parts: list[list[RunRecord]] = []
    for runs in alike.values():
        parts += [sorted(runs, key=lambda run: run.seed)] if _differ_by_seed(runs) else [[run] for run in runs]
    parts.sort(key=lambda runs: min(map(records.index, runs)))
    return tuple(RunGroup(name, tuple(runs)) for name, runs in zip(_group_names(parts), parts, strict=True))


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """The folder names; equal ones get as many parent folders as make them distinct."""
    names: list[str] = []
    for depth in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    short = [folder.name or str(folder) for folder in folders]
    return [name if short.count(plain) > 1 else plain for name, plain in zip(names, short, strict=True)]


def _settings_key(record: RunRecord) -> str:
    """Equal for runs whose settings are the same but for the seeds and the circumstances."""
    config = {key: value for key, value in record.config.items() if key not in CIRCUMSTANCES}
    data = config.get("data")
    if isinstance(data, Mapping):
        config["data"] = {key: value for key, value in data.items() if key != "seed"}
    checksums = [p.get("sha256") for p in record.config.get("plugins") or () if isinstance(p, Mapping)]
    return json.dumps([config, checksums], sort_keys=True, default=str)


def _differ_by_seed(runs: Sequence[RunRecord]) -> bool:
    """Whether every run has a seed of its own, and runs with one seed of the data have the same data."""
    divisions = {(str(run.data_seed), run.data_key) for run in runs}
    one_division_each = len({seed for seed, _ in divisions}) == len(divisions)
    seeds = {run.seed for run in runs}
    return len(seeds) == len(runs) and all(isinstance(seed, int) for seed in seeds) and one_division_each


def _group_names(parts: Sequence[Sequence[RunRecord]]) -> list[str]:
    """A folder that holds one group alone names it (``first`` for ``first/seed-0``), otherwise its first run does."""
    parents = [{run.folder.parent for run in runs} for runs in parts]
    folders, more = [], []
    for i, runs in enumerate(parts):
        others = set().union(*parents[:i], *parents[i + 1 :])
        alone = len(runs) > 1 and len(parents[i]) == 1 and not parents[i] & others
        folders.append(runs[0].folder.parent if alone else runs[0].folder)
        more.append("" if alone or len(runs) == 1 else f" and {len(runs) - 1} more")
    return [name + rest for name, rest in zip(distinct_names(folders), more, strict=True)]
