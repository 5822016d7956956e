"""Fitting router and heads in closed form from moments, which every client sends once; then a few rounds, if asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from feddrm.methods import ClosedFormMethod, Tensors
from feddrm.moments import Moments, MomentTarget, ridge_head, squared_loss
from feddrm.router.features.base import Recipe, possible_features
from feddrm.router.features.decorrelated_inputs import DecorrelatedInputs
from feddrm.router.features.design_matrix import DesignMatrix
from feddrm.router.fit.cohort import Facts, FitRequest, Trunk
from feddrm.router.fit.feature_blocks import BlockChooser, FeatureBlock
from feddrm.router.fit.fit_heads import HEAD_FOLDS, LinearHeads, fit_corrections
from feddrm.router.fit.fit_router import Clock, FittedRouter, assemble_router
from feddrm.router.fit.head_problems import BIAS_RIDGE
from feddrm.router.fit.local_cohort import LocalCohort
from feddrm.router.fit.selection import solve_requests
from feddrm.router.settings import Holdout
from feddrm.router.solver.lbfgs import LDA_RIDGE
from feddrm.router.solver.problem import Problem, Scaler, Whitening

POLISH_TOLERANCE = 1e-6
NAMED = 3  # features or classes that a warning names


@dataclass(frozen=True, eq=False)
class ClosedFormFit:
    """Router and heads; the same heads as leaves of the network, shared and each client's own; and what is odd."""

    fitted: FittedRouter
    shared: Tensors
    private: Mapping[str, Tensors]
    warnings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class FittedBlock:
    """A head on a block: its closed form, and the same calibrated and polished; each also without every fold."""

    block: FeatureBlock
    design: DesignMatrix
    closed: Tensor
    closed_folds: Sequence[Tensor]
    point: Tensor
    folds: Sequence[Tensor]
    temperature: float
    figures: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        return {"recipe": self.block.recipe.name, **self.block.as_dict(), **self.figures}


