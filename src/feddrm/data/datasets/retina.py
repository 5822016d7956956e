"""RETINA: fundus images of three clinical centres, glaucomatous or normal.

ACRIMA, RIM-ONE and REFUGE as put together by Huang et al. for FedLGD. Its owners hand it out by
download only, so nothing is fetched here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from feddrm.data.datasets.base import FileDataset
from feddrm.data.datasets.data_files import search_folders
from feddrm.data.federation import Federation
from feddrm.data.partition import TRAIN_FRACTION
from feddrm.data.sources.images import Picture, pictures, read_images, sub_folders
from feddrm.data.sources.labelled_samples import Samples, assemble
from feddrm.data.view import View
from feddrm.errors import FeddrmError, SettingError
from feddrm.registry import nearest

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

    The parts Training and Testing are pooled and divided anew, as in the paper. ``normalise="client"``
    scales each centre's images by its own constants, as the paper does; but that presupposes the
    origin of a query that is yet to be routed, so ``"common"`` scales all to [-1, 1].
    """

    name: ClassVar[str] = "retina"
    normalise: str = "client"

    def check(self) -> None:
        super().check()
        if self.normalise not in NORMALISE:
            raise SettingError(
                f"unknown normalise '{self.normalise}'{nearest(self.normalise, NORMALISE)} ({', '.join(NORMALISE)})"
            )

    def load(self) -> Federation:
        root = self._root()
        names: list[tuple[str, ...]] = []
        samples = {}
        for client in VIEWS:
            listing: list[tuple[Picture, int]] = []
            for part in PARTS:
                names.append(_class_folders(root / client / part))
                listing += [(picture, names[-1].index(picture.label)) for picture in pictures(root / client / part)]
            samples[client] = _samples(root / client, listing)
        federation = assemble(
            self.name,
            samples,
            None,
            test_fraction=1 - TRAIN_FRACTION,
            seed=self.seed,
            source=f"RETINA (ACRIMA, RIM-ONE, REFUGE) in {root}",
            settings=self.settings(),
            classes=_class_names(names),
        )
        if self.normalise == "common":
            return federation
        return replace(federation, clients=tuple(replace(c, view=VIEWS[c.name]) for c in federation.clients))

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
    """The two class folders; their place in the alphabet is the class."""
    names = tuple(folder.name for folder in sub_folders(part))
    if len(names) != 2:
        raise FeddrmError(f"{part} has {len(names)} class folders, RETINA has two: unpack the data again")
    return names


def _class_names(names: list[tuple[str, ...]]) -> list[str]:
    """The folders' names; should the centres name them differently, all of the names, so that it is seen."""
    return [" | ".join(dict.fromkeys(pair[k] for pair in names)) for k in range(2)]


def _samples(folder: Path, listing: list[tuple[Picture, int]]) -> Samples:
    if not listing:
        raise FeddrmError(f"{folder} has no images: unpack the data again")
    paths = [picture.path for picture, _ in listing]
    x = read_images(paths, (SIDE, SIDE), grey=False)
    return Samples(x, [label for _, label in listing], lambda i: str(paths[i]))
