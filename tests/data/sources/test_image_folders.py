"""Samples from folders of images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from feddrm.data import Federation
from feddrm.data.partition import split
from refusal import refused

from_folders = Federation.from_folders


def draw(path: Path, value: int, size: tuple[int, int] = (6, 5), mode: str = "RGB") -> Path:
    """An image whose pixels are all ``value``; size is Pillow's (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = value if mode in {"L", "P", "1", "I", "I;16", "F"} else (value,) * len(Image.new(mode, (1, 1)).getbands())
    Image.new(mode, size, colour).save(path)
    return path


def plant(root: Path, per_class: int = 5, mode: str = "RGB") -> Path:
    """Two clients, two classes; every image has a value of its own."""
    value = 0
    for client in ("lima", "oslo"):
        for label in ("cat", "dog"):
            for i in range(per_class):
                draw(root / client / label / f"{i}.png", value, mode=mode)
                value += 1
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return plant(tmp_path / "pets")


# What is kept


def test_every_image_once_with_the_class_of_its_folder(root: Path) -> None:
    fed = from_folders(root, seed=3)
    assert (fed.name, fed.names, fed.classes, fed.shape) == ("pets", ("lima", "oslo"), ("cat", "dog"), (3, 5, 6))
    assert fed.source == f"images in {root}"
    assert fed.settings == {"size": None, "test": "split", "test_fraction": 0.3, "seed": 3}
    parts = split([np.arange(10)] * 2, np.random.RandomState(3))
    for i, (client, (first, rest)) in enumerate(zip(fed.clients, parts, strict=True)):
        assert client.train.x[:, 0, 0, 0].tolist() == (10 * i + first).tolist()
        assert client.test.x[:, 2, 4, 5].tolist() == (10 * i + rest).tolist()
        assert client.train.y.tolist() == (first // 5).tolist()
        assert client.view(client.test.x).min() >= -1
    same = Federation.from_folders(str(root), seed=3, name="other")
    assert same.name == "other"
    assert torch.equal(same.clients[1].train.x, fed.clients[1].train.x)


@pytest.mark.parametrize("names", [("train", "test"), ("Training", "Testing"), ("TRAIN", "testing")])
def test_train_and_test_folders(tmp_path: Path, names: tuple[str, str]) -> None:
    value = 0
    for client in ("lima", "oslo"):
        for part, count in zip(names, (3, 1), strict=True):
            for label in ("cat", "dog"):
                for i in range(count):
                    draw(tmp_path / client / part / label / f"{i}.png", value)
                    value += 1
    fed = from_folders(tmp_path)
    assert fed.settings == {"size": None, "test": "given"}
    assert fed.clients[0].train.x[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert fed.clients[0].test.x[:, 0, 0, 0].tolist() == [6, 7]
    assert fed.clients[1].train.x[:, 0, 0, 0].tolist() == [8, 9, 10, 11, 12, 13]
    assert fed.clients[1].test.y.tolist() == [0, 1]


@pytest.mark.parametrize("suffix", ["png", "PNG", "bmp", "tif", "TIFF", "gif", "webp", "jpg", "JPeG", "ppm"])
def test_every_image_format_is_read(root: Path, suffix: str) -> None:
    draw(root / "oslo" / "dog" / f"extra.{suffix}", 200)
    fed = from_folders(root)
    oslo = fed.clients[1]
    values = torch.cat([oslo.train.x, oslo.test.x])[:, 0, 0, 0].tolist()
    assert len(values) == 11
    assert min(abs(v - 200) for v in values) <= 2  # some formats lose a little


def test_size_is_height_and_width_and_bilinear(root: Path) -> None:
    path = root / "oslo" / "dog" / "large.png"
    pixels = np.random.RandomState(0).randint(0, 256, (20, 30, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    fed = from_folders(root, size=(8, 7))
    assert fed.shape == (3, 8, 7)
    assert fed.settings["size"] == [8, 7]
    want = np.asarray(Image.fromarray(pixels).resize((7, 8), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    everything = torch.cat([fed.clients[1].train.x, fed.clients[1].test.x])
    assert (everything == torch.from_numpy(want.copy())).flatten(1).all(1).sum() == 1
    assert from_folders(root, size=9).shape == (3, 9, 9)


def test_grey_stays_grey_only_if_all_are(tmp_path: Path) -> None:
    root = plant(tmp_path, mode="L")
    draw(root / "oslo" / "dog" / "bits.png", 1, mode="1")
    draw(root / "oslo" / "dog" / "alpha.png", 90, mode="LA")
    grey = from_folders(root)
    assert grey.shape == (1, 5, 6)
    assert {255, 90} <= set(torch.cat([grey.clients[1].train.x, grey.clients[1].test.x])[:, 0, 0, 0].tolist())
    draw(root / "oslo" / "dog" / "colour.png", 3, mode="RGB")
    colour = from_folders(root)
    assert colour.shape == (3, 5, 6)
    x = torch.cat([c.train.x for c in colour.clients])
    assert torch.equal(x[:, 0], x[:, 2])


def test_hidden_files_litter_and_files_beside_the_folders_are_passed_over(root: Path) -> None:
    for name in (
        "README.md",
        ".DS_Store",
        "oslo/notes.txt",
        "oslo/dog/.DS_Store",
        "oslo/dog/._0.png",
        "oslo/dog/Thumbs.db",
        "oslo/.ipynb_checkpoints/cat/0.png",
        ".git/cat/0.png",
        "__MACOSX/cat/0.png",
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"junk")
    (root / "oslo" / "bird").mkdir()  # an empty class folder is no class
    fed = from_folders(root)
    assert (fed.names, fed.classes) == (("lima", "oslo"), ("cat", "dog"))
    assert fed.counts().tolist() == [[5, 5], [5, 5]]


# What is refused


def test_missing_and_empty_folders(root: Path, tmp_path: Path) -> None:
    with refused(f"{tmp_path / 'nowhere'} is not a folder", "give one that exists"):
        from_folders(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with refused(f"{tmp_path / 'bare'} has no sub-folders", "one per client"):
        from_folders(tmp_path / "bare")
    (tmp_path / "bare" / "only").mkdir()
    with refused("at least two clients, got 1"):
        from_folders(tmp_path / "bare")
    (root / "quito" / "cat").mkdir(parents=True)
    with refused(f"{root / 'quito'} has no images in class folders", "remove the folder"):
        from_folders(root)


def test_a_folder_that_may_not_be_listed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", denied)
    with refused(f"cannot list {root} (Permission denied)", "make it readable"):
        from_folders(root)


def test_clients_that_differ_in_case(root: Path) -> None:
    draw(root / "OSLO" / "cat" / "0.png", 1)
    with refused(str(root), "duplicate client name 'oslo'", "rename"):
        from_folders(root)


def test_files_that_are_no_images_are_refused(root: Path) -> None:
    stray = draw(root / "oslo" / "stray.png", 1)
    with refused(f"{stray} lies outside any class folder", "move it into one"):
        from_folders(root)
    stray.unlink()
    notes = root / "oslo" / "cat" / "notes.txt"
    notes.write_text("hello")
    with refused(f"{notes} is not an image", "move it away", "convert it"):
        from_folders(root)
    notes.unlink()
    draw(root / "oslo" / "cat" / "more" / "1.png", 1)
    with refused(f"{root / 'oslo' / 'cat' / 'more'} is a folder inside a class folder", "move its images up"):
        from_folders(root)


@pytest.mark.parametrize("size", [0, -3, 2.5, (3,), (3, 4, 5), (3, 0), True, "96"])
def test_wrong_size_is_refused(root: Path, size: object) -> None:
    with refused(f"size={size!r}", "or two, [height, width]"):
        from_folders(root, size=size)  # type: ignore[arg-type]


def test_wrong_train_and_test_folders_are_refused(root: Path) -> None:
    draw(root / "quito" / "train" / "cat" / "0.png", 1)
    with refused(f"{root / 'quito'} has the folders train", "give it train and test"):
        from_folders(root)
    draw(root / "quito" / "test" / "cat" / "0.png", 1)
    with refused(f"{root / 'lima'} has no train and test folders, other clients have", "all of them or none"):
        from_folders(root)
    draw(root / "quito" / "cat" / "0.png", 1)
    with refused(f"{root / 'quito'} has the folders cat, test, train", "nothing else"):
        from_folders(root)


def test_unknown_and_empty_test_classes(tmp_path: Path) -> None:
    for client in ("lima", "oslo"):
        for part in ("train", "test"):
            for label in ("cat", "dog"):
                draw(tmp_path / client / part / label / "0.png", 1)
    path = draw(tmp_path / "oslo" / "test" / "dgo" / "0.png", 1)
    with refused(f"{path}: label 'dgo' is not one of the classes (cat, dog); did you mean 'dog'?", "correct it"):
        from_folders(tmp_path)
    for label in ("cat", "dog", "dgo"):
        (tmp_path / "oslo" / "test" / label / "0.png").unlink()
    with refused(f"{tmp_path / 'oslo'} has no test images"):
        from_folders(tmp_path)


def test_one_class_and_one_sample(tmp_path: Path) -> None:
    for client in ("lima", "oslo"):
        draw(tmp_path / client / "cat" / "0.png", 1)
    with refused("every sample has the label 'cat'", "another class"):
        from_folders(tmp_path)
    draw(tmp_path / "lima" / "dog" / "0.png", 1)
    with refused("client 'oslo' has too few samples (1)"):
        from_folders(tmp_path)


def test_a_class_folder_from_another_system_is_the_same_class(tmp_path: Path) -> None:
    """Archives made on macOS write '\u00f6' as two characters."""
    one, other = "l\u00f6we", "lo\u0308we"
    for client, label in (("lima", one), ("oslo", other)):
        for i in range(4):
            draw(tmp_path / client / "cat" / f"{i}.png", 1)
            draw(tmp_path / client / label / f"{i}.png", 2)
    fed = from_folders(tmp_path)
    assert fed.classes == ("cat", one)
    assert fed.counts().tolist() == [[4, 4], [4, 4]]
    draw(tmp_path / "oslo" / "Cat" / "9.png", 3)
    with refused("the classes 'Cat' and 'cat' differ only in case"):
        from_folders(tmp_path)


def test_height_and_width_are_not_mixed_up(root: Path) -> None:
    assert from_folders(root).shape == (3, 5, 6)
    assert from_folders(root, size=(6, 5)).shape == (3, 6, 5)
    assert from_folders(root, size=(5, 6)).digest() == from_folders(root).digest()
