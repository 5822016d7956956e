"""What the page says about one run: main figures, then its training, clients, answers, routing, data and settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from feddrm.io.dataset_summary import DatasetSummary
from feddrm.io.page_files import TERMS
from feddrm.report import federation_figures, run_figures
from feddrm.report.accuracy_measures import TERM_OF_KIND, Measure, headline
from feddrm.report.client_views.client_overview import MANY
from feddrm.report.client_views.client_section import after_round, capital, client_views, routing_views
from feddrm.report.run_group import RunGroup
from feddrm.report.run_record import RunRecord
from feddrm.report.svg import Picture, inline_svg
from feddrm.report.tables import Table

TILES = {
    "average": "Average {}",
    "system": "System {}",
    "client": "Client accuracy",
    "global": "Global model",
    "oracle": "Oracle",
}


class Tile(NamedTuple):
    """One main figure of a run."""

    title: str
    value: str
    note: str
    meaning: str  # of the title, from the glossary


@dataclass(frozen=True)
class Section:
    """A heading with notes, then figures, then tables."""

    heading: str
    notes: Sequence[str] = ()
    figures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    side_by_side: bool = False  # the tables
    searchable: Table | None = None  # all rows of what the tables show some of


@dataclass(frozen=True)
class RunView:
    """Everything that the page says about one run. ``badge`` is the state of an unfinished one."""

    name: str
    lead: str
    badge: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]


def run_view(group: RunGroup, key: str) -> RunView:
    """What the page says about a group: its figures over all seeds, and the details of its first run."""
    record = group.first
    clients = len(record.clients) or (len(record.dataset.names) if record.dataset else 0)
    at = f" at {clients} clients" if clients else ""
    rounds = record.rounds if record.finished else record.round
    lead = f"{record.method} on {record.data}{at}, model {record.model}{'' if rounds is None else f', {rounds} rounds'}"
    if len(group.records) > 1:
        seeds = ", ".join(map(str, group.seeds))
        lead += f", seeds {seeds}. Figures below the tiles are of {record.name} alone (seed {record.seed})."
    sections = [_training(record, key), _clients(record, key), _answers(record, key), _routing(record, key)]
    sections += [_data(record.dataset, key) if record.dataset else None, _settings(record)]
    shown = [section for section in sections if section is not None]
    return RunView(group.name, lead, "" if group.finished else record.status, _tiles(group), shown)


def _tiles(group: RunGroup) -> list[Tile]:
    tiles = []
    over = f" over {len(group.records)} seeds" if len(group.records) > 1 else ""
    for kind, title in TILES.items():
        measure = headline(kind, group.by_measure)
        if measure is not None:
            score = group.scores[measure]
            note = [
                f"{score.spread}{over}" if score.spread else "last round",
                *([measure.label] if measure.rule else []),
            ]
            tiles.append(
                Tile(title.format(group.first.noun), f"{score.mean:.2%}", " · ".join(note), TERMS[TERM_OF_KIND[kind]])
            )
    return tiles


def _training(record: RunRecord, key: str) -> Section | None:
    measures = run_figures.curve_measures(record)
    answers = [m for m in measures if m.kind != "client"]
    recalls = [m for m in measures if m.kind == "client"]
    losses = [(p.round, p.loss) for p in record.points if p.loss is not None]
    pictures = []
    if answers:
        last = _last_values(record, answers)
        title = f"{capital(record.noun)} over rounds"
        svg = inline_svg(lambda: run_figures.accuracy_figure(record), f"{key}-accuracy", title, last)
        pictures.append(Picture(svg, f"{title}. {last}"))
    if recalls:
        last = _last_values(record, recalls)
        title = "Client accuracy over rounds"
        svg = inline_svg(lambda: run_figures.routing_figure(record), f"{key}-routing", title, last)
        pictures.append(Picture(svg, f"{title}: how often the router names a sample's own client. {last}"))
    if losses:
        (first, start), (final, end) = losses[0], losses[-1]
        change = f"From {start:.4g} in round {first} to {end:.4g} in round {final}."
        svg = inline_svg(lambda: run_figures.loss_figure(record), f"{key}-loss", "Training loss over rounds", change)
        pictures.append(Picture(svg, f"Mean training loss. {change}"))
    return Section("Training", figures=pictures) if pictures else None


def _last_values(record: RunRecord, measures: Sequence[Measure]) -> str:
    point = record.points[-1]
    values = ", ".join(f"{m.title} {point.scores[m].mean:.1%}" for m in measures if m in point.scores)
    return f"Round {point.round}: {values}."


def _clients(record: RunRecord, key: str) -> Section | None:
    if not record.clients:
        return None
    figures, tables, searchable = client_views(record, key)
    return Section("Clients", (), figures, tables, side_by_side=searchable is not None, searchable=searchable)


def _answers(record: RunRecord, key: str) -> Section | None:
    confusion = record.class_confusion
    if not confusion:
        return None
    size = len(next(iter(confusion.values())))
    known = record.dataset is not None and len(record.dataset.classes) == size
    names = list(record.dataset.classes) if record.dataset is not None and known else [str(i) for i in range(size)]
    shares = ", ".join(f"{who} {counts.trace() / max(1, counts.sum()):.1%}" for who, counts in confusion.items())
    result = f"Right answers: {shares}."
    svg = inline_svg(
        lambda: run_figures.confusion_figure(names, confusion, ("answered", "class")),
        f"{key}-classes",
        "Confusion of the classes",
        result,
    )
    caption = f"How every class's test samples are answered, in percent of them{after_round(record)}. {result}"
    return Section("Answers", figures=[Picture(svg, caption)])


def _routing(record: RunRecord, key: str) -> Section | None:
    pictures, groups, _ = routing_views(record, key)
    if not pictures:
        return None
    for curve, kind, title, axes, what in (
        (record.reliability, "reliability", "Reliability of the router", ("sent home", "client probability"),
         "How sure the exact router is of the client (posterior rule) against how often it is right."),
        (record.answer_reliability, "answers", "Reliability of the answers", ("right", "label probability"),
         "How sure the client that is asked (density rule) is of the label against how often it is right."),
    ):  # fmt: skip
        if curve is not None:
            pictures.append(_reliability(curve, f"{key}-{kind}", title, axes, what))
    return Section("Routing", figures=pictures, tables=[*groups, *_label_sets(record)])


def _label_sets(record: RunRecord) -> list[Table]:
    """How often label sets hold the label; empty for a run whose router is older."""
    measured = ((record.summary or {}).get("router") or {}).get("label_sets", {})
    rows = [
        [head, f"{1 - float(miss):.0%}", f"{row['covered']:.1%}", *(f"{row[k]:.2f}" for k in ("size", "asked")),
         f"{row['empty']:.1%}"]
        for head, misses in measured.items() for miss, row in misses.items()
    ]  # fmt: skip
    header = ["Heads", "Asked for", "Label in the set", "Labels per set", "Clients asked", "Empty sets"]
    caption = "Label sets for test samples of unknown origin, each measured by scores of other samples."
    return [Table.of(header, rows, caption)] if rows else []


def _reliability(curve: Mapping[str, Any], key: str, title: str, axes: tuple[str, str], what: str) -> Picture:
    bins = zip(curve["count"], curve["confidence"], curve["accuracy"], strict=True)
    gap = sum(count * abs(confidence - accuracy) for count, confidence, accuracy in bins)
    error = f"Expected calibration error {gap / max(1, sum(curve['count'])):.1%}."
    svg = inline_svg(lambda: run_figures.reliability_figure(curve, *axes), key, title, error)
    return Picture(svg, f"{what} A larger mark means more samples. {error}")


def _data(dataset: DatasetSummary, key: str) -> Section:
    facts, pictures = dataset.facts, []
    survival = dataset.label_noun == "interval"
    nouns = "intervals" if survival else "classes"
    size = f"{dataset.name}: {int(dataset.sizes.sum())} training samples, {len(dataset.classes)} {nouns}"
    source = f", from {facts['source']}" if facts.get("source") else ""
    notes = [f"{size}{source}."]
    counts = dataset.counts
    if counts is None:
        notes.append("Only a site itself knows how many samples of each class it holds.")
    else:
        most = [dataset.classes[int(i)] for i in counts.argmax(1)] if len(dataset.classes) else []
        description = "; ".join(
            f"{name}: {int(n)} samples, most {'end in' if survival else 'of class'} {top}"
            for name, n, top in list(zip(dataset.names, counts.sum(1), most, strict=True))[:MANY]
        )
        svg = inline_svg(
            lambda: federation_figures.label_figure(dataset),
            f"{key}-labels",
            f"Samples per client and {dataset.label_noun}",
            description,
        )
        ends = "Training and test samples of every client by the interval in which their follow-up ends."
        shift = "Label shift: training and test samples of every class at every client."
        pictures.append(Picture(svg, ends if survival else shift))
    if dataset.gallery is not None:
        title = "The same samples as every client sees them" if dataset.same_samples else "Samples of every client"
        description = f"One row per client. {_shifts(facts)}"
        caption = f"Covariate shift: {title[0].lower()}{title[1:]}. {_shifts(facts)}"
    elif dataset.column_means is not None:
        title = "Column means of every client"
        description = "In standard deviations of the pooled training data, from −2 (blue) to 2 (red)."
        caption = f"Covariate shift: the mean of every column at every client. {description}"
    else:
        return Section("Data", notes, pictures)
    svg = inline_svg(lambda: federation_figures.view_figure(dataset), f"{key}-view", title, description)
    return Section("Data", notes, [*pictures, Picture(svg, caption)])


def _shifts(facts: Mapping[str, Any]) -> str:
    shifts = [f"{c['name']}: {c['shift']}" for c in facts["clients"] if c.get("shift", "none") != "none"]
    more = f"; and {len(shifts) - MANY:,} more" if len(shifts) > MANY else ""
    return f"Shifts: {'; '.join(shifts[:MANY])}{more}." if shifts else ""


def _settings(record: RunRecord) -> Section:
    tables = [Table.of(["Setting", "Value"], flat(record.config), "The run's configuration.")]
    facts = {
        k: v for k, v in (record.summary or {}).items() if not k.endswith(("_accuracy", "_c_index")) and k != "metrics"
    }
    if facts:
        tables.append(Table.of(["Fact", "Value"], flat(facts), "How it ran."))
    return Section("Settings", tables=tables, side_by_side=True)


def flat(values: Mapping[Any, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as pairs of a dotted name and plain text."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            rows += flat(value, f"{name}.")
        elif isinstance(value, float):
            rows.append((name, f"{value:.6g}"))
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            items = (", ".join(f"{k} {v}" for k, v in flat(item)) for item in value)
            rows.append((name, "; ".join(items)))
        elif value is None or isinstance(value, bool | list | dict):
            rows.append((name, json.dumps(value, ensure_ascii=False, default=str)))
        else:
            rows.append((name, str(value)))
    return rows
