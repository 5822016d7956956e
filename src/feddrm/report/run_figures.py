"""Figures of a run (curves, clients, routing) and of several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from feddrm.report.accuracy_measures import BEST, RULES, Measure, headline, rule_label
from feddrm.report.federation_figures import shortened
from feddrm.report.run_group import RunGroup
from feddrm.report.run_record import ClientResult, Confusion, RunRecord
from feddrm.report.svg import GRID, INK, SERIES

WIDTH = 10.4  # inches, the page's full width
MOST_CELLS = 12  # with more clients, a confusion matrix shows colours without numbers
MOST_TICKS = 40  # with more clients, the axis shows numbers instead of names
# A measure has the same colour, dash and marker in every figure. No two measures differ by colour alone.
LOOKS: dict[str, tuple[str, str, str]] = {
    "average": (SERIES[0], "-", "o"),
    "oracle": (SERIES[6], "--", "D"),
    "global": (SERIES[4], "-.", "s"),
    "vote": (SERIES[3], ":", "v"),
    "averaged": (SERIES[3], "--", "h"),
    "head_density": (SERIES[1], "-", "^"),
    "head_posterior": (SERIES[2], "--", "P"),
    "exact_density": (SERIES[5], "-", "*"),
    "exact_posterior": (SERIES[5], "--", "X"),
    "stacked": (SERIES[0], ":", "p"),
    "global_probe": (SERIES[2], "-.", "<"),
}
MAIN = ("vote", "averaged", "head_density", "exact_density", "stacked", "global_probe")  # shown in a comparison
DASHES, MARKERS = ("-", "--", ":", "-."), "os^DvPX*"


def accuracy_figure(record: RunRecord) -> Figure:
    """Accuracy of the answers over rounds."""
    measures = [m for m in curve_measures(record) if m.kind != "client"]
    return _curves(record, sorted(measures, key=lambda m: m.kind not in ("average", "oracle")))


def routing_figure(record: RunRecord) -> Figure:
    """Client accuracy over rounds."""
    return _curves(record, [m for m in curve_measures(record) if m.kind == "client"], width=WIDTH)


def loss_figure(record: RunRecord) -> Figure:
    """Mean training loss over rounds."""
    figure, axes = _single(WIDTH, 2.8)
    points = [(p.round, p.loss) for p in record.points if p.loss is not None]
    axes.plot(*zip(*points, strict=True), color=SERIES[0], marker=_dot(points))
    axes.set_ylabel("training loss")
    _finish_rounds(axes, record)
    return figure


def curve_measures(record: RunRecord) -> list[Measure]:
    """Every accuracy that at least one evaluated round has."""
    return sorted({m for point in record.points for m in point.scores}, key=lambda m: m.order)


def client_series(clients: Sequence[ClientResult], recall: bool) -> list[str]:
    """Names of per-client values: accuracies, own first; with ``recall``, the shares of samples routed home."""
    keys = dict.fromkeys(key for client in clients for key in client.values)
    order = ["own", "global", *(rule for rule in RULES if rule != "global")]
    shown = []
    for key in sorted(keys, key=lambda k: order.index(k) if k in order else len(order)):
        values = [v for client in clients if (v := client.values.get(key)) is not None]
        if values and all(0 <= v <= 1 for v in values) and key.startswith("recall_") == recall:
            shown.append(key)
    return shown


def client_label(key: str) -> str:
    """A per-client value in words."""
    rule = key.removeprefix("recall_")
    if rule != key:
        return f"routed home ({RULES.get(f'head_{rule}', rule_label(rule))})"
    return "own model" if key == "own" else rule_label(key)


def client_figure(clients: Sequence[ClientResult], noun: str = "accuracy") -> Figure:
    """A bar for each client's own model, a mark for every other way to answer its samples."""
    names = shortened(tuple(client.name for client in clients))
    room = 0.055 * max(map(len, names)) if _crowded(names) else 0.0  # for rotated names, below the diagram
    figure, axes = _single(WIDTH, 3.4 + room)
    handles: list[Artist] = []
    places = np.arange(len(clients))
    for i, key in enumerate(client_series(clients, recall=False)):
        values = [np.nan if (v := client.values.get(key)) is None else 100 * v for client in clients]
        if key == "own":
            bars = axes.bar(places, values, width=0.7, color=SERIES[0], alpha=0.35, label=client_label(key))
            handles.append(Patch(color=SERIES[0], alpha=0.35, label=bars.get_label()))
        else:
            colour, _, marker = _look(key, i)
            handles += axes.plot(places, values, marker, color=colour, label=client_label(key), alpha=0.9)
    _client_ticks(axes, names)
    axes.set_ylim(0, 100)
    axes.set_ylabel(f"{noun} (%)")
    axes.grid(axis="y", linewidth=0.6)
    axes.set_axisbelow(True)
    _legend(figure, handles)
    return figure


