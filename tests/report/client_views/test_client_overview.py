"""Many clients at a glance: quartiles, the best and the worst."""

from __future__ import annotations

from feddrm.report.client_views.client_overview import edges, spread_figure, spread_in_words
from feddrm.report.run_record import ClientResult
from feddrm.report.svg import inline_svg

CLIENTS = [ClientResult(f"c{i}", 70, 30, {"own": (i % 50) / 100, "global": 0.5, "vote": None}) for i in range(100)]


def test_the_best_and_the_worst_begin_with_the_extreme_and_keep_the_order_of_equals() -> None:
    best, worst = edges(CLIENTS)
    assert [client.name for client in best] == ["c49", "c99", "c48", "c98", "c47", "c97", "c46", "c96", "c45", "c95"]
    assert [client.name for client in worst] == ["c0", "c50", "c1", "c51", "c2", "c52", "c3", "c53", "c4", "c54"]


def test_clients_without_a_figure_are_neither_best_nor_worst() -> None:
    unknown = ClientResult("unknown", 1, 1, {"own": None})
    best, worst = edges([unknown, *CLIENTS[:3]])
    assert [client.name for client in best] == ["c2", "c1", "c0"]
    assert [client.name for client in worst] == ["c0", "c1", "c2"]
    assert edges([unknown]) == ([], [])


def test_the_spread_has_quartiles_and_extremes_of_every_known_figure() -> None:
    assert spread_in_words(CLIENTS) == (
        "own model: median 24.5%, middle half 12.0% to 37.0%, all 0.0% to 49.0%; "
        "global model: median 50.0%, middle half 50.0% to 50.0%, all 50.0% to 50.0%"
    )


def test_the_histogram_counts_every_client_once() -> None:
    left, right = spread_figure(CLIENTS).axes
    assert sum(patch.get_height() for patch in left.patches) == 100
    assert [label.get_text() for label in right.get_yticklabels()] == ["own model", "global model"]


def test_boxes_are_drawn_in_the_colours_of_the_page_and_no_label_is_cut() -> None:
    """Black boxes cannot be seen on a dark page."""
    svg = inline_svg(lambda: spread_figure(CLIENTS), "k", "title", "words")
    assert "#000000" not in svg.body
    assert "#ff7f0e" not in svg.body
    figure = spread_figure(CLIENTS)
    figure.draw_without_rendering()
    for axes in figure.axes:
        place = axes.xaxis.label.get_window_extent()
        assert 0 <= place.x0 < place.x1 <= figure.bbox.width