def fit_closed_form(cohort: LocalCohort, trunk: Trunk, method: ClosedFormMethod) -> ClosedFormFit:
    """Fit router, probe and corrections. Samples are looked at again only to calibrate and to polish."""
    recipes = closed_form_recipes(trunk, cohort.facts)
    fit = ClosedForm(cohort, trunk, method, recipes)
    fitted = fit.router()
    # The network's own heads stand on the first recipe, its embedding.
    client, classes = fit.head_on(recipes[0], "client"), fit.head_on(recipes[0], "class")
    corrections = fit.private if classes is fit.heads["class"] else fit.corrections(classes)
    return ClosedFormFit(
        fitted,
        {**trunk.leaves, **_leaves("client_project", "client_head", client), **_leaves("project", "head", classes)},
        {name: _head("head", classes.point + corrections[name]) for name in cohort.facts.names},
        fit_warnings(fit.chooser.total, cohort.facts, fit.everything),
    )


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """One fit: its clients, its method, the recipes that it tries, and the moments that it rests on.

    The last recipe has all features. Each feature of a recipe of several is also tried alone.
    """

    cohort: LocalCohort
    trunk: Trunk
    method: ClosedFormMethod
    recipes: Sequence[Recipe]
    designs: dict[str, DesignMatrix] = field(default_factory=dict)

    def router(self) -> FittedRouter:
        """Router, probe and corrections on the features that suit them best."""
        cohort, clock = self.cohort, Clock()
        cohort.measure(self.everything, self.trunk, self.holdout)
        clock("features")
        tried, _ = self.blocks
        clock("moments")
        client, classes = self.heads["client"], self.heads["class"]
        held_out = cohort.held_out_router(client.design, client.folds, client.point)
        router = assemble_router(cohort, self.trunk, client.design, client.point, held_out, self.everything)
        private = {name: value.to(cohort.like) for name, value in self.private.items()}
        clock("heads")
        scaler = classes.design.scaler
        scaler = Scaler(scaler.mean.to(cohort.like), scaler.scale.to(cohort.like))
        heads = LinearHeads(classes.block.recipe, scaler, classes.point.to(cohort.like), None, {})
        chosen = {
            "router": client.as_dict(),
            "probe": classes.as_dict(),
            "candidates": {name: block.as_dict() for name, block in tried["client"].items()},
            "probe_candidates": {name: block.as_dict() for name, block in tried["class"].items()},
            "holdout": {"parts": self.holdout.parts, "used": self.holdout.used},
            "crops": cohort.crops,
            "message": self.message(classes),
        }
        return FittedRouter(router, heads, private, chosen, cohort.facts, clock.seconds)

    @cached_property
    def holdout(self) -> Holdout:
        """What is held out."""
        return Holdout.suggested(self.cohort.facts.samples)

    @cached_property
    def blocks(self) -> tuple[Mapping[MomentTarget, Mapping[str, FeatureBlock]], Mapping[MomentTarget, FeatureBlock]]:
        """All blocks that were tried, and the best one, by target."""
        return self.chooser.choose(self.recipes)

    @cached_property
    def heads(self) -> dict[MomentTarget, FittedBlock]:
        """The heads on the best blocks."""
        return {target: self.head(target, block) for target, block in self.blocks[1].items()}

    @cached_property
    def private(self) -> dict[str, Tensor]:
        """The corrections of the best class head."""
        return self.corrections(self.heads["class"])

    @property
    def everything(self) -> Recipe:
        """The recipe of all features."""
        return self.recipes[-1]

    def message_of(self, number: int) -> list[Tensors]:
        """What one client sends, fold by fold; Gram matrices in float16 if the method says so."""
        return [part.tensors(half=self.method.half) for part in self.moments_of(number)]

    def moments_of(self, number: int) -> list[Moments]:
        """One client's moments of all features, fold by fold."""
        return self.cohort.moments(number, self.cohort.columns(self.everything, number))

    @cached_property
    def collected(self) -> list[Moments]:
        """The sums of all clients' moments, fold by fold. No client's own are kept: their Gram matrices fill memory."""
        return Moments.joined(map(self.moments_of, range(len(self.cohort.facts.names))))

    @cached_property
    def sent(self) -> list[Moments]:
        """The sums of what clients send."""
        if not self.method.half:
            return self.collected
        messages = map(self.message_of, range(len(self.cohort.facts.names)))
        return Moments.joined([Moments.load(part) for part in message] for message in messages)

    @cached_property
    def chooser(self) -> BlockChooser:
        """The choice of features and ridge on the moments that were sent."""
        widths = self.cohort.widths(self.everything)
        return BlockChooser(self.sent, self.holdout.used, widths, self.method.ridge)

    def design(self, block: FeatureBlock, total: Moments) -> DesignMatrix:
        """The design matrix of a block. One feature is scaled alike for both targets, which then share it."""
        key = block.recipe.name
        if len(block.recipe.features) > 1 or key not in self.designs:
            count = total.counts.sum()
            facts = self.cohort.facts
            wanted = self.method.polish or (key == "raw" and DecorrelatedInputs.known(facts.shape, facts.samples))
            whitening = Whitening.of({"moments": total.scatter, "count": count}) if wanted else None
            self.designs[key] = self.cohort.standardised(block.recipe, block.scaler, whitening)
        return self.designs[key]

    def head(self, target: MomentTarget, block: FeatureBlock) -> FittedBlock:
        """The head of a target, calibrated on what each fold holds out and then polished."""
        ridge = block.choice.ridge
        total = block.of(self.chooser.total)
        closed = self.method.head(total, target, ridge)
        closed_folds = [self.method.head(block.of(fitted), target, ridge) for fitted, _ in self.chooser.folds]
        design = self.design(block, total)
        temperature, accuracy = self.cohort.held_out_figures(design, closed_folds, target)
        point, folds = closed / temperature, [fold / temperature for fold in closed_folds]
        progress: dict[str, Any] = {"rounds": 0, "converged": True}
        if self.method.polish:
            # A softmax is flatter than the square, so that it wants less of a ridge.
            problem = Problem(len(closed), design.width, ridge / LDA_RIDGE, BIAS_RIDGE if target == "class" else 0.0)
            starts: dict[int | None, Tensor] = {None: point, **dict(enumerate(folds))}
            requests = {str(fold): FitRequest(design, target, problem, fold, start) for fold, start in starts.items()}
            states = solve_requests(self.cohort, requests, self.method.polish, POLISH_TOLERANCE)
            point, folds = states["None"].iterate, [states[str(fold)].iterate for fold in range(len(folds))]
            progress = {"rounds": int(states["None"].rounds), "converged": bool(states["None"].done)}
            temperature, accuracy = self.cohort.held_out_figures(design, folds, target)
        figures = {"held_out_accuracy": accuracy, "temperature": temperature, **progress}
        return FittedBlock(block, design, closed, closed_folds, point, folds, temperature, figures)

    def head_on(self, recipe: Recipe, target: MomentTarget) -> FittedBlock:
        """The head on this recipe: the best one if that is its recipe."""
        best = self.heads[target]
        return best if best.block.recipe == recipe else self.head(target, self.blocks[0][target][recipe.name])

    def corrections(self, probe: FittedBlock) -> dict[str, Tensor]:
        """Every client's private change of the probe: in closed form, or by its own softmax fit of a polished one."""
        if self.method.polish:
            folds = probe.folds[:HEAD_FOLDS]
            return dict(fit_corrections(self.cohort, probe.design, folds, probe.point, self.method.polish)[0])
        counts = self.chooser.total.by("class")[0]
        scaler, corrections = probe.block.scaler, {}
        for number, name in enumerate(self.cohort.facts.names):
            x = scaler(self.cohort.columns(probe.block.recipe, number).double())
            # A change lies in the span of the client's samples. In axes of few samples it takes far less time.
            axes = torch.linalg.qr(x.T).Q if len(x) < x.shape[1] else None
            x = x if axes is None else x @ axes
            parts = self.cohort.moments(number, x)
            own = BlockChooser(parts, self.holdout.used, {"all": parts[0].width}, None).folds
            head, *folds = (_turned(head, axes) for head in (probe.closed, *probe.closed_folds))
            possible = self.method.corrections(own, folds, head, counts, probe.temperature)
            losses = []
            for _, *changes in possible:
                changed = [(fold + change) / probe.temperature for fold, change in zip(folds, changes, strict=True)]
                losses.append(self.cohort.own_loss(number, x, changed))
            change = possible[losses.index(min(losses))][0]
            corrections[name] = _turned(change, None if axes is None else axes.T) / probe.temperature
        return corrections

    def message(self, probe: FittedBlock) -> dict[str, Any]:
        """What a client sends at most: bytes and, of a rounded Gram matrix, what the rounding costs."""
        half = self.method.half
        # The message of the client with the most classes and folds is the longest.
        lengths = sum((part.counts > 0).sum(1) + (part.counts.sum(1) > 0) for part in self.sent)
        longest = self.message_of(int(torch.as_tensor(lengths).argmax()))
        bytes_sent = sum(tensor.nbytes for part in longest for tensor in part.values())
        figures: dict[str, Any] = {"bytes": bytes_sent, "type": "float16" if half else "float64"}
        if half:
            folds = BlockChooser(self.collected, self.holdout.used, self.cohort.widths(self.everything), None).folds
            figures["held_out_loss"] = {
                kind: _held_out_loss(probe.block, [fitted for fitted, _ in source], [held for _, held in folds])
                for kind, source in (("float16", self.chooser.folds), ("float64", folds))
            }
        return figures