def confusion_figure(
    names: Sequence[str], confusion: Confusion, labels: tuple[str, str] = ("sent to", "came from")
) -> Figure:
    """Where every client's, or class's, samples end, in percent of them; one panel per rule. ``labels`` are of x, y."""
    m, rules = len(names), list(confusion)
    side = max(2.6, min(0.42 * m + 1.0, 4.4 if m <= MOST_CELLS else 7.5))
    across = min(2 if side <= 4.4 else 1, len(rules))
    down = -(-len(rules) // across)
    figure = Figure(figsize=(max(5.0, across * (side + 1.0)), down * (side + 0.6)), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flat
    for rule, axes in zip(rules, panels, strict=False):
        counts = confusion[rule]
        share = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
        image = axes.imshow(share, cmap="Blues", vmin=0, vmax=100, interpolation="nearest")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_title(rule_label(rule))
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        if m <= MOST_TICKS:
            small = {"fontsize": 8, "parse_math": False}
            axes.set_xticks(range(m), shortened(tuple(names)), rotation=45, ha="right", **small)
            axes.set_yticks(range(m), shortened(tuple(names)), **small)
        if m <= MOST_CELLS:
            for (i, j), value in np.ndenumerate(share):
                text = axes.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=7)
                text.set(color="white" if value > 55 else "black", in_layout=False)  # in_layout is slow and not needed
        if m > MOST_CELLS:
            figure.colorbar(image, ax=axes, shrink=0.8, label="percent")
    for axes in list(panels):
        axes.remove()
    return figure


def reliability_figure(curve: Mapping[str, Any], right: str, confidence: str) -> Figure:
    """How often something is right at each confidence; mark sizes and the bars below show how many samples.

    ``right`` and ``confidence`` name the two axes.
    """
    figure = Figure(figsize=(WIDTH / 2, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    bins = zip(curve["confidence"], curve["accuracy"], curve["count"], strict=True)
    filled = [(sure, accuracy, count) for sure, accuracy, count in bins if count]
    above.plot([0, 100], [0, 100], color=GRID, linestyle="--")
    most = max((count for _, _, count in filled), default=1)
    # The area of a mark shows how many samples its bin has: a bin of two is hardly evidence.
    sizes = [8 + 110 * count / most for _, _, count in filled]
    above.scatter([100 * c for c, _, _ in filled], [100 * a for _, a, _ in filled], sizes, SERIES[5], clip_on=False)
    above.set_ylabel(f"{right}, percent")
    width = 100 / len(curve["count"])
    below.bar([(i + 0.5) * width for i in range(len(curve["count"]))], curve["count"], 0.9 * width, color=SERIES[5])
    below.set_ylabel("samples")
    below.set_xlabel(f"{confidence}, percent")
    above.set_xlim(0, 100)
    return figure


def comparison_measures(groups: Sequence[RunGroup]) -> list[Measure]:
    """The measures that a figure of several runs has room for: the main rules and the users' own rules."""
    measures = {m for group in groups for m in group.scores if m.kind != "client" and m != BEST}
    return sorted((m for m in measures if m.rule in ("", *MAIN) or m.rule not in RULES), key=lambda m: m.order)


def comparison_figure(groups: Sequence[RunGroup]) -> Figure:
    """The main accuracies of every group on one scale; bars show the standard deviation over seeds."""
    figure, axes = _single(WIDTH, 1.6 + 0.42 * len(groups))
    handles: list[Artist] = []
    for i, measure in enumerate(comparison_measures(groups)):
        scores = [(group.scores[measure], y) for y, group in enumerate(groups) if measure in group.scores]
        spreads = [100 * (s.std or 0) * (len(groups[y].records) > 1) for s, y in scores]
        colour, _, marker = _look(measure.rule or measure.kind, i)
        # The oracle often coincides with the average: as a frame it leaves both visible.
        frame: dict[str, Any] = {"mfc": "none", "ms": 11, "mew": 1.6} if measure.kind == "oracle" else {"ms": 8}
        x, y = [100 * s.mean for s, _ in scores], [y for _, y in scores]
        handles += axes.plot(x, y, marker, color=colour, alpha=0.9, label=measure.title, **frame)
        if any(spreads):
            axes.errorbar(x, y, xerr=spreads, fmt="none", ecolor=colour, elinewidth=1.2, capsize=3, alpha=0.7)
    axes.set_yticks(range(len(groups)), shortened(tuple(group.name for group in groups)), parse_math=False)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel(f"{groups[0].first.noun} (%)")
    axes.grid(linewidth=0.6)
    axes.tick_params(length=0)
    _legend(figure, handles)
    return figure


def comparison_curves(groups: Sequence[RunGroup]) -> Figure:
    """Average and system accuracy of every group over rounds; one rule, fixed in advance, stands for each.

    Lines are means over seeds, and bands their standard deviation.
    """
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    handles: list[Artist] = []
    for i, group in enumerate(groups):
        system = headline("system", curve_measures(group.first))
        for axes, measure in ((left, Measure("average")), (right, system)):
            if measure is not None:
                x, *values = group.curve(measure)
                _draw_mean(axes, x, values, i)
        rule = "" if system is None else f" ({rule_label(system.rule)})"
        handles.append(Line2D([], [], label=f"{_group_label(group)}{rule}", **_group_look(i)))
    noun = groups[0].first.noun
    for axes, title in ((left, f"average {noun}"), (right, f"system {noun} (rule in brackets)")):
        axes.set_title(title)
        _finish_rounds(axes, None)
    left.set_ylabel(f"{noun} (%)")
    _legend(figure, handles)
    return figure


def communication_groups(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """The groups of which every evaluated round says what was sent until then: not those of older versions."""
    return [group for group in groups if group.sent_until(group.curve(Measure("average"))[0])]


def communication_figure(groups: Sequence[RunGroup]) -> Figure:
    """Average accuracy of every group over what its rounds have sent until then; bands as over rounds."""
    figure, axes = _single(WIDTH, 3.6)
    for i, group in enumerate(groups):
        rounds, *values = group.curve(Measure("average"))
        megabytes = np.asarray(group.sent_until(rounds), float) / 1e6
        _draw_mean(axes, megabytes, values, i, label=_group_label(group))
    axes.set_xlabel("MB sent by all clients and the server")
    axes.set_ylabel(f"average {groups[0].first.noun} (%)")
    axes.grid(axis="y", linewidth=0.6)
    _legend(figure, axes.lines)
    return figure


def _draw_mean(axes: Axes, x: ArrayLike, values: Sequence[Sequence[float]], i: int, **options: Any) -> None:
    """A group's means over seeds as a line, their standard deviations as a band."""
    look, (y, spread) = _group_look(i), 100 * np.asarray(values)
    axes.plot(x, y, marker=_dot(values[0]), **look, **options)
    if spread.any():
        axes.fill_between(x, y - spread, y + spread, color=look["color"], alpha=0.15, linewidth=0)


def _group_look(i: int) -> dict[str, Any]:
    return {"color": SERIES[i % len(SERIES)], "linestyle": DASHES[i % len(DASHES)]}


def _group_label(group: RunGroup) -> str:
    """The group's name, shortened. Matplotlib hides labels that begin with an underscore."""
    name = shortened((group.name,))[0]
    return f" {name}" if name.startswith("_") else name


def _curves(record: RunRecord, measures: Sequence[Measure], width: float = WIDTH) -> Figure:
    figure, axes = _single(width, 3.6)
    for i, measure in enumerate(measures):
        colour, dash, _ = _look(measure.rule or measure.kind, i)
        x, y = record.curve(measure)
        axes.plot(x, 100 * np.asarray(y), color=colour, linestyle=dash, marker=_dot(x), label=measure.title)
    axes.set_ylabel("accuracy (%)" if measures[0].kind == "client" else f"{record.noun} (%)")
    _legend(figure, axes.lines)
    _finish_rounds(axes, record)
    return figure


def _finish_rounds(axes: Axes, record: RunRecord | None) -> None:
    """Add the grid, the label, and a band over the rounds in which clients tune alone."""
    axes.set_xlabel("round")
    axes.grid(axis="y", linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    tuned = [p.round for p in record.points if p.stage == "tune"] if record else []
    if tuned:
        axes.axvspan(tuned[0] - 0.5, tuned[-1] + 0.5, color=GRID, alpha=0.45, linewidth=0, zorder=0)
        middle = (tuned[0] + tuned[-1]) / 2
        axes.text(middle, 0.03, "tuning", transform=axes.get_xaxis_transform(), ha="center", fontsize=8, color=INK)


def _client_ticks(axes: Axes, names: Sequence[str]) -> None:
    if len(names) > MOST_TICKS:
        axes.set_xlabel("client")
        return
    rotation: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if _crowded(names) else {}
    axes.set_xticks(range(len(names)), names, parse_math=False, **rotation)
    axes.tick_params(axis="x", length=0)


def _crowded(names: Sequence[str]) -> bool:
    """Whether names would overlap side by side."""
    return len(names) <= MOST_TICKS and sum(map(len, names)) > 75


def _look(key: str, i: int) -> tuple[str, str, str]:
    known = LOOKS.get(key)
    return known or (SERIES[i % len(SERIES)], DASHES[(i + 1) % len(DASHES)], MARKERS[i % len(MARKERS)])


def _single(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Put a legend above the diagram, in as many columns as fit. The figure grows, so the diagram keeps its height."""
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    columns = max(1, min(4, int(figure.get_figwidth() / (0.085 * longest + 0.5))))
    rows = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + 0.18 * max(0, rows - 2))
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, fontsize=9)


def _dot(points: Sequence[object]) -> str:
    """The marker of a curve: a single point has no line, so it needs a mark."""
    return "o" if len(points) == 1 else ""
