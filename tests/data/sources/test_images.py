"""Reading image files: colours, size, and files that cannot be read safely."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feddrm.data.sources import images
from feddrm.data.sources.images import Pixels, decode_image, read_images
from refusal import refused


def read_image(path: Path, size: tuple[int, int] | None = None) -> Pixels:
    return decode_image(path, str(path), size)


def save(path: Path, value: int = 7, size: tuple[int, int] = (6, 5), mode: str = "RGB") -> Path:
    """An image whose pixels are all ``value``; size is Pillow's (width, height)."""
    Image.new(mode, size, value if mode in {"L", "I;16"} else (value,) * len(mode)).save(path)
    return path


def test_palettes_and_transparency_become_rgb(tmp_path: Path) -> None:
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.save(tmp_path / "p.png")
    palette.save(tmp_path / "transparent.png", transparency=b"\xff\x80")
    Image.new("RGBA", (2, 2), (10, 20, 30, 0)).save(tmp_path / "rgba.png")
    for name in ("p.png", "transparent.png", "rgba.png"):
        assert read_image(tmp_path / name).tolist() == [[[10, 20, 30]] * 2] * 2


@pytest.mark.parametrize("suffix", ["gif", "tif", "png", "webp"])
def test_animations_and_stacks_are_refused(tmp_path: Path, suffix: str) -> None:
    """The first of several images would be taken for all of them."""
    one, *others = (Image.new("L", (4, 4), value) for value in (0, 100, 200))
    one.save(tmp_path / f"one.{suffix}")
    one.save(tmp_path / f"stack.{suffix}", save_all=True, append_images=others)
    assert read_image(tmp_path / f"one.{suffix}").max() == 0
    problem = f"{tmp_path / 'stack'}.{suffix} holds several images: save each as its own file, or keep the one you mean"
    with refused(problem):
        read_image(tmp_path / f"stack.{suffix}")


def test_a_photograph_with_a_small_copy_of_it_is_one_image(tmp_path: Path) -> None:
    """Telephones write such files with the suffix .jpg."""
    Image.new("L", (8, 8), 200).save(
        tmp_path / "photo.jpg", format="MPO", save_all=True, append_images=[Image.new("L", (2, 2), 200)]
    )
    with Image.open(tmp_path / "photo.jpg") as photo:
        assert getattr(photo, "n_frames", 1) == 2
    assert read_image(tmp_path / "photo.jpg").shape == (8, 8)


def test_images_are_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    path = tmp_path / "lying.png"
    Image.new("RGB", (6, 4)).save(path, exif=exif)
    assert read_image(path).shape == (6, 4, 3)


def test_size_is_height_and_width_and_bilinear(tmp_path: Path) -> None:
    pixels = np.random.RandomState(0).randint(0, 256, (20, 30, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    expected = np.asarray(Image.fromarray(pixels).resize((7, 8), Image.Resampling.BILINEAR))
    assert np.array_equal(read_image(tmp_path / "x.png", (8, 7)), expected)


def test_images_are_grey_only_if_all_are(tmp_path: Path) -> None:
    grey, colour = save(tmp_path / "grey.png", 9, mode="L"), save(tmp_path / "colour.png")
    assert read_images([grey, grey]).shape == (2, 1, 5, 6)
    assert read_images([grey], grey=False).tolist() == [[[[9] * 6] * 5] * 3]
    assert read_images([grey, colour])[:, :, 0, 0].tolist() == [[9] * 3, [7] * 3]


def test_images_of_different_sizes_are_refused(tmp_path: Path) -> None:
    first, other = save(tmp_path / "first.png"), save(tmp_path / "other.png", size=(7, 9))
    with refused(f"{other} is 7 x 9 pixels", "6 x 5", "size=5"):
        read_images([first, other])
    assert read_images([first, other], (5, 5)).shape == (2, 3, 5, 5)


def test_many_images_keep_their_order_and_show_their_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [save(tmp_path / f"{i}.png", i, mode="L") for i in range(images.MANY)]
    steps = []
    monkeypatch.setattr(
        images, "progress_bar", lambda _: nullcontext(lambda done, total, *_: steps.append((done, total)))
    )
    assert read_images(paths)[:, 0, 0, 0].tolist() == list(range(images.MANY))
    assert steps == [(i + 1, images.MANY) for i in range(images.MANY)]
    read_images(paths[:2])
    assert len(steps) == images.MANY  # no bar flashes up for a single query


def test_unreadable_images_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "x.png")
    whole = path.read_bytes()
    for content in (b"", b"not an image", whole[:40], b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        path.write_bytes(content)
        with refused(f"{path} cannot be read as an image", "replace or remove it"):
            read_image(path)
    Image.new("RGB", (6, 5)).save(path, format="PCX")  # Pillow can read PCX, but it is not among our formats
    with refused(f"{path} cannot be read as an image"):
        read_image(path)
    path.unlink()
    path.symlink_to("nowhere.png")
    with refused(f"{path} cannot be read (No such file or directory): check the path"):
        read_image(path)
    with refused(f"{tmp_path} cannot be read (Is a directory): check the path"):
        read_image(tmp_path)


@pytest.mark.parametrize("side", [10_000, 20_000])  # Pillow warns of the first and refuses the second
def test_a_decompression_bomb_is_refused(tmp_path: Path, side: int) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    path = tmp_path / "bomb.png"
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b""))
    with refused(f"{path} is too large", "89 million pixels", "shrink it"):
        read_image(path, (8, 8))


def test_more_than_eight_bits_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "x.png", 40_000, mode="I;16")
    with refused(f"{path} has more than 8 bits", "convert it to 8 bits"):
        read_image(path)


def test_more_pixels_than_the_limit_are_refused(tmp_path: Path) -> None:
    content = save(tmp_path / "x.png").read_bytes()
    assert decode_image(io.BytesIO(content), "the image", limit=30).shape == (5, 6, 3)
    with refused("the image has 6 x 5 pixels: shrink it below 29"):
        decode_image(io.BytesIO(content), "the image", limit=29)
