"""RETINA: fundus images of three clinical centres, glaucomatous or normal.

The dataset joins ACRIMA, RIM-ONE and REFUGE, as Huang et al. published them for FedLGD. Its owners
give it out on request only, so nothing is downloaded here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from feddrm.data.datasets.base import FileDataset
from feddrm.data.federation import Federation
from feddrm.data.partition import TRAIN_FRACTION
from feddrm.data.sources.image_folders import ImageFile, list_images, sub_folders
from feddrm.data.sources.images import read_images
from feddrm.data.sources.labelled_samples import Division, LabelledSamples, assemble
from feddrm.data.view import View
from feddrm.errors import FeddrmError
from feddrm.io.data_files import search_folders
from feddrm.registry import check_choice

ROOT = "retina_balanced"
PARTS = ("Training", "Testing")
SIDE = 96
NORMALISE = ("client", "common")
# Mean and standard deviation of each channel, as published with the data.
VIEWS = {
    "kaggle_arima": View(mean=(0.7238, 0.3767, 0.1002), std=(0.1001, 0.1057, 0.0503)),
    "RIM": View(mean=(0.5886, 0.2652, 0.1481), std=(0.1147, 0.0937, 0.0461)),
    "REFUGE": View(mean=(0.7085, 0.4822, 0.3445), std=(0.1663, 0.1541, 0.1066)),
}


@dataclass(frozen=True)
class Retina(FileDataset):
    """RETINA: fundus images of ACRIMA, RIM-ONE and REFUGE, 96 x 96, glaucomatous or normal.

    The parts Training and Testing are pooled and divided again, as in the paper. ``normalise="client"``
    scales each centre's images by its own constants, as the paper does. This needs the origin of a
    query, which is unknown before routing; ``"common"`` scales all images to [-1, 1] instead.
    """

    name: ClassVar[str] = "retina"
    normalise: str = "client"

    def check(self) -> None:
        super().check()
        check_choice("normalise", self.normalise, NORMALISE)

    def load(self) -> Federation:
        root = self._root()
        class_folders: list[tuple[str, ...]] = []
        samples = {}
        for client in VIEWS:
            images: list[tuple[ImageFile, int]] = []
            for part in PARTS:
                names = _class_folders(root / client / part)
                class_folders.append(names)
                images += [(image, names.index(image.label)) for image in list_images(root / client / part)]
            samples[client] = _samples(root / client, images)
        division = Division(1 - TRAIN_FRACTION, self.seed)
        clients, classes = assemble(self.name, samples, None, division, _class_names(class_folders))
        if self.normalise == "client":
            clients = tuple(replace(client, view=VIEWS[client.name]) for client in clients)
        return Federation(
            name=self.name,
            clients=clients,
            classes=classes,
            source=f"RETINA (ACRIMA, RIM-ONE, REFUGE) in {root}",
            settings=self.settings(),
        )

    def _root(self) -> Path:
        folders = search_folders(self.data_dir)
        for folder in (place for base in folders for place in (base / ROOT, base)):
            if all((folder / client / part).is_dir() for client in VIEWS for part in PARTS):
                return folder
        raise FeddrmError(
            f"no '{ROOT}' with {', '.join(VIEWS)} (each with {' and '.join(PARTS)}) in "
            f"{', '.join(map(str, folders))}: ask its owners for the data (see FedLGD), unpack them into one of "
            f"these, or point --data-dir or FEDDRM_DATA there; they cannot be downloaded from here"
        )


def _class_folders(part: Path) -> tuple[str, ...]:
    """The names of the two class folders, in alphabetical order: the first is class 0."""
    names = tuple(folder.name for folder in sub_folders(part))
    if len(names) != 2:
        raise FeddrmError(f"{part} has {len(names)} class folders, RETINA has two: unpack the data again")
    return names


def _class_names(class_folders: list[tuple[str, ...]]) -> list[str]:
    """The folders' names; where the centres use different names, all of them, separated by ``|``."""
    return [" | ".join(dict.fromkeys(names[k] for names in class_folders)) for k in range(2)]


def _samples(folder: Path, images: list[tuple[ImageFile, int]]) -> LabelledSamples:
    if not images:
        raise FeddrmError(f"{folder} has no images: unpack the data again")
    paths = [image.path for image, _ in images]
    x = read_images(paths, (SIDE, SIDE), grey=False)
    return LabelledSamples(x, [label for _, label in images], lambda i: str(paths[i]))
