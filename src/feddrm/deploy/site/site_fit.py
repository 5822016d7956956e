"""A site's half of the exact router fit and its class heads: sums over its own samples, and nothing else, leave it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from feddrm.data import Federation
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.wire.messages import Message, pack
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.models import Net
from feddrm.router import Holdout, Recipe
from feddrm.router.features.base import extract
from feddrm.router.fit.design_matrix import FINE_ROUNDS
from feddrm.router.fit.fit_router import training_view
from feddrm.router.fit.head_problems import fit_private, joint_classes, joint_label
from feddrm.router.fit.stacking import client_curves
from feddrm.router.policy import RULES, by_rule, client_slopes
from feddrm.router.solver.client_statistics import (
    Sample,
    client_gradient,
    client_moments,
    client_scores,
    client_sums,
    logits_at,
)
from feddrm.router.solver.problem import Scaler
from feddrm.router.solver.solve import moments_of
from feddrm.runs.run_router import PRIVATE_HEAD

BINS = 1000


class SiteFit:
    """Answers the steps of a fit; ``own`` is the folder for what this site answers queries with.

    A letter says all that its step needs but the features, which are computed once from leaves that
    are kept on disk: the site may restart between two letters.
    """

    def __init__(self, net: Net, federation: Federation, number: int, store: PrivateStore, own: Path) -> None:
        self.net, self.federation, self.number, self.store, self.own = net, federation, number, store, own
        self._found: dict[str, Tensor] | None = None
        self._tables: dict[str, tuple[Scaler, Tensor]] = {}
        self._steps = {
            "features": self._start,
            "moments": self._moments,
            "gradient": self._gradient,
            "scores": self._scores,
            "slope": self._slope,
            "spread": self._spread,
            "corrections": self._corrections,
            "keep": self._keep,
            "curves": self._curves,
        }

    def answer(self, letter: Message) -> bytes:
        """The sums that a step asks for, by the names of the points they belong to."""
        step = letter.header["step"]
        if step not in self._steps:
            raise FeddrmError(f"unknown step '{step}' of a fit: both ends need the same feddrm")
        return pack({"step": step}, self._steps[step](letter))

    def _start(self, letter: Message) -> dict[str, Tensor]:
        told = {key: letter.header[key] for key in ("recipe", "parts", "used", "seed", "sizes")}
        self.store.keep("fit-features", told, letter.tensors)
        self._found, self._tables = None, {}
        out: dict[str, Tensor] = {}
        for name, rows in self._features().items():
            out |= _named(name, client_sums(rows))
        return out

    def _moments(self, letter: Message) -> dict[str, Tensor]:
        return client_moments(self._table(letter, letter.header["table"]))

    def _gradient(self, letter: Message) -> dict[str, Tensor]:
        samples = _Samples(self, letter)
        out: dict[str, Tensor] = {}
        for key, (table, target, fold) in letter.header["fits"].items():
            out |= _named(key, client_gradient(samples.outside(table, target, fold), self._point(letter, key)))
        return out

    def _scores(self, letter: Message) -> dict[str, Tensor]:
        samples = _Samples(self, letter)
        out: dict[str, Tensor] = {}
        for key, (table, target, fold) in letter.header["fits"].items():
            out |= _named(key, client_scores(samples.inside(table, target, fold), self._point(letter, key)))
        return out

    def _slope(self, letter: Message) -> dict[str, Tensor]:
        """For the temperature."""
        logits, held = self._held_out(letter, "client")
        return client_slopes(logits, held.y, float(letter.header["scale"]))

    def _spread(self, letter: Message) -> dict[str, Tensor]:
        """For thresholds: how many held-out samples have how much weight on the best, and on this, client."""
        logits, held = self._held_out(letter, "client")
        calm = logits * float(letter.header["scale"])
        strange = held.x.square().mean(1).double()
        out = {"strange": strange.max() if len(strange) else strange.sum()}
        for rule in RULES:
            weights = by_rule(calm, letter.tensors["log_prior"].to(calm), rule).exp()
            for kind, values in (("top", weights.amax(1)), ("own", weights[:, self.number])):
                out[f"{rule}/{kind}"] = torch.bincount((values * BINS).long().clamp(0, BINS - 1).cpu(), minlength=BINS)
        return out

    def _corrections(self, letter: Message) -> dict[str, Tensor]:
        """What this site's own corrections of the probe are worth on what was held out of them; they stay here."""
        samples = _Samples(self, letter)
        out: dict[str, Tensor] = {}
        for fold in range(letter.header["folds"]):
            probe = self._point(letter, str(fold))
            outside, inside = (
                part(letter.header["table"], "class", fold) for part in (samples.outside, samples.inside)
            )
            held = Sample(inside.x, inside.y, logits_at(inside.x, probe))
            for i, ridge in enumerate(letter.header["ridges"]):
                out |= _named(
                    f"{i}.{fold}", client_scores(held, self._corrected(outside, probe, ridge, fold, FINE_ROUNDS))
                )
        return out

    def _keep(self, letter: Message) -> dict[str, Tensor]:
        """The correction that this site will answer with, fitted on all its samples and written where only it reads."""
        probe = self._point(letter, "probe")
        sample = _Samples(self, letter).outside(letter.header["table"], "class", None)
        correction = self._corrected(sample, probe, letter.header["ridge"], None)
        self.own.mkdir(parents=True, exist_ok=True)
        content = save({"correction": correction.to(sample.x).cpu().contiguous()})
        write_atomically(self.own / PRIVATE_HEAD, content, private=True)
        return {}

    def _curves(self, letter: Message) -> dict[str, Tensor]:
        """For the stack: held-out answers of the probe and, where there is one, the joint model."""
        probe, held = self._held_out(letter, "class", "probe.")
        answers = [probe.log_softmax(1)]
        if letter.header["joint"]:
            answers.append(joint_classes(self._held_out(letter, "class", "joint.")[0], len(self.federation)))
        return client_curves(torch.stack(answers), held.y, letter.tensors["weights"].to(probe.device))

    def _corrected(self, sample: Sample, probe: Tensor, ridge: float, fold: int | None, rounds: int = 60) -> Tensor:
        """The site's own correction of the probe; none where it has no sample to fit it on."""
        if not len(sample):
            return torch.zeros_like(probe)
        used = sum(len(part) if fold is None else int((part != fold).sum()) for part in self._parts())
        return fit_private(sample, probe, ridge, moments_of([sample]), len(sample) / used, rounds)

    def _point(self, letter: Message, key: str) -> Tensor:
        return letter.tensors[f"point/{key}"].to(self._device)

    @property
    def _device(self) -> torch.device:
        return self.federation.clients[self.number].train.x.device

    def _told(self) -> Message:
        found = self.store.recall("fit-features")
        if found is None:
            raise FeddrmError("this site has not heard of the fit: let the server start it again")
        return found

    def _features(self) -> dict[str, Tensor]:
        """Of the site's training samples, by name: of the recipe and the leaves that it was told."""
        if self._found is None:
            told = self._told()
            recipe = Recipe.of(told.header["recipe"])
            leaves = {leaf: value.to(self._device) for leaf, value in told.tensors.items()}
            x = training_view(self.federation, self.number, told.header["seed"])
            self._found = extract(recipe, self.net if recipe.needs else None, leaves, x)
        return self._found

    def _table(self, letter: Message, name: str) -> Tensor:
        """Standardised features [n, d] as the letter says; the last ones of that name are kept."""
        scaler = Scaler(letter.tensors[f"table/{name}/mean"], letter.tensors[f"table/{name}/scale"])
        before = self._tables.get(name)
        if before is None or not (
            torch.equal(before[0].mean, scaler.mean) and torch.equal(before[0].scale, scaler.scale)
        ):
            rows = torch.cat([self._features()[feature] for feature in name.split("+")], dim=1)
            self._tables[name] = (scaler, scaler(rows))
        return self._tables[name][1]

    def _target(self, kind: str) -> Tensor:
        y, classes = self.federation.clients[self.number].train.y, len(self.federation.classes)
        return {"client": torch.full_like(y, self.number), "class": y, "pair": joint_label(self.number, y, classes)}[
            kind
        ]

    def _parts(self) -> list[Tensor]:
        told = self._told().header
        return Holdout(told["parts"], told["used"]).draw(told["sizes"], told["seed"])

    def _held_out(self, letter: Message, target: str, prefix: str = "") -> tuple[Tensor, Sample]:
        """Logits of the held-out samples, each by the fit that did not see it, and these samples."""
        samples, logits, held = _Samples(self, letter), [], []
        for fold in range(letter.header["folds"]):
            held.append(samples.inside(letter.header["table"], target, fold))
            logits.append(logits_at(held[-1].x, self._point(letter, f"{prefix}{fold}")))
        return torch.cat(logits), Sample(torch.cat([s.x for s in held]), torch.cat([s.y for s in held]))


class _Samples:
    """The rows that the fits of one letter need: several of them need the same."""

    def __init__(self, fit: SiteFit, letter: Message) -> None:
        self.fit, self.letter = fit, letter
        self.part = fit._parts()[fit.number].to(fit._device)
        self.rows: dict[tuple[str, int, bool], Tensor] = {}

    def outside(self, table: str, target: str, fold: int | None) -> Sample:
        """What a fit is made on: all but its fold."""
        if fold is None:
            return Sample(self.fit._table(self.letter, table), self.fit._target(target))
        return self._some(table, target, fold, False)

    def inside(self, table: str, target: str, fold: int) -> Sample:
        """What is held out of it."""
        return self._some(table, target, fold, True)

    def _some(self, table: str, target: str, fold: int, inside: bool) -> Sample:
        mask = (self.part == fold) == inside
        key = (table, fold, inside)
        if key not in self.rows:
            self.rows[key] = self.fit._table(self.letter, table)[mask]
        return Sample(self.rows[key], self.fit._target(target)[mask])


def _named(key: str, message: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{key}/{name}": value for name, value in message.items()}
