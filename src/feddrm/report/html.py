"""What a report says, in order: figures at a glance, table, curves, clients, routing, data, settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from feddrm._version import __version__
from feddrm.data.summary import DatasetSummary
from feddrm.report import figures, pictures
from feddrm.report.measures import KINDS, MEANINGS, Measure, headline, rule_label
from feddrm.report.page import figure, page, scrolling, simple_table
from feddrm.report.run import RunRecord
from feddrm.report.svg import inline_svg
from feddrm.report.tables import Table

TILES = {
    "average": "Average accuracy",
    "system": "System accuracy",
    "client": "Client accuracy",
    "global": "Global model",
    "oracle": "Oracle",
}


def report_page(table: Table) -> str:
    """The whole document for one run or for several."""
    if len(table.records) == 1:
        return _single(table)
    return _several(table)


def _single(table: Table) -> str:
    record, name = table.records[0], table.names[0]
    header = f"<h1>{escape(name)}</h1>{_lead(record)}{_tiles(record)}"
    body = "<h2>Results</h2>" + scrolling(table.html(), "Results") + _words(table) + _sections(record, "r1", 2)
    return page(f"{name} · feddrm report", header, body, _footer())


def _several(table: Table) -> str:
    names, records = table.names, table.records
    links = "".join(f'<li><a href="#run-{i}">{escape(name)}</a></li>' for i, name in enumerate(names, start=1))
    datasets = ", ".join(dict.fromkeys(record.data for record in records))
    header = (
        f'<h1>{len(records)} runs compared</h1><p class="lead">{escape(datasets)}</p>'
        f'<nav aria-label="Runs"><ul>{links}</ul></nav>'
    )
    body = "<h2>Results</h2>" + scrolling(table.html(links=True), "Results of all runs")
    shown = figures.comparison_measures(records)
    told = "; ".join(
        f"{name}: {', '.join(f'{m.title} {r.scores[m].mean:.1%}' for m in shown if m in r.scores)}"
        for name, r in zip(names, records, strict=True)
    )
    if shown:
        svg = inline_svg(lambda: figures.comparison_figure(names, records), "compare", "Accuracies of all runs", told)
        body += figure(svg, "The main accuracies of every run on one scale; the table has all.")
    if any(record.points for record in records):
        svg = inline_svg(
            lambda: figures.comparison_curves(names, records),
            "curves",
            "Average and system accuracy of all runs over rounds",
            "One line per run; the last values stand in the table above.",
        )
        body += figure(
            svg,
            "Over rounds. One rule stands for each run's system accuracy, chosen before looking: "
            "the router's density rule where there is a router, the vote otherwise.",
        )
    body += _words(table) + _differences(names, records)
    for i, (name, record) in enumerate(zip(names, records, strict=True), start=1):
        body += f'<section id="run-{i}" aria-labelledby="run-{i}-name"><h2 id="run-{i}-name">{escape(name)}</h2>'
        body += _lead(record) + _tiles(record) + _sections(record, f"r{i}", 3) + "</section>\n"
    return page(f"{len(records)} runs compared · feddrm report", header, body, _footer())


def _lead(record: RunRecord) -> str:
    clients = len(record.clients) or (len(record.portrait.names) if record.portrait else 0)
    at = f" at {clients} clients" if clients else ""
    rounds = record.rounds if record.finished else record.round
    text = f"{record.method} on {record.data}{at}, model {record.model}{'' if rounds is None else f', {rounds} rounds'}"
    badge = "" if record.finished else f' <span class="badge">{escape(record.status)}</span>'
    note = "" if record.finished else '<p class="note">Figures of the last evaluated round, not of a finished run.</p>'
    return f'<p class="lead">{escape(text)}{badge}</p>{note}'


def _tiles(record: RunRecord) -> str:
    tiles = []
    for kind, title in TILES.items():
        measure = headline(kind, record.scores)
        if measure is None:
            continue
        score = record.scores[measure]
        small = [f"± {100 * score.std:.2f}" if score.std is not None else "last round"]
        small += [measure.label] if measure.rule else []
        below = f"<small>{escape(' · '.join(small))}</small>"
        tiles.append(f'<div class="tile"><dt>{title}</dt><dd>{score.mean:.2%}{below}</dd></div>')
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _words(table: Table) -> str:
    kinds = {measure.kind for measure in table.columns}
    words = "".join(f"<dt>{k.capitalize()}</dt><dd>{MEANINGS[k]}</dd>" for k in KINDS if k in kinds)
    return f'<dl class="words">{words}</dl>'


def _differences(names: Sequence[str], records: Sequence[RunRecord]) -> str:
    """The settings in which the runs differ, and those alone."""
    settings = [dict(flat(record.config)) for record in records]
    keys = dict.fromkeys(key for given in settings for key in given)
    rows = [[key, *(given.get(key, "–") for given in settings)] for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    if not rows:
        return ""
    return "<h2>What differs</h2>" + simple_table(
        "Settings in which these runs differ; all others are the same.", ["Setting", *names], rows
    )


def _sections(record: RunRecord, key: str, level: int) -> str:
    parts = [*_training(record, key), *_clients(record, key), *_routing(record, key)]
    if record.portrait is not None:
        parts += _data(record.portrait, key)
    parts += _settings(record)
    return "".join(f"<h{level}>{escape(part)}</h{level}>" if heading else part for heading, part in parts)


Parts = Iterator[tuple[bool, str]]  # (True, the text of a heading) or (False, HTML)


def _training(record: RunRecord, key: str) -> Parts:
    measures = figures.curve_measures(record)
    losses = [(p.round, p.loss) for p in record.points if p.loss is not None]
    if not measures and not losses:
        return
    yield True, "Training"
    if any(m.kind != "client" for m in measures):
        told = _last(record, [m for m in measures if m.kind != "client"])
        svg = inline_svg(lambda: figures.accuracy_figure(record), f"{key}-accuracy", "Accuracy over rounds", told)
        yield False, figure(svg, f"Accuracy over rounds. {told}")
    if any(m.kind == "client" for m in measures):
        told = _last(record, [m for m in measures if m.kind == "client"])
        svg = inline_svg(lambda: figures.routing_figure(record), f"{key}-routing", "Client accuracy over rounds", told)
        yield (
            False,
            figure(svg, f"Client accuracy over rounds: how often the router finds a sample's own client. {told}"),
        )
    if losses:
        told = f"From {losses[0][1]:.4g} in round {losses[0][0]} to {losses[-1][1]:.4g} in round {losses[-1][0]}."
        svg = inline_svg(lambda: figures.loss_figure(record), f"{key}-loss", "Training loss over rounds", told)
        yield False, figure(svg, f"Mean training loss. {told}")


def _last(record: RunRecord, measures: Sequence[Measure]) -> str:
    point = record.points[-1]
    told = ", ".join(f"{m.title} {point.scores[m].mean:.1%}" for m in measures if m in point.scores)
    return f"Round {point.round}: {told}."


def _clients(record: RunRecord, key: str) -> Parts:
    if not record.clients:
        return
    answers = figures.client_series(record.clients, recall=False)
    recalls = figures.client_series(record.clients, recall=True)
    yield True, "Clients"
    if answers:
        told = "; ".join(
            f"{c.name}: {', '.join(f'{figures.client_label(k)} {_percent(c.values.get(k))}' for k in answers)}"
            for c in record.clients
        )
        svg = inline_svg(lambda: figures.client_figure(record.clients), f"{key}-clients", "Accuracy per client", told)
        yield (
            False,
            figure(svg, "Accuracy on every client's test samples: its own model as a bar, other ways as marks."),
        )
    rows = [
        [
            c.name,
            *("–" if n is None else n for n in (c.train, c.test)),
            *map(_percent, map(c.values.get, answers + recalls)),
        ]
        for c in record.clients
    ]
    header = ["Client", "Train", "Test", *(figures.client_label(k).capitalize() for k in answers + recalls)]
    yield False, simple_table(f"Samples and accuracy in percent per client{_when(record)}.", header, rows)


def _routing(record: RunRecord, key: str) -> Parts:
    confusion = record.confusion
    if not confusion:
        return
    names = [c.name for c in record.clients] or [str(i) for i in range(len(next(iter(confusion.values()))))]
    home = ", ".join(
        f"{rule_label(rule)} {counts.trace() / max(1, counts.sum()):.1%}" for rule, counts in confusion.items()
    )
    yield True, "Routing"
    told = f"Of all test samples, sent to the client they came from: {home}."
    svg = inline_svg(
        lambda: figures.confusion_figure(names, confusion), f"{key}-confusion", "Confusion of the routing", told
    )
    yield (
        False,
        figure(svg, f"Where every client's test samples are sent, in percent of its samples{_when(record)}. {told}"),
    )
    curve = record.reliability
    if curve is not None:
        total = max(1, sum(curve["count"]))
        gap = sum(
            n * abs(c - a) for n, c, a in zip(curve["count"], curve["confidence"], curve["accuracy"], strict=True)
        )
        told = f"Expected calibration error {gap / total:.1%}."
        svg = inline_svg(
            lambda: figures.reliability_figure(curve), f"{key}-reliability", "Reliability of the router", told
        )
        yield (
            False,
            figure(
                svg,
                "The exact router's confidence against how often it is right (posterior rule); the larger "
                f"a mark, the more samples. {told}",
            ),
        )


def _data(portrait: DatasetSummary, key: str) -> Parts:
    facts = portrait.facts
    yield True, "Data"
    said = f"{portrait.name}: {int(portrait.sizes.sum())} training samples, {len(portrait.classes)} classes"
    source = f", from {facts['source']}" if facts.get("source") else ""
    yield False, f'<p class="note">{escape(said + source)}.</p>'
    counts = portrait.counts
    if counts is None:
        yield False, '<p class="note">How many samples of which class a site holds, only that site knows.</p>'
    else:
        most = [portrait.classes[int(i)] for i in counts.argmax(1)] if len(portrait.classes) else []
        told = "; ".join(
            f"{name}: {int(n)} samples, most of class {top}"
            for name, n, top in zip(portrait.names, counts.sum(1), most, strict=True)
        )
        svg = inline_svg(lambda: pictures.label_figure(portrait), f"{key}-labels", "Samples per client and class", told)
        yield False, figure(svg, "Label shift: training and test samples of every class at every client.")
    if portrait.gallery is not None:
        title = "The same samples as every client sees them" if portrait.same_samples else "Samples of every client"
        svg = inline_svg(
            lambda: pictures.view_figure(portrait), f"{key}-view", title, f"One row per client. {_shifts(facts)}"
        )
        yield False, figure(svg, f"Covariate shift: {title[0].lower()}{title[1:]}. {_shifts(facts)}")
    elif portrait.column_means is not None:
        title = "Column means of every client"
        told = "In standard deviations of the pooled training data, from −2 (blue) to 2 (red)."
        svg = inline_svg(lambda: pictures.view_figure(portrait), f"{key}-view", title, told)
        yield False, figure(svg, f"Covariate shift: the mean of every column at every client. {told}")


def _shifts(facts: Mapping[str, Any]) -> str:
    told = [f"{c['name']}: {c['shift']}" for c in facts["clients"] if c.get("shift", "none") != "none"]
    return f"Shifts: {'; '.join(told)}." if told else ""


def _settings(record: RunRecord) -> Parts:
    yield True, "Settings"
    tables = simple_table("The run's configuration.", ["Setting", "Value"], flat(record.config))
    facts = {k: v for k, v in (record.summary or {}).items() if not k.endswith("_accuracy")}
    if facts:
        tables += simple_table("How it ran.", ["Fact", "Value"], flat(facts))
    yield False, f'<div class="pair">{tables}</div>'


def flat(values: Mapping[Any, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as dotted names and plain text."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            rows += flat(value, f"{name}.")
        elif isinstance(value, float):
            rows.append((name, f"{value:.6g}"))
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            told = (", ".join(f"{k} {v}" for k, v in flat(item)) for item in value)
            rows.append((name, "; ".join(told)))
        elif value is None or isinstance(value, bool | list | dict):
            rows.append((name, json.dumps(value, ensure_ascii=False, default=str)))
        else:
            rows.append((name, str(value)))
    return rows


def _when(record: RunRecord) -> str:
    return "" if record.evaluated_round is None else f", after round {record.evaluated_round}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def _footer() -> str:
    return f"<p>Made by feddrm {escape(__version__)}. The same table: table.csv, table.tex.</p>"
