from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feddrm.data import Federation, load
from feddrm.data.summary import DatasetSummary
from feddrm.errors import FeddrmError
from feddrm.report.pictures import check_target, federation_figure, label_figure, save, view_figure


def texts(federation: Federation) -> list[list[str]]:
    return [[t.get_text() for t in axes.texts] for axes in federation_figure(federation).axes]


def test_heat_map_shows_the_counts() -> None:
    fed = load("digits", seed=0)
    assert texts(fed)[1] == [str(n) for n in fed.counts().flatten().tolist()]


def test_shift_grid_shows_every_client_the_same_samples() -> None:
    fed = load("digits", seed=0)
    assert fed.gallery is not None
    axes = federation_figure(fed).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(fed.names)
    shown = np.asarray(axes.images[0].get_array())
    assert shown.shape == (8 * 9 - 1, 8 * 9 - 1)
    assert np.array_equal(255 - shown[9:17, 18:26], fed.gallery[1, 2, 0].numpy())


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_files_are_written_whole(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    save(federation_figure(load("digits")), path)
    assert path.stat().st_size > 5000
    assert list(tmp_path.iterdir()) == [path]
    if suffix == "png":
        with Image.open(path) as picture:
            assert min(picture.size) > 400


def test_federations_without_known_shift_show_their_own_samples() -> None:
    rng = np.random.default_rng(0)
    images = {n: (rng.integers(0, 255, (12, 6, 6, 3), dtype=np.uint8), np.arange(12) % 3) for n in ("oslo", "lima")}
    fed = Federation.from_arrays(images)
    assert fed.gallery is None
    assert federation_figure(fed).axes[0].get_title() == "samples of every client"
    rows = {n: (rng.normal(size=(12, 4)), np.arange(12) % 3) for n in ("oslo", "lima")}
    assert "column means" in federation_figure(Federation.from_arrays(rows)).axes[0].get_title()


def test_many_classes_are_shown_by_colour_alone() -> None:
    rng = np.random.default_rng(0)
    clients = {n: (rng.normal(size=(90, 4)), np.arange(90) % 30) for n in ("oslo", "lima")}
    assert not any(texts(Federation.from_arrays(clients)))


def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FeddrmError, match=r"cannot write a picture to 'x.gif': end its name in .png, .svg, .pdf"):
        check_target(Path("x.gif"))
    with pytest.raises(FeddrmError, match="does not exist: create it"):
        check_target(tmp_path / "none" / "x.png")
    (tmp_path / "x.png").mkdir()
    with pytest.raises(FeddrmError, match=r"cannot write .*x.png"):
        save(federation_figure(load("digits")), tmp_path / "x.png")
    assert [p.name for p in tmp_path.iterdir()] == ["x.png"]


def test_names_in_other_scripts_cost_one_line_not_a_stack_of_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    unheard_of = "\U00010600"  # Linear A
    clients = {n: (rng.normal(size=(12, 4)), np.arange(12) % 3) for n in ("Больница", f"x{unheard_of}")}
    figure = federation_figure(Federation.from_arrays(clients))
    save(figure, tmp_path / "x.png")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "x.png shows boxes for letters that no font here has" in said
    save(figure, tmp_path / "x.svg")  # drawn by the reader's fonts
    assert capsys.readouterr().err == ""
    assert "Больница" in (tmp_path / "x.svg").read_text()


def test_a_disk_that_refuses_everything_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a read-only disk even removing what was never written fails."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    figure = federation_figure(load("digits"))
    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(FeddrmError, match=r"cannot write .*x.png \(Read-only file system\)"):
        save(figure, tmp_path / "x.png")


def test_numbers_can_be_read_in_every_cell_of_the_heat_map() -> None:
    """Colours begin at zero: with cells of 6 and 7 samples, 6 is not white, nor its number white on white."""
    y = np.array([0] * 7 + [1] * 6)
    fed = Federation.from_arrays({n: (np.zeros((13, 2)), y) for n in ("oslo", "lima")})
    axes = federation_figure(fed).axes[1]
    assert axes.images[0].get_clim() == (0, 7)
    for text, count in zip(axes.texts, fed.counts().flatten().tolist(), strict=True):
        background = np.mean(axes.images[0].to_rgba(np.array([[count]]))[0, 0, :3])
        assert abs(background - (text.get_color() == "white")) > 0.4


def test_grey_images_of_one_s_own_are_not_shown_as_negatives() -> None:
    x = np.arange(12 * 36, dtype=np.uint8).reshape(12, 6, 6)
    fed = Federation.from_arrays({n: (x, np.arange(12) % 2) for n in ("oslo", "lima")})
    shown = np.asarray(federation_figure(fed).axes[0].images[0].get_array())
    first = shown[:6, :6]
    assert any(np.array_equal(first, sample) for sample in (*fed.clients[0].test.x[:, 0].numpy(), *x))


def test_the_view_of_tables_shows_column_means_and_that_of_images_samples() -> None:
    rng = np.random.default_rng(0)
    rows = Federation.from_arrays({n: (rng.normal(i, 2, (30, 4)), np.arange(30) % 3) for i, n in enumerate("ab")})
    assert "column means" in view_figure(DatasetSummary.of(rows)).axes[0].get_title()
    pixels = np.zeros((6, 5, 5, 3), dtype=np.uint8)
    images = Federation.from_arrays({n: (pixels, np.arange(6) % 2) for n in ("oslo", "lima")})
    assert view_figure(DatasetSummary.of(images)).axes[0].get_title() == "samples of every client"


def test_names_are_cut_and_dollars_are_no_formula() -> None:
    rng = np.random.default_rng(0)
    names = ("$x^{$", "x" * 60)
    clients = {n: (rng.normal(size=(12, 3)), np.arange(12) % 2) for n in names}
    figure = label_figure(DatasetSummary.of(Federation.from_arrays(clients)))
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [names[0], "x" * 27 + "…"]
