"""The pictures and tables of a run's clients and of the routing between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from feddrm.report import run_figures
from feddrm.report.accuracy_measures import rule_label
from feddrm.report.client_views.client_overview import EDGE, MANY, edges, spread_figure, spread_in_words
from feddrm.report.client_views.confusion_groups import group_clients, group_names, group_table, grouped_confusion
from feddrm.report.run_record import ClientResult, RunRecord
from feddrm.report.svg import Picture, inline_svg
from feddrm.report.tables import DASH, Table


class ClientViews(NamedTuple):
    """Pictures, tables, and the table of many clients that can be searched and sorted."""

    figures: list[Picture]
    tables: list[Table]
    searchable: Table | None = None


def client_views(record: RunRecord, key: str) -> ClientViews:
    """The figures of every client, or of many clients at a glance."""
    answers, noun = run_figures.client_series(record.clients, recall=False), capital(record.noun)
    caption = f"Samples and {record.noun} in percent per client{after_round(record)}."
    whole, pictures = _table(record, record.clients, caption), []
    if len(record.clients) <= MANY:
        if answers:
            description = "; ".join(
                f"{c.name}: {', '.join(f'{run_figures.client_label(k)} {percent(c.values.get(k))}' for k in answers)}"
                for c in record.clients
            )
            svg = inline_svg(
                lambda: run_figures.client_figure(record.clients, record.noun),
                f"{key}-clients",
                f"{noun} per client",
                description,
            )
            text = f"{noun} on every client's test samples: its own model as a bar, other ways to answer as marks."
            pictures.append(Picture(svg, text))
        return ClientViews(pictures, [whole])
    if answers:
        words = spread_in_words(record.clients)
        title = f"{noun} of {len(record.clients):,} clients"
        svg = inline_svg(lambda: spread_figure(record.clients, record.noun), f"{key}-clients", title, words)
        boxes = "Boxes hold the middle half of the clients, lines go from 5 % to 95 % of them"
        text = f"{noun} on every client's test samples, over {len(record.clients):,} clients. {boxes}. {words}."
        pictures.append(Picture(svg, text))
    tables = [
        _table(record, some, f"The {EDGE} {which} clients by {run_figures.client_label(answers[0])}.")
        for which, some in zip(("best", "worst"), edges(record.clients), strict=True)
        if some
    ]
    return ClientViews(pictures, tables, replace(whole, key=f"{key}-all-clients"))


def _table(record: RunRecord, clients: Sequence[ClientResult], caption: str) -> Table:
    """One row per client."""
    shown = [key for recall in (False, True) for key in run_figures.client_series(record.clients, recall=recall)]
    header = ["Client", "Train", "Test", *(run_figures.client_label(key).capitalize() for key in shown)]
    rows = [
        [
            client.name,
            *(DASH if count is None else count for count in (client.train, client.test)),
            *(percent(client.values.get(key)) for key in shown),
        ]
        for client in clients
    ]
    if any(client.events is not None for client in record.clients):
        header.insert(3, "Test events")
        for row, client in zip(rows, clients, strict=True):
            row.insert(3, DASH if client.events is None else client.events)
    return Table.of(header, rows, caption)


def routing_views(record: RunRecord, key: str) -> ClientViews:
    """Where every client's samples are sent, or every group's of many clients; empty if nothing was routed."""
    confusion = record.confusion
    if not confusion:
        return ClientViews([], [])
    size = len(next(iter(confusion.values())))
    names = [client.name for client in record.clients] or [str(i) for i in range(size)]
    shares = ", ".join(
        f"{rule_label(rule)} {counts.trace() / max(1, counts.sum()):.1%}" for rule, counts in confusion.items()
    )
    result = f"Of all test samples, sent to the client they came from: {shares}."
    whose, tables, shown, labels = "every client's", [], confusion, names
    if size > MANY:
        groups = group_clients(confusion)
        whose, shown, labels = "every group's", grouped_confusion(confusion, groups), group_names(groups)
        tables.append(group_table(names, confusion, groups))
    svg = inline_svg(
        lambda: run_figures.confusion_figure(labels, shown), f"{key}-confusion", "Confusion of the routing", result
    )
    noted = "" if size <= MANY else " A group's number is followed by how many clients it has."
    text = f"Where {whose} test samples are sent, in percent of its samples{after_round(record)}.{noted} {result}"
    return ClientViews([Picture(svg, text)], tables)


def after_round(record: RunRecord) -> str:
    """Which round the figures are of, if it is known."""
    return "" if record.evaluated_round is None else f", after round {record.evaluated_round}"


def capital(noun: str) -> str:
    """A word that begins a sentence."""
    return f"{noun[0].upper()}{noun[1:]}"


def percent(value: float | None) -> str:
    """A fraction in percent, or a dash."""
    return DASH if value is None else f"{100 * value:.2f}"
