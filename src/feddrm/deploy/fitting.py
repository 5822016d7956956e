"""A site's half of the exact router fit: sums over its own samples, and nothing else, leave it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from feddrm.data import Federation, generator_for
from feddrm.deploy.letters import Letter, pack
from feddrm.deploy.store import PrivateStore
from feddrm.errors import FeddrmError
from feddrm.models import Net
from feddrm.router import Holdout, Recipe
from feddrm.router.clients import Sample, client_gradient, client_moments, client_scores, client_sums, logits_at
from feddrm.router.features import extract
from feddrm.router.policy import RULES, by_rule
from feddrm.router.server import Scaler

BINS = 1000
CROPS = int.from_bytes(b"crop", "big")


class SiteFit:
    """Answers the steps of a fit. What later steps need of earlier ones is on disk: the site may restart between."""

    def __init__(self, net: Net, federation: Federation, number: int, store: PrivateStore) -> None:
        self.net, self.federation, self.number, self.store = net, federation, number, store
        self._features: Tensor | None = None
        self._sample: Sample | None = None
        self._steps = {
            "features": self._start,
            "moments": self._standardise,
            "gradient": self._gradient,
            "scores": self._scores,
            "slope": self._slope,
            "spread": self._spread,
        }

    def answer(self, letter: Letter) -> bytes:
        """The sums that a step asks for, by the names of the points they belong to."""
        step = letter.header["step"]
        if step not in self._steps:
            raise FeddrmError(f"unknown step '{step}' of a fit: both ends need the same feddrm")
        return pack({"step": step}, self._steps[step](letter))

    def _start(self, letter: Letter) -> dict[str, Tensor]:
        told = {key: letter.header[key] for key in ("recipe", "parts", "used", "seed", "sizes")}
        self.store.keep("fit-features", told, letter.tensors)
        self._features = self._sample = None
        return client_sums(self._raw())

    def _standardise(self, letter: Letter) -> dict[str, Tensor]:
        self.store.keep("fit-scaler", {}, letter.tensors)
        self._sample = None
        return client_moments(self._own().x)

    def _gradient(self, letter: Letter) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for key, point in letter.tensors.items():
            out |= _named(
                key, client_gradient(self._outside(letter.header["folds"][key]), point.to(self._own().x.device))
            )
        return out

    def _scores(self, letter: Letter) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for key, point in letter.tensors.items():
            out |= _named(key, client_scores(self._inside(letter.header["folds"][key]), point.to(self._own().x.device)))
        return out

    def _slope(self, letter: Letter) -> dict[str, Tensor]:
        """For the temperature: what Newton needs at one inverse temperature, summed over held-out samples."""
        logits, _ = self._held_out(letter.tensors)
        scale = float(letter.header["scale"])
        p = (scale * logits).softmax(1)
        mean = (p * logits).sum(1)
        return {
            "count": torch.tensor(float(len(logits)), dtype=torch.float64),
            "mean": mean.sum(),
            "own": logits[:, self.number].sum(),
            "bend": ((p * logits.square()).sum(1) - mean.square()).sum(),
        }

    def _spread(self, letter: Letter) -> dict[str, Tensor]:
        """For thresholds: how many held-out samples have how much weight on the best, and on this, client."""
        points = {key: value for key, value in letter.tensors.items() if key != "log_prior"}
        logits, x = self._held_out(points)
        calm = logits * float(letter.header["scale"])
        out = {"strange": x.square().mean(1).max().double() if len(x) else torch.zeros((), dtype=torch.float64)}
        for rule in RULES:
            weights = by_rule(calm, letter.tensors["log_prior"].to(calm), rule).exp()
            for kind, values in (("top", weights.amax(1)), ("own", weights[:, self.number])):
                out[f"{rule}/{kind}"] = torch.bincount((values * BINS).long().clamp(0, BINS - 1).cpu(), minlength=BINS)
        return out

    def _told(self, name: str) -> Letter:
        found = self.store.recall(name)
        if found is None:
            raise FeddrmError("this site has not heard of the fit: let the server start it again")
        return found

    def _raw(self) -> Tensor:
        """Features of the site's training samples [n, d], of the recipe and the leaves it was told."""
        if self._features is None:
            told = self._told("fit-features")
            recipe, own = Recipe.of(told.header["recipe"]), self.federation.clients[self.number]
            boxes, crop = None, self.federation.crop
            if crop is not None:
                height, width = self.federation.shape[-2:]
                generator = generator_for(told.header["seed"], CROPS, self.number)
                boxes = crop.boxes(len(own.train), height, width, generator).to(own.train.x.device)
            leaves = {leaf: value.to(own.train.x.device) for leaf, value in told.tensors.items()}
            found = extract(recipe, self.net if recipe.needs else None, leaves, own.view(own.train.x, boxes))
            self._features = torch.cat([found[feature.name] for feature in recipe.features], dim=1)
        return self._features

    def _own(self) -> Sample:
        """Standardised features with the answer to the question whose they are."""
        if self._sample is None:
            scaler = self._told("fit-scaler").tensors
            x = Scaler(scaler["mean"], scaler["scale"])(self._raw())
            self._sample = Sample(x, torch.full((len(x),), self.number, device=x.device))
        return self._sample

    def _part(self) -> tuple[Tensor, int]:
        told: dict[str, Any] = self._told("fit-features").header
        parts = Holdout(told["parts"], told["used"]).draw(told["sizes"], told["seed"])[self.number]
        return parts.to(self._own().x.device), told["used"]

    def _outside(self, fold: int | None) -> Sample:
        return self._own() if fold is None else self._own().rows(self._part()[0] != fold)

    def _inside(self, fold: int) -> Sample:
        return self._own().rows(self._part()[0] == fold)

    def _held_out(self, points: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits of the held-out samples, each by the fit that did not see it, and their features."""
        inside = [self._inside(fold) for fold in range(self._part()[1])]
        logits = [logits_at(s.x, points[str(fold)].to(s.x.device)) for fold, s in enumerate(inside)]
        return torch.cat(logits), torch.cat([s.x for s in inside])


def _named(key: str, message: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{key}/{name}": value for name, value in message.items()}
