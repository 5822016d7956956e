"""Queries from files: images and tables as the router takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from feddrm.router import Recipe, Router
from feddrm.router.solver.problem import Scaler
from feddrm.runs.query_files import read_queries
from refusal import refused


def router(*shape: int) -> Router:
    width = int(np.prod(shape))
    scaler = Scaler(torch.zeros(width), torch.ones(width))
    return Router(
        ("oslo", "lima"),
        Recipe.parse("raw"),
        scaler,
        torch.zeros(2, width),
        torch.zeros(2),
        torch.zeros(2),
        shape=shape,
    )


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    Image.fromarray(pixels).save(tmp_path / "scan.png")
    return tmp_path / "scan.png"


def test_images_come_with_their_paths(picture: Path) -> None:
    samples, names = read_queries(router(3, 4, 4), None, [picture, picture])
    assert (samples.shape, samples.dtype) == ((2, 3, 4, 4), torch.uint8)
    assert samples[0].permute(1, 2, 0).flatten().tolist() == list(range(48))
    assert names == [str(picture)] * 2


def test_an_image_with_other_channels_is_refused(picture: Path) -> None:
    with refused("scan.png has 3 channels, the router wants 4: convert it"):
        read_queries(router(4, 4, 4), None, [picture])


def test_tables_come_in_the_order_of_the_columns_with_the_place_of_each_row(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("dose,age\n1,50\n2,60\n")
    samples, names = read_queries(router(2), ["age", "dose"], [tmp_path / "a.csv", tmp_path / "b.csv"])
    assert samples.tolist() == [[50, 1], [60, 2]] * 2
    assert len(set(names)) == 4
    assert all(name.startswith(str(tmp_path)) for name in names)
