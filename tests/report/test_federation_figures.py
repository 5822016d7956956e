"""Tests of the figures of a federation."""

from __future__ import annotations

import numpy as np

from feddrm.data import Federation, load
from feddrm.data.summary import dataset_summary
from feddrm.report.federation_figures import federation_figure, label_figure, view_figure


def texts(federation: Federation) -> list[list[str]]:
    return [[t.get_text() for t in axes.texts] for axes in federation_figure(dataset_summary(federation)).axes]


def test_heat_map_shows_the_counts() -> None:
    fed = load("digits", seed=0)
    assert texts(fed)[1] == [str(n) for n in fed.counts().flatten().tolist()]


def test_shift_grid_shows_every_client_the_same_samples() -> None:
    fed = load("digits", seed=0)
    assert fed.gallery is not None
    axes = federation_figure(dataset_summary(fed)).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(fed.names)
    shown = np.asarray(axes.images[0].get_array())
    assert shown.shape == (8 * 9 - 1, 8 * 9 - 1)
    assert np.array_equal(255 - shown[9:17, 18:26], fed.gallery[1, 2, 0].numpy())


def test_federations_without_known_shift_show_their_own_samples() -> None:
    rng = np.random.default_rng(0)
    images = {n: (rng.integers(0, 255, (12, 6, 6, 3), dtype=np.uint8), np.arange(12) % 3) for n in ("oslo", "lima")}
    fed = Federation.from_arrays(images)
    assert fed.gallery is None
    assert federation_figure(dataset_summary(fed)).axes[0].get_title() == "samples of every client"
    rows = {n: (rng.normal(size=(12, 4)), np.arange(12) % 3) for n in ("oslo", "lima")}
    assert "column means" in federation_figure(dataset_summary(Federation.from_arrays(rows))).axes[0].get_title()


def test_many_classes_are_shown_by_colour_alone() -> None:
    rng = np.random.default_rng(0)
    clients = {n: (rng.normal(size=(90, 4)), np.arange(90) % 30) for n in ("oslo", "lima")}
    assert not any(texts(Federation.from_arrays(clients)))


def test_numbers_contrast_with_every_cell_of_the_heat_map() -> None:
    """Colours begin at zero: with cells of 6 and 7 samples, the number 6 is not white on white."""
    y = np.array([0] * 7 + [1] * 6)
    fed = Federation.from_arrays({n: (np.zeros((13, 2)), y) for n in ("oslo", "lima")})
    axes = federation_figure(dataset_summary(fed)).axes[1]
    assert axes.images[0].get_clim() == (0, 7)
    for text, count in zip(axes.texts, fed.counts().flatten().tolist(), strict=True):
        background = np.mean(axes.images[0].to_rgba(np.array([[count]]))[0, 0, :3])
        assert abs(background - (text.get_color() == "white")) > 0.4


def test_users_own_grey_images_are_not_inverted() -> None:
    x = np.arange(12 * 36, dtype=np.uint8).reshape(12, 6, 6)
    fed = Federation.from_arrays({n: (x, np.arange(12) % 2) for n in ("oslo", "lima")})
    shown = np.asarray(federation_figure(dataset_summary(fed)).axes[0].images[0].get_array())
    first = shown[:6, :6]
    assert any(np.array_equal(first, sample) for sample in (*fed.clients[0].test.x[:, 0].numpy(), *x))


def test_long_names_are_cut_and_dollars_are_not_read_as_formulas() -> None:
    rng = np.random.default_rng(0)
    names = ("$x^{$", "x" * 60 + "north", "x" * 60 + "south")
    clients = {n: (rng.normal(size=(12, 3)), np.arange(12) % 2) for n in names}
    figure = label_figure(dataset_summary(Federation.from_arrays(clients)))
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [names[0], "x" * 15 + "…" + "x" * 7 + "north", "x" * 15 + "…" + "x" * 7 + "south"]


def test_the_view_of_tables_shows_column_means_and_that_of_images_samples() -> None:
    rng = np.random.default_rng(0)
    rows = Federation.from_arrays({n: (rng.normal(i, 2, (30, 4)), np.arange(30) % 3) for i, n in enumerate("ab")})
    assert "column means" in view_figure(dataset_summary(rows)).axes[0].get_title()
    pixels = np.zeros((6, 5, 5, 3), dtype=np.uint8)
    images = Federation.from_arrays({n: (pixels, np.arange(6) % 2) for n in ("oslo", "lima")})
    assert view_figure(dataset_summary(images)).axes[0].get_title() == "samples of every client"
