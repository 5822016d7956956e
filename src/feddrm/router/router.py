"""The router: it chooses, from a sample or from its features alone, the client that should answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddrm.data.query_views import QueryViews
from feddrm.errors import FeddrmError, SettingError, short_list
from feddrm.models import Net
from feddrm.registry import LISTED, check_choice, require_client
from feddrm.router.decisions.decision import (
    AWAY,
    BROKEN,
    DOWN,
    NOBODY,
    UNLIKE,
    UNSURE,
    Decision,
    first_reasons,
)
from feddrm.router.decisions.explanation import Explanation, LinearScores, explain_scores
from feddrm.router.decisions.term_names import TermNames
from feddrm.router.features.base import Recipe, extract, part_widths
from feddrm.router.features.decorrelated_inputs import DecorrelatedInputs
from feddrm.router.features.roughness import roughness
from feddrm.router.policy import Calibration, leaders, log_pooled_density
from feddrm.router.row_checks import RowChecks
from feddrm.router.solver.client_statistics import logits_at
from feddrm.router.solver.problem import Scaler
from feddrm.rules import ROUTING_RULES, RULES, Competence, Density, Evidence, Posterior, Rule
from feddrm.tables.query_rows import frame_rows
from feddrm.tables.table_schema import TableSchema
from feddrm.typed_settings import typed_arguments

FINITE = torch.finfo(torch.float32).max
ONE_SCALE = "train with one scale for all (data retina: --set data.normalise=common) and fit again"
MAX_AWAY = 0.5  # of the probability: what clients that are away may hold


@dataclass(frozen=True, eq=False)
class Router:
    """Clients' names, a recipe of features, and a linear density ratio model on them.

    ``net`` and ``leaves`` compute the features of raw samples. ``own_scales`` says that every client scaled its
    training samples by its own constants. Raw pixels cannot be scaled before they are routed then, so the router
    takes network inputs and features only. Several threads may use one router.
    """

    names: tuple[str, ...]
    recipe: Recipe
    scaler: Scaler
    weight: Tensor  # [m, d], on standardised features
    bias: Tensor  # [m]
    log_prior: Tensor  # [m]
    calibration: Calibration = field(default_factory=Calibration)
    net: Net | None = None
    leaves: Mapping[str, Tensor] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    input_mean: tuple[float, ...] = (0.5,)
    input_std: tuple[float, ...] = (0.5,)
    own_scales: bool = False
    columns: tuple[str, ...] | None = None  # of a table: the names of the network's inputs
    schema: TableSchema | None = None
    usual: Scaler | None = None  # of a table: the inputs' pooled means and deviations
    competence: Tensor | None = None  # [m, d + 1] log-odds that each client is right, on standardised features
    means: Tensor | None = None  # [m, d] every client's mean standardised features; rivals compare with them
    decorrelated: DecorrelatedInputs | None = None  # of a table; the strangeness is measured on them
    query_views: QueryViews | None = None  # those that the data allow; None where the fit was older and did not note it

    def __post_init__(self) -> None:
        # (x - mean) / scale * weight / t = (x - mean) * (weight / scale / t): saves two passes per query.
        scale, t = self.scaler.scale.to(self.weight), self.calibration.temperature
        folded, bias = (self.weight / scale / t).T.contiguous(), self.bias / t
        odds = Evidence(bias, self.log_prior.to(bias))
        # A rule of origin shifts every client's odds, as the bias does: one addition for both.
        shifts = {rule: Rule.find(rule)().scores(odds) for rule in RULES}
        norm = 1 / (scale * scale.numel() ** 0.5)  # the squares of features times this add up to the strangeness
        norm = norm if self.decorrelated is None else self.decorrelated.scaled(scale)
        object.__setattr__(self, "_folded", (self.scaler.mean.to(folded), norm, folded, shifts))

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return (
            f"Router({self.recipe.name}, samples of {shape}, {self.clients} clients: {short_list(self.names, LISTED)})"
        )

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.names)

    def to(self, device: torch.device | str) -> Router:
        """The same router on another device."""
        return replace(
            self,
            scaler=Scaler(self.scaler.mean.to(device), self.scaler.scale.to(device)),
            weight=self.weight.to(device),
            bias=self.bias.to(device),
            log_prior=self.log_prior.to(device),
            competence=None if self.competence is None else self.competence.to(device),
            means=None if self.means is None else self.means.to(device),
            decorrelated=None if self.decorrelated is None else self.decorrelated.to(self.weight.to(device)),
            net=None if self.net is None else self.net.to(device),
            leaves={leaf: value.to(device) for leaf, value in self.leaves.items()},
        )

    def samples(self, x: Tensor | NDArray[Any] | Sequence[Any]) -> Tensor:
        """Samples as a tensor: a frame's columns by name, encoded by the schema; grey images with a channel."""
        if len(self.shape) == 1 and len(getattr(x, "columns", ())):
            return torch.from_numpy(frame_rows(x, self.columns, self.schema))
        given = as_tensor(x)
        return given[:, None] if given.ndim == 3 and (1, *given.shape[1:]) == self.shape else given

    def inputs(self, x: Tensor | NDArray[Any] | Sequence[Any]) -> Tensor:
        """Network inputs: raw images (whole numbers 0..255) are scaled, other numbers are taken as they are."""
        x = self.samples(x)
        if self.shape and tuple(x.shape) == self.shape:
            raise FeddrmError(f"one sample of shape {self.shape}, the router wants a batch of them: give x[None]")
        if self.shape and tuple(x.shape[1:]) != self.shape:
            raise FeddrmError(f"samples of shape {tuple(x.shape[1:])}, the router wants {self.shape}: bring them to it")
        if len(self.shape) != 3 or x.is_floating_point():
            return x if x.dtype == torch.float32 else x.float()
        if self.own_scales:
            raise FeddrmError(
                "this router takes no raw pixels: it was fitted on samples that every client scaled by its own "
                f"constants, and the client of a query is unknown: {ONE_SCALE}, or give network inputs (float32)"
            )
        if x.dtype != torch.uint8 and x.numel() and not 0 <= int(x.min()) <= int(x.max()) <= 255:
            raise FeddrmError(f"pixels from {int(x.min())} to {int(x.max())}: give whole numbers 0..255")
        mean, std = (torch.tensor(v, device=x.device).view(-1, 1, 1) for v in (self.input_mean, self.input_std))
        return x.float().div_(255).sub_(mean).div_(std)

    def views(self, count: int) -> QueryViews:
        """The first ``count`` views of a query; more than the data allow are refused."""
        if self.query_views is None and count > 1:
            raise SettingError(
                f"views={count}: this router is older and does not know which views its data allow: fit it again, "
                "or leave views out"
            )
        return (self.query_views or QueryViews()).take(count)

    def features(self, x: Tensor | NDArray[Any] | Sequence[Any], views: int = 1) -> Tensor:
        """Features [N, d] of raw samples or network inputs: means over so many views of each."""
        averaged = self.views(views)
        columns = averaged.mean(self.inputs(x), lambda view: extract(self.recipe, self.net, self.leaves, view))
        return self.recipe.joined(columns)

    def check_features(self, features: Tensor | NDArray[Any]) -> None:
        """An error if these are not as many features per sample as the router was fitted on."""
        if (given := features.shape[-1]) != self.weight.shape[1]:
            fitted = f"the router was fitted on {self.weight.shape[1]} ({self.recipe.name})"
            raise FeddrmError(f"{given} features per sample, {fitted}: compute them with Router.features")

    def logits(self, features: Tensor) -> Tensor:
        """Posterior log-odds of the clients, up to a constant per sample, calibrated."""
        return self._origin_scores(self._centred(features), Posterior.name)

    def _centred(self, features: Tensor) -> Tensor:
        self.check_features(features)
        mean: Tensor = self.__dict__["_folded"][0]
        return features.to(mean.dtype) - mean

    def _origin_scores(self, centred: Tensor, rule: str) -> Tensor:
        """Scores [N, m] by a rule of origin."""
        _, _, folded, shifts = self.__dict__["_folded"]
        return torch.addmm(shifts[rule], centred, folded)

    def right(self, features: Tensor) -> Tensor:
        """The probability [N, m] that each client's answer is right."""
        if self.competence is None:
            raise FeddrmError(
                "this router knows no client's competence: fit it again, with heads and in one process "
                "('feddrm fit-router RUN'), or deployed with 'routing: {heads: true, competence: true}', "
                f"or choose rule {' or '.join(RULES)}"
            )
        return logits_at(self.scaler(features.to(self.weight.dtype)), self.competence).sigmoid()

    def evidence(self, features: Tensor, rule: str) -> Evidence:
        """What a routing rule of this name looks at."""
        check_choice("rule", rule, ROUTING_RULES)
        logits = self.logits(features)
        right = self.right(features).to(logits) if "right" in Rule.find(rule).needs else None
        return Evidence(logits, self.log_prior.to(logits), right)

    def rule(self, name: str, costs: Mapping[str, Any] | None = None) -> Rule:
        """The routing rule of this name. ``costs`` are those of asking clients, by name; the others cost nothing."""
        if not costs:
            return Rule.find(name)()
        if name != Competence.name:
            raise SettingError(f"costs with rule '{name}': only rule '{Competence.name}' weighs costs: give that rule")
        for client, cost in costs.items():
            require_client(client, self.names)
            if not (isinstance(cost, Real) and 0 <= float(cost) <= 1):
                raise SettingError(f"cost of '{client}' is {cost}: give a share of the probability from 0 to 1")
        return Competence(tuple(float(costs.get(name, 0.0)) for name in self.names))

    @typed_arguments
    def route(self, x: Tensor | NDArray[Any] | Sequence[Any], *, views: int = 1, **options: Any) -> Decision:
        """Decide for raw samples or network inputs [N, ...], with the options of :meth:`route_features`.

        ``x`` is a tensor, an array, a list or a data frame, whose columns are taken by name. Images are whole numbers
        0..255, or floats as the network takes them. ``views`` averages the features over so many crops and mirror
        images of each. Values of a table's row that cannot be are flagged, and the decision about the row abstains. So
        does that about a picture that is far rougher or smoother than all training pictures.
        """
        x = self.inputs(x)
        return self.route_inputs(x, self.features(x, views), **options)

    def route_inputs(self, inputs: Tensor, features: Tensor, **options: Any) -> Decision:
        """Decide for network inputs whose features are known, as :meth:`route` does."""
        decision, known = self.route_features(features, **options), self.calibration.roughness
        if known is not None:
            decision = decision.of_pictures(known.sides(roughness(inputs)))
        return decision if self.row_checks is None else decision.flagged(self.row_checks(inputs))

    @cached_property
    def row_checks(self) -> RowChecks | None:
        """The checks of a table's rows; None for images."""
        known = len(self.shape) == 1 and (self.schema is not None or self.usual is not None)
        return RowChecks(self.schema, self.columns, self.usual) if known else None

    @typed_arguments
    def route_features(
        self,
        features: Tensor,
        *,
        rule: str = "density",
        costs: Mapping[str, Any] | None = None,
        coverage: float = 1.0,
        available: Sequence[str] | Tensor | None = None,
        max_away: float = MAX_AWAY,
        miss: float | None = None,
    ) -> Decision:
        """Decide for features [N, d].

        ``rule`` is the name of a routing rule (:mod:`feddrm.rules`). ``costs`` are taken off the probability of a right
        answer by rule ``competence``: ``{"oslo": 0.1}`` asks Oslo where it gains ten points. A ``coverage`` below one
        abstains from the least confident samples, so that about that fraction is answered. ``available`` names the
        clients that can answer now; the others are away. Where these hold more than ``max_away`` of the probability,
        the decision abstains; ``max_away=1`` falls back to the best available client in any case. ``miss`` requests the
        conformal set that leaves the true client out with that probability (0.01, 0.05, 0.1 or 0.2).
        """
        if not 0 <= max_away <= 1:
            raise SettingError(f"max_away={max_away}: give a share of the probability from 0 to 1")
        check_choice("rule", rule, ROUTING_RULES)
        of_origin, right = rule in RULES, None
        centred = self._centred(features)
        scores = origin = self._origin_scores(centred, rule if of_origin else Density.name)
        if not of_origin or costs:
            weigh = self.rule(rule, costs)
            right, log_prior = self.right(features).to(origin), self.log_prior.to(origin)
            scores = weigh.scores(Evidence(origin + log_prior, log_prior, right))
        top, best, margin = leaders(probabilities := scores.softmax(1))
        strangeness = self._strangeness(centred)
        client, away = best, torch.zeros(self.clients, dtype=torch.bool, device=best.device)
        doubts: dict[str, Tensor] = {}
        if not bool((strangeness <= min(self.calibration.unlike_above, FINITE)).all()):  # not a number, too
            doubts[BROKEN] = ~features.isfinite().all(1)
            doubts[UNLIKE] = strangeness > self.calibration.unlike_above
        if available is not None:
            away = ~self._mask(available).to(best.device)
            client = scores.masked_fill(away, -torch.inf).argmax(1)
            doubts[DOWN] = away.all().expand(len(client))
            doubts[AWAY] = probabilities[:, away].sum(1).clamp(max=1) > max_away  # a sum may round to more than one
        if least := self.calibration.threshold(rule, coverage):
            doubts[UNSURE] = (top if right is None else right.amax(1)) < least
        abstain = reduce(torch.logical_or, doubts.values(), torch.zeros_like(best, dtype=torch.bool))
        for nobody in (doubts[reason] for reason in (BROKEN, DOWN) if reason in doubts):
            client = client.masked_fill(nobody, NOBODY)
        by_origin = (rule, probabilities, best) if of_origin else (Density.name, *_shares(origin))
        within = None if miss is None else (probabilities >= self.calibration.least_weight(rule, miss)) & ~away
        return Decision(
            client=client,
            probabilities=probabilities,
            log_density=origin - self.log_prior.to(origin) if rule == Posterior.name else origin,
            log_pooled_density=log_pooled_density(origin, self.log_prior, *by_origin),
            margin=margin,
            abstain=abstain,
            reason=first_reasons(abstain, doubts),
            away=away,
            within=within,
            right=right,
            features=features,
            strangeness=strangeness,
            rule=rule,
        )

    @typed_arguments
    def explain(
        self,
        x: Tensor | NDArray[Any] | Sequence[Any],
        *,
        over: str | None = None,
        views: int = 1,
        **options: Any,
    ) -> Explanation:
        """Why :meth:`route` chooses each sample's client: exact terms that make it likelier than another.

        ``options`` are those of :meth:`route`. ``over`` names the other client; without it, and where it is the chosen
        one, that is the runner-up: the best of the others that are available. Rule ``competence`` is refused.
        """
        x = self.inputs(x)
        return self.explain_decision(self.route_inputs(x, self.features(x, views), **options), x, over=over)

    def explain_decision(
        self, decision: Decision, inputs: Tensor | None = None, *, over: str | None = None
    ) -> Explanation:
        """As :meth:`explain`, for a decision of this router. With the network ``inputs`` the terms have raw values."""
        if decision.rule not in RULES:
            raise SettingError(
                f"rule '{decision.rule}' weighs probabilities of a right answer, which are no sum of terms: "
                f"to know why, choose rule {' or '.join(RULES)}"
            )
        if over is not None:
            require_client(over, self.names)
        assert decision.features is not None
        _, _, folded, shifts = self.__dict__["_folded"]
        baseline, both = (shifts[rule].double() for rule in (Density.name, decision.rule))
        scores = LinearScores(self._centred(decision.features), folded, self._squares, baseline, both - baseline)
        number = None if over is None else self.names.index(over)
        return explain_scores(decision, scores, self.term_names, self.names, number, inputs)

    @cached_property
    def term_names(self) -> TermNames:
        """The terms of explanations, and which features count to each."""
        if not self.shape:  # made by hand: nobody knows what the features are of
            return TermNames((self.recipe.name,), torch.zeros(self.weight.shape[1], dtype=torch.int64))
        blank = torch.zeros(1, *self.shape, device=self.weight.device)
        return TermNames.of(
            part_widths(self.recipe, self.net, self.leaves, blank), self.shape, self.columns, self.schema
        )

    def strangeness(self, features: Tensor) -> Tensor:
        """Mean square of the standardised features, weighted as the fit weights their blocks; of a table's inputs
        without their correlations, where these are known.

        It has no unit: ``calibration.unlike_above`` says what is too large. It notices what lies far outside of all
        data. Of a table it also notices usual values that do not go together; of a picture it misses noise, which the
        roughness shows (:meth:`route`).
        """
        return self._strangeness(self._centred(features))

    def _strangeness(self, centred: Tensor) -> Tensor:
        return self._squares(centred).sum(1)

    def _squares(self, centred: Tensor) -> Tensor:
        norm: Tensor | DecorrelatedInputs = self.__dict__["_folded"][1]
        if isinstance(norm, DecorrelatedInputs):
            return norm.squares(centred)
        return (centred * norm.to(centred)).square_()

    def _mask(self, available: Sequence[str] | Tensor) -> Tensor:
        if isinstance(available, Tensor):
            if available.shape != (self.clients,):
                raise FeddrmError(
                    f"availability of {len(available)} clients for a router of {self.clients}: give one each"
                )
            return available.bool()
        for name in (there := set(available)):
            require_client(name, self.names)
        return torch.tensor([name in there for name in self.names])


def _shares(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The scores' softmax [N, m], and the number of the largest [N]."""
    return (weights := scores.softmax(1)), leaders(weights)[1]


def as_tensor(x: Tensor | NDArray[Any] | Sequence[Any]) -> Tensor:
    """Samples as a tensor, a copy where they are read-only (torch warns of that); other than numbers are an error."""
    if not isinstance(x, Tensor):
        try:
            array = np.asarray(x)
            x = torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
        except (TypeError, ValueError) as error:
            raise FeddrmError("the samples are no array of numbers: give one row, or one image, for each") from error
    if x.is_complex():  # torch would drop the imaginary parts
        raise FeddrmError("the samples are complex numbers: give real ones")
    return x
