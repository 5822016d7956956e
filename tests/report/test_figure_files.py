"""Tests of writing figures to files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from feddrm.data import Federation, load
from feddrm.data.summary import dataset_summary
from feddrm.errors import FeddrmError
from feddrm.report.federation_figures import federation_figure
from feddrm.report.figure_files import FORMATS, check_figure_path, figure_bytes, save_figure


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_file_is_written_in_every_format(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    save_figure(federation_figure(dataset_summary(load("digits"))), path)
    assert path.stat().st_size > 5000
    assert list(tmp_path.iterdir()) == [path]
    if suffix == "png":
        with Image.open(path) as picture:
            assert min(picture.size) > 400


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_same_figure_gives_the_same_bytes_at_another_time(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(time: str) -> bytes:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", time)  # matplotlib's clock
        figure = Figure()
        figure.subplots().plot([1, 3, 2])
        return figure_bytes(figure, Path(f"a{suffix}"))

    assert drawn("0") == drawn("1000000000")


def test_paths_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FeddrmError, match=r"cannot write a picture to 'x.gif': end its name in .png, .svg, .pdf"):
        check_figure_path(Path("x.gif"))
    with pytest.raises(FeddrmError, match="does not exist: create it"):
        check_figure_path(tmp_path / "none" / "x.png")
    (tmp_path / "x.png").mkdir()
    with pytest.raises(FeddrmError, match=r"cannot write .*x.png"):
        save_figure(federation_figure(dataset_summary(load("digits"))), tmp_path / "x.png")
    assert [p.name for p in tmp_path.iterdir()] == ["x.png"]


def test_letters_without_a_font_give_one_line_of_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    linear_a = "\U00010600"  # Linear A
    clients = {n: (rng.normal(size=(12, 4)), np.arange(12) % 3) for n in ("Больница", f"x{linear_a}")}
    figure = federation_figure(dataset_summary(Federation.from_arrays(clients)))
    save_figure(figure, tmp_path / "x.png")
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "x.png shows boxes for letters that no font here has" in message
    save_figure(figure, tmp_path / "x.svg")  # drawn by the reader's fonts
    assert capsys.readouterr().err == ""
    assert "Больница" in (tmp_path / "x.svg").read_text()


def test_a_read_only_disk_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a read-only disk, even removing a temporary file that was never written fails."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    figure = federation_figure(dataset_summary(load("digits")))
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(FeddrmError, match=r"cannot write .*x.png \(Read-only file system\)"):
        save_figure(figure, tmp_path / "x.png")