def closed_form_recipes(trunk: Trunk, facts: Facts) -> list[Recipe]:
    """The network's embedding first; of images also colour statistics, and both together."""
    possible = possible_features(facts.shape, trunk.net, trunk.leaves)
    plain = not any(leaf.startswith("trunk.") for leaf in trunk.leaves)
    base = "raw" if plain and "raw" in possible else "embedding"
    names = [base, *(["colour", f"{base}+colour"] if "colour" in possible else [])]
    return [Recipe.parse(name, *facts.scale) for name in names]


def fit_warnings(total: Moments, facts: Facts, recipe: Recipe) -> tuple[str, ...]:
    """What a user should know of the data, one line each: constant and equal features, classes of one client."""
    named = recipe.name == "raw" and facts.columns is not None
    names = list(facts.columns or ()) if named else [f"feature {i}" for i in range(total.width)]
    lines = []
    if constant := total.constant.nonzero()[:, 0].tolist():
        lines.append(f"{_some(names[i] for i in constant)} constant: no head uses what is constant; leave it out")
    if pairs := total.duplicates():
        equal = (f"{names[second]} (as {names[first]})" for first, second in pairs)
        lines.append(f"{_some(equal)} repeated up to scale: heads share the weight among copies; leave the copies out")
    holders = (total.counts > 0).sum(0).tolist()
    if single := [facts.classes[k] for k, count in enumerate(holders) if count == 1]:
        owners = [facts.names[int(total.counts[:, facts.classes.index(name)].argmax())] for name in single]
        held = (f"class '{name}' ({owner})" for name, owner in zip(single, owners, strict=True))
        lines.append(f"{_some(held)} known to one client alone: its mean is that client's; give others samples of it")
    return tuple(lines)


def _some(names: Any) -> str:
    """Some of the names, how many there are, and the verb."""
    listed = list(names)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return f"{', '.join(listed[:NAMED])}{more} {'is' if len(listed) == 1 else 'are'}"


def _held_out_loss(block: FeatureBlock, fitted: Sequence[Moments], held_out: Sequence[Moments]) -> float:
    """The squared error per sample of the class head of some moments on others."""
    heads = [ridge_head(block.of(moments), "class", block.choice.ridge) for moments in fitted]
    errors = (squared_loss(head, block.of(held), "class") for head, held in zip(heads, held_out, strict=True))
    return sum(errors) / sum(held.count for held in held_out)


def _turned(head: Tensor, axes: Tensor | None) -> Tensor:
    """A head on features in other axes [d, axes]; the bias stays."""
    return head if axes is None else torch.cat([head[:, :-1] @ axes, head[:, -1:]], dim=1)


def _leaves(project: str, head: str, fitted: FittedBlock) -> Tensors:
    scaler = fitted.design.scaler
    return {
        f"{project}.mean": scaler.mean.float(),
        f"{project}.scale": scaler.scale.float(),
        **_head(head, fitted.point),
    }


def _head(name: str, point: Tensor) -> Tensors:
    return {f"{name}.weight": point[:, :-1].float().contiguous(), f"{name}.bias": point[:, -1].float().contiguous()}
