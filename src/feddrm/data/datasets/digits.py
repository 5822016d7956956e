"""Digits: scikit-learn's bundled handwritten digits, scanned by eight very different scanners.

It needs no download and trains in seconds on a laptop. The scanners are
strong on purpose. With mild scanners a global model is nearly always right, and routing cannot improve
on it. These scanners turn, fade and invert the page and add noise, so that a digit by itself is
ambiguous (a six of one client looks like a nine of another), and its origin decides. Labels stay the
same.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from feddrm.data.client import Client, Split
from feddrm.data.datasets.base import DividedDataset
from feddrm.data.federation import Federation
from feddrm.data.view import View
from feddrm.registry import check_choice

Images = NDArray[np.float64]
FILE = "digits.csv.gz"

STRENGTH = {"none": 0.0, "low": 0.35, "mid": 0.7, "high": 1.0}


@dataclass(frozen=True)
class Scanner:
    """A scanner. It turns, blurs, applies gamma and contrast, inverts, and adds noise, in this order.

    Grey values go from 0 (paper) to 1 (ink). ``contrast`` shrinks them around ``level``.
    """

    name: str
    rotation: float = 0.0
    blur: float = 0.0
    gamma: float = 1.0
    contrast: float = 1.0
    level: float = 0.5
    invert: bool = False
    noise: float = 0.0

    def __call__(self, images: Images, strength: float, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Scan images [n, height, width]. A ``strength`` of 0 changes nothing, 1 is the full effect."""
        x = images
        if self.rotation:
            x = (x.reshape(len(x), -1) @ _turn(strength * self.rotation, x.shape[1:])).reshape(x.shape)
        if self.blur:
            from scipy import ndimage  # here, because it is slow to import and no other dataset needs it

            x = ndimage.gaussian_filter(x, (0, strength * self.blur, strength * self.blur))
        x = np.clip(x, 0, 1) ** (self.gamma**strength)
        x = self.level + (1 - strength * (1 - self.contrast)) * (x - self.level)
        if self.invert and strength > 0:
            x = 1 - x
        x = x + strength * self.noise * rng.standard_normal(x.shape)
        scanned: NDArray[np.uint8] = np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)
        return scanned

    def describe(self, strength: float) -> str:
        """The effect in words."""
        if strength == 0:
            return "none"
        words = [
            (self.rotation, f"turned {strength * self.rotation:+.0f} deg"),
            (self.blur, f"blur {strength * self.blur:.1f}"),
            (self.gamma != 1, f"gamma {self.gamma**strength:.1f}"),
            (self.contrast != 1, f"contrast {1 - strength * (1 - self.contrast):.2f}"),
            (self.invert, "inverted"),
            (self.noise, f"noise {strength * self.noise:.2f}"),
        ]
        return ", ".join(text for used, text in words if used) or "none"


@functools.cache
def _turn(degrees: float, shape: tuple[int, int]) -> Images:
    """The matrix that turns images of a shape. SciPy turns one image at a time, which took half of the time."""
    from scipy import ndimage

    pixels = np.eye(shape[0] * shape[1]).reshape(-1, *shape)
    turned = ndimage.rotate(pixels, degrees, axes=(2, 1), order=1, reshape=False, mode="constant")
    matrix: Images = turned.reshape(len(pixels), -1)
    return matrix


SCANNERS = (
    Scanner("flatbed", noise=0.32),
    Scanner("negative", rotation=180, invert=True, noise=0.32),
    Scanner("fax", rotation=90, gamma=0.35, contrast=0.8, level=1.0, noise=0.29),
    Scanner("faded", rotation=-90, contrast=0.4, noise=0.14),
    Scanner("tilted", rotation=45, contrast=0.7, level=0.0, noise=0.23),
    Scanner("counter-tilted", rotation=-45, contrast=0.6, level=0.0, invert=True, noise=0.2),
    Scanner("blurred", rotation=135, blur=0.9, noise=0.14),
    Scanner("dark", rotation=-135, gamma=2.5, contrast=0.5, level=1.0, noise=0.16),
)


def originals() -> tuple[Images, NDArray[np.int64]]:
    """All images [1797, 8, 8] with values from 0 to 1, and their labels, from scikit-learn's file.

    The file is read by itself where it is found. To import scikit-learn takes longer than to train for a few rounds.
    """
    package = find_spec("sklearn")
    file = Path(package.origin or "").parent / "datasets" / "data" / FILE if package else Path(FILE)
    if file.is_file():
        return _read(file)
    from sklearn.datasets import load_digits

    bundle = load_digits()
    return bundle.images / 16.0, bundle.target.astype(np.int64)


@functools.cache
def _read(file: Path) -> tuple[Images, NDArray[np.int64]]:
    """The same from this file. Searches and comparisons load the digits anew for every setting and seed."""
    table = np.loadtxt(file, delimiter=",")
    images, labels = table[:, :-1].reshape(-1, 8, 8) / 16.0, table[:, -1].astype(np.int64)
    images.flags.writeable = labels.flags.writeable = False
    return images, labels


@dataclass(frozen=True)
class Digits(DividedDataset):
    """1,797 handwritten digits 8x8, bundled: eight scanners, Dirichlet labels"""

    name: ClassVar[str] = "digits"

    def check(self) -> None:
        super().check()
        check_choice("shift of digits", self.shift, STRENGTH)

    def load(self) -> Federation:
        images, labels = originals()
        strength = STRENGTH[self.shift]
        examples = images[[int(np.flatnonzero(labels == k)[0]) for k in range(8)]]
        clients, gallery = [], []
        for i, (train, test) in enumerate(self.divide(labels)):
            scanner, repetition = SCANNERS[i % len(SCANNERS)], i // len(SCANNERS)
            rng = np.random.default_rng((self.seed, i))

            def scan(x: Images, scanner: Scanner = scanner, rng: np.random.Generator = rng) -> torch.Tensor:
                return torch.from_numpy(scanner(x, strength, rng))[:, None]

            splits = [Split(scan(images[index]), torch.from_numpy(labels[index])) for index in (train, test)]
            name = scanner.name if repetition == 0 else f"{scanner.name}-{repetition + 1}"
            clients.append(Client(name, splits[0], splits[1], View(), scanner.describe(strength)))
            gallery.append(scan(examples))
        return Federation(
            name=self.name,
            clients=tuple(clients),
            classes=tuple(str(k) for k in range(10)),
            source="scikit-learn's bundled digits (UCI Optical Recognition of Handwritten Digits, test part)",
            gallery=torch.stack(gallery),
            gallery_labels=tuple(range(len(examples))),
            settings=self.settings(),
        )
