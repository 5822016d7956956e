"""The rows of a router's fit at a site: features, labels and folds of its samples.

Every sum of a fit is of rows that :class:`MessageSamples` gives, and it gives none that a floor of the site forbids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from feddrm.data import Client, RandomResizedCrop
from feddrm.deploy.site.floors import Floors
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.wire.messages import Message
from feddrm.errors import FeddrmError
from feddrm.models import Net
from feddrm.router import Recipe
from feddrm.router.features.base import extract
from feddrm.router.fit.cohort import Target
from feddrm.router.fit.local_cohort import target_of, training_view
from feddrm.router.settings import Holdout
from feddrm.router.solver.client_statistics import Sample
from feddrm.router.solver.problem import Scaler

KEPT_START = "fit-features"  # in the private store


@dataclass(frozen=True, eq=False)
class SiteClient:
    """The one client of a site: its samples, its number among all clients, and what it needs to know of the others."""

    client: Client
    number: int
    crop: RandomResizedCrop | None
    clients: int
    classes: int


class FitRows:
    """What a fit needs of the site's samples, computed once from leaves that the site keeps on disk."""

    def __init__(self, net: Net, site: SiteClient, store: PrivateStore, floors: Floors) -> None:
        self.net, self.site, self.store, self.floors = net, site, store, floors
        self._first: Message | None = None
        self._computed: dict[str, Tensor] | None = None
        self._designs: dict[str, tuple[Scaler, Tensor]] = {}

    def begin(self, message: Message) -> None:
        """A fit begins: forget the features of the last one."""
        header = {key: message.header[key] for key in ("recipe", "parts", "used", "seed", "sizes", "crops")}
        self.store.keep(KEPT_START, header, message.tensors)
        self._first, self._computed, self._designs = Message(header, message.tensors), None, {}

    @property
    def begun(self) -> Message:
        """The message that started the fit; after a restart from disk."""
        self._first = self._first or self.store.recall(KEPT_START)
        if self._first is None:
            raise FeddrmError("this site does not know of the fit: let the server start it again")
        return self._first

    @property
    def device(self) -> torch.device:
        return self.site.client.train.x.device

    @property
    def holdout(self) -> Holdout:
        header = self.begun.header
        return Holdout(header["parts"], header["used"])

    @property
    def part(self) -> Tensor:
        """The part of every row."""
        header, train = self.begun.header, self.site.client.train
        return self.holdout.draw(self.site.number, len(train), header["seed"], header["crops"], train.subject)

    @property
    def subject(self) -> Tensor:
        """Whom every row is of: the crops of a sample are of one subject."""
        return self.site.client.train.subject_of_sample.repeat(self.begun.header["crops"])

    @property
    def features(self) -> dict[str, Tensor]:
        """The features of the site's training samples by name, as the first message of the fit asks for them."""
        if self._computed is None:
            header, site = self.begun.header, self.site
            copies = [
                self._extract(training_view(site.client, site.number, site.crop, header["seed"], copy))
                for copy in range(header["crops"])
            ]
            self._computed = {name: torch.cat([rows[name] for rows in copies]) for name in copies[0]}
        return self._computed

    def of_test_samples(self, message: Message, table: str) -> Tensor:
        """The standardised features of this site's test samples."""
        features = self._extract(self.site.client.view(self.site.client.test.x))
        return scaler_of(message, table)(torch.cat([features[name] for name in table.split("+")], dim=1))

    def design(self, message: Message, name: str) -> Tensor:
        """Standardised features [n, d] with the message's scaling; the last ones of every name are cached."""
        scaler = scaler_of(message, name)
        before = self._designs.get(name)
        if before is None or not (
            torch.equal(before[0].mean, scaler.mean) and torch.equal(before[0].scale, scaler.scale)
        ):
            rows = torch.cat([self.features[feature] for feature in name.split("+")], dim=1)
            self._designs[name] = (scaler, scaler(rows))
        return self._designs[name][1]

    def target(self, target: Target) -> Tensor:
        y = self.site.client.train.y.repeat(self.begun.header["crops"])
        return target_of(target, self.site.number, y, self.site.classes)

    def check_fold(self, mask: Tensor) -> None:
        """Refuse sums by which a fold with too few samples, or too few others, would show."""
        subject, inside = self.subject, mask.cpu()
        for some in (inside, ~inside):
            self.floors.check_sum(len(torch.unique(subject[some])), "a fold of the training samples")

    def _extract(self, x: Tensor) -> Mapping[str, Tensor]:
        start = self.begun
        recipe = Recipe.of(start.header["recipe"])
        leaves = {leaf: value.to(self.device) for leaf, value in start.tensors.items()}
        return extract(recipe, self.net if recipe.needs else None, leaves, x)


class MessageSamples:
    """The samples that the fits of one message need; fits that need the same ones share them."""

    def __init__(self, rows: FitRows, message: Message) -> None:
        self.rows, self.message, self.part = rows, message, rows.part
        self._designs: dict[tuple[str, int, bool], Tensor] = {}
        self._labels: dict[tuple[Target, int, bool], Tensor] = {}

    def outside(self, table: str, target: Target, fold: int | None) -> Sample:
        """The samples that a fit is made on: all but its fold."""
        if fold is None:
            self.rows.floors.check_sum(self.rows.site.client.train.subjects, "the training samples")
            sample = Sample(self.rows.design(self.message, table), self.rows.target(target))
        else:
            sample = self._some(table, target, fold, False)
        if target != "client":
            self.rows.floors.check_classes(sample.y, self.subject_outside(fold), "the samples of a fit")
        return sample

    def subject_outside(self, fold: int | None) -> Tensor:
        """Whom the samples are of that a fit is made on."""
        return self.rows.subject if fold is None else self.rows.subject[self.part != fold]

    def inside(self, table: str, target: Target, fold: int) -> Sample:
        """The samples that a fit holds out."""
        return self._some(table, target, fold, True)

    def subject_inside(self, folds: int) -> Tensor:
        """Whom the samples are of that the folds hold out, fold after fold."""
        return torch.cat([self.rows.subject[self.part == fold] for fold in range(folds)])

    def _some(self, table: str, target: Target, fold: int, inside: bool) -> Sample:
        mask = ((self.part == fold) == inside).to(self.rows.device)
        design, labels = (table, fold, inside), (target, fold, inside)
        if design not in self._designs:
            self.rows.check_fold(mask)
            self._designs[design] = self.rows.design(self.message, table)[mask]
        if labels not in self._labels:
            self._labels[labels] = self.rows.target(target)[mask]
        return Sample(self._designs[design], self._labels[labels])


def scaler_of(message: Message, name: str) -> Scaler:
    """The scaling of a table's features, which the server makes of all sites' moments."""
    return Scaler(message.tensors[f"table/{name}/mean"], message.tensors[f"table/{name}/scale"])
