"""Samples from folders of images: a folder per client, and in it a folder per class."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feddrm.data.sources.images import SUFFIXES, read_images
from feddrm.data.sources.labelled_samples import Division, FederationParts, LabelledSamples, assemble
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.run_files import check_client_names
from feddrm.io.text import nfc

TRAIN_FOLDERS = frozenset({"train", "training"})  # compared in lower case
TEST_FOLDERS = frozenset({"test", "testing"})
IGNORED = frozenset({"thumbs.db", "desktop.ini", "__macosx"})  # files that file managers and archivers leave behind

Size = int | tuple[int, int]


class ImageFile(NamedTuple):
    """An image file, and the name of its class folder as its label."""

    path: Path
    label: str


@dataclass(frozen=True)
class ImageFolderSource:
    """Images as ``root/client/class/image.png``, or as ``root/client/train|test/class/image.png``.

    The folders may also be called ``Training`` and ``Testing``, in upper or lower case. Either all
    clients have them or none has. Images are resized to ``size`` (a number, or height and width) by
    bilinear interpolation. They become RGB unless all of them are grey.

    Hidden files are ignored, and so are files beside the folders that are not images. A class folder
    must hold images only.

    ``subject`` is a regular expression that finds in a file's name whom the image is of: its first group, or all that
    it matches. ``p(\\d+)_`` finds 17 in ``p17_left.png``. A client's images of one subject are not divided.
    """

    root: str | Path
    _: KW_ONLY
    size: Size | None = None
    subject: str | None = None
    test_fraction: float = 0.3
    seed: int = 2025
    name: str | None = None

    def load(self) -> FederationParts:
        root = Path(self.root)
        name = self.name or root.resolve().name or "own"
        division = Division.checked(name, self.test_fraction, self.seed)
        size = check_size(name, self.size)
        folders = sub_folders(root)
        if not folders:
            raise FeddrmError(f"{root} has no sub-folders: put one per client there, with a folder per class in each")
        check_client_names(str(root), [folder.name for folder in folders])
        train_files, test_files = _files_by_client(folders)
        for word, part in (("", train_files), ("test ", test_files)):
            if empty := next((client for client, files in part.items() if not files), None):
                raise FeddrmError(f"{root / empty} has no {word}images in class folders: add some or remove the folder")
        listings = [*train_files.values(), *test_files.values()]
        # Read all images at once: one may stay grey only if all others are grey.
        pixels = read_images([image.path for files in listings for image in files], size)
        parts = np.split(pixels, np.cumsum([len(files) for files in listings])[:-1])
        samples = [_samples(x, files, self.subject) for x, files in zip(parts, listings, strict=True)]
        train = dict(zip(train_files, samples, strict=False))
        test = dict(zip(test_files, samples[len(train) :], strict=True))
        clients, classes = assemble(name, train, test or None, division)
        settings: dict[str, Any] = {"size": list(size) if size else None}
        settings |= {"subject": self.subject} if self.subject else {}
        settings |= division.settings(test_given=bool(test))
        return FederationParts(name, clients, classes, f"images in {root}", settings)


def check_size(where: str, size: Size | None) -> tuple[int, int] | None:
    """(height, width) from one number or two."""
    if size is None:
        return None
    pair: tuple[Any, ...] = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
        raise FeddrmError(f"{where}: size={size!r}: give one whole number, or two, [height, width]")
    return pair[0], pair[1]


def sub_folders(folder: Path) -> list[Path]:
    """The visible sub-folders, by name. An image beside them is refused, because it has no class."""
    if not folder.is_dir():
        raise FeddrmError(f"{folder} is not a folder: give one that exists")
    paths = _visible(folder)
    for path in paths:
        if not path.is_dir() and path.suffix.lower() in SUFFIXES:
            raise FeddrmError(f"{path} lies outside any class folder: move it into one or remove it")
    return [path for path in paths if path.is_dir()]


def list_images(folder: Path) -> list[ImageFile]:
    """The images in every class folder under ``folder``, by class, then by name.

    Hidden files are ignored. Any other file that is not an image is refused: skipping a file in an
    unknown format could lose samples without notice.
    """
    images = []
    for class_folder in sub_folders(folder):
        for path in _visible(class_folder):
            if path.is_dir():
                raise FeddrmError(f"{path} is a folder inside a class folder: move its images up one level")
            if path.suffix.lower() not in SUFFIXES:
                raise FeddrmError(f"{path} is not an image: move it away, or convert it to png or jpg")
            images.append(ImageFile(path, nfc(class_folder.name)))
    return images


def _visible(folder: Path) -> list[Path]:
    try:
        paths = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise FeddrmError(f"cannot list {folder} ({error.strerror}): make it readable") from error
    return [path for path in paths if not path.name.startswith(".") and path.name.lower() not in IGNORED]


def _files_by_client(folders: Sequence[Path]) -> tuple[dict[str, list[ImageFile]], dict[str, list[ImageFile]]]:
    """The images of every client for training, and for testing. No test folders: the second is empty."""
    train, test = {}, {}
    for folder in folders:
        inside = {sub.name.lower(): sub for sub in sub_folders(folder)}
        parts = sorted(inside.keys() & (TRAIN_FOLDERS | TEST_FOLDERS))
        if not parts:
            train[folder.name] = list_images(folder)
            continue
        train_folders = [inside[part] for part in parts if part in TRAIN_FOLDERS]
        test_folders = [inside[part] for part in parts if part in TEST_FOLDERS]
        if len(train_folders) != 1 or len(test_folders) != 1 or len(inside) != 2:
            names = ", ".join(sorted(sub.name for sub in inside.values()))
            raise FeddrmError(
                f"{folder} has the folders {names}: give it train and test and nothing else, or classes alone"
            )
        train[folder.name], test[folder.name] = list_images(train_folders[0]), list_images(test_folders[0])
    for folder in folders:
        if test and folder.name not in test:
            raise FeddrmError(f"{folder} has no train and test folders, other clients have: give all of them or none")
    return train, test


def _samples(x: NDArray[np.uint8], files: Sequence[ImageFile], subject: str | None) -> LabelledSamples:
    subjects = subjects_of([image.path for image in files], subject)
    return LabelledSamples(x, [image.label for image in files], lambda i: str(files[i].path), subjects)


def subjects_of(paths: Sequence[Path], pattern: str | None) -> list[str] | None:
    """Whom every image is of, by its name; None without a pattern."""
    if pattern is None:
        return None
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise SettingError(f"subject={pattern!r} is no regular expression ({error}): correct it") from error
    subjects = []
    for path in paths:
        found = search(nfc(path.name))
        if found is None or not (found.group(bool(found.re.groups)) or ""):
            raise FeddrmError(f"{path}: subject={pattern!r} finds nothing in its name: rename it, or correct subject")
        subjects.append(found.group(bool(found.re.groups)))
    return subjects
