"""Queries from files: images and tables as the router takes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from feddrm.predictor.query_files import read_queries
from feddrm.router import Recipe, Router
from feddrm.router.solver.problem import Scaler
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
    samples, names = read_queries(router(3, 4, 4), [picture, picture])
    assert (samples.shape, samples.dtype) == ((2, 3, 4, 4), torch.uint8)
    assert samples[0].permute(1, 2, 0).flatten().tolist() == list(range(48))
    assert names == [str(picture)] * 2


def test_a_folder_is_refused_with_the_remedy(picture: Path) -> None:
    with refused(f"{picture.parent} is a folder: name the files in it, as {picture.parent}/*"):
        read_queries(router(3, 4, 4), [picture, picture.parent])


def test_an_image_with_other_channels_is_refused(picture: Path) -> None:
    with refused("scan.png has 3 channels, 4 are wanted: convert it"):
        read_queries(router(4, 4, 4), [picture])


def test_shades_of_grey_may_be_saved_as_colours(picture: Path, tmp_path: Path) -> None:
    """As most programs save them."""
    grey = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4))
    for mode in ("L", "RGB", "RGBA"):
        grey.convert(mode).save(tmp_path / f"{mode}.png")
        samples, _ = read_queries(router(1, 4, 4), [tmp_path / f"{mode}.png"])
        assert samples.flatten().tolist() == list(range(16)), mode
    with refused("scan.png has colours, the router wants shades of grey: convert it"):
        read_queries(router(1, 4, 4), [picture])


def test_tables_come_in_the_order_of_the_columns_with_the_place_of_each_row(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("dose,age\n1,50\n2,60\n")
    samples, names = read_queries(replace(router(2), columns=("age", "dose")), [tmp_path / "a.csv", tmp_path / "b.csv"])
    assert samples.tolist() == [[50, 1], [60, 2]] * 2
    assert len(set(names)) == 4
    assert all(name.startswith(str(tmp_path)) for name in names)


def test_arrays_come_with_their_places(tmp_path: Path) -> None:
    pixels = np.arange(32, dtype=np.int64).reshape(2, 4, 4)
    np.save(tmp_path / "grey.npy", pixels)
    np.savez(tmp_path / "grey.npz", x=pixels[:, None], y=[0, 1])
    samples, names = read_queries(router(1, 4, 4), [tmp_path / "grey.npy", tmp_path / "grey.npz"])
    assert (samples.shape, samples.dtype) == ((4, 1, 4, 4), torch.uint8)
    assert samples[:2].flatten().tolist() == samples[2:].flatten().tolist() == list(range(32))
    assert names == [f"{tmp_path}/grey.{kind}[{i}]" for kind in ("npy", "npz") for i in range(2)]
    np.save(tmp_path / "rows.npy", np.ones((3, 2)))
    (tmp_path / "rows.csv").write_text("dose,age\n1,50\n")
    samples, names = read_queries(router(2), [tmp_path / "rows.npy", tmp_path / "rows.csv"])
    assert samples.tolist() == [[1, 1]] * 3 + [[1, 50]]


def test_wrong_arrays_are_one_line(picture: Path, tmp_path: Path) -> None:
    def refuse(array: object, *parts: str, shape: tuple[int, ...] = (3, 4, 4)) -> None:
        np.save(tmp_path / "a.npy", array)
        with refused("a.npy", *parts):
            read_queries(router(*shape), [picture, tmp_path / "a.npy"] if len(shape) == 3 else [tmp_path / "a.npy"])

    refuse(np.zeros((2, 4, 4, 3)), "shape (2, 4, 4, 3)", "give an array of numbers [n, 3, 4, 4]")
    refuse(np.full((2, 3, 4, 4), 300), "pixels from 300 to 300", "0..255")
    refuse(np.zeros((2, 3, 4, 4)), "torch.float32", "scan.png torch.uint8", "ask about them apart")
    refuse(np.array([["a", "b"]]), "give an array of numbers [n, 2]", shape=(2,))
    refuse(np.array([[None, {}]], dtype=object), "cannot read", shape=(2,))
    np.savez(tmp_path / "b.npz", samples=np.ones((1, 2)))
    with refused("b.npz", ".npz with the array x"):
        read_queries(router(2), [tmp_path / "b.npz"])
    with refused("none.npy"):
        read_queries(router(2), [tmp_path / "none.npy"])


def test_fractions_of_white_are_not_taken_for_network_inputs(tmp_path: Path) -> None:
    """Arrays in 0..1 are pixels in training, so their owner asks with them, too."""
    x = np.linspace(0, 1, 32, dtype=np.float16).reshape(2, 1, 4, 4)
    np.save(tmp_path / "x.npy", x)
    with refused("x.npy: floats are network inputs", "lie in 0..1", "whole numbers 0..255"):
        read_queries(router(1, 4, 4), [tmp_path / "x.npy"])
    unscaled = replace(router(1, 4, 4), input_mean=(0.0,), input_std=(1.0,))
    assert read_queries(unscaled, [tmp_path / "x.npy"])[0].shape == x.shape
    np.save(tmp_path / "x.npy", 2 * x - 1)
    assert read_queries(router(1, 4, 4), [tmp_path / "x.npy"])[0].min() == -1
