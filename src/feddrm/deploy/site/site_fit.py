"""A site's half of the router's fit and its class heads.

Only sums over the site's own samples leave it. The exception are ``ROW_STEPS``, which a site must have agreed to.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from feddrm.deploy.site.fit_rows import FitRows, MessageSamples, SiteClient, scaler_of
from feddrm.deploy.site.floors import Floors
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.wire.largest_value import largest_value
from feddrm.deploy.wire.messages import Message
from feddrm.errors import FeddrmError
from feddrm.models import Net
from feddrm.router import Recipe
from feddrm.router.answer_calibration import AnswerCalibration
from feddrm.router.features.decorrelated_inputs import DecorrelatedInputs, strangeness
from feddrm.router.features.roughness import training_roughness
from feddrm.router.fit.cohort import Target
from feddrm.router.fit.feature_blocks import site_moments
from feddrm.router.fit.head_problems import CORRECTION_ROUNDS, joint_classes, own_correction
from feddrm.router.fit.selection import FINE_ROUNDS
from feddrm.router.fit.stacking import client_curves
from feddrm.router.policy import RULES, by_rule, client_slopes, subject_shares
from feddrm.router.private_head import PrivateHead
from feddrm.router.solver.client_statistics import (
    Sample,
    client_gradient,
    client_gradients,
    client_scores,
    client_scores_at,
    grouped,
    logits_at,
)
from feddrm.router.solver.hessian import client_hessian, client_score_scatter

BINS = 1000
NO_FLOORS = Floors()
SCALES = torch.logspace(-2, 2, 257, dtype=torch.float64).tolist()  # inverse temperatures
SCALED = 2**20  # logits that are scaled at a time
KEPT_HEAD = "fit-head"  # in the private store
ROWS = "rows/"  # begins the names of tensors with one row per held-out sample
ROW_STEPS = ("held_out_rows", "answer_rows", "judge_rows")


class SiteFit:
    """Answers the steps of a fit.

    A message has everything that its step needs except the rows, which the site can compute anew: it may restart
    between two messages.
    """

    def __init__(self, net: Net, site: SiteClient, store: PrivateStore, floors: Floors = NO_FLOORS) -> None:
        self.site, self.store, self.floors = site, store, floors
        self.rows = FitRows(net, site, store, floors)
        self._steps = {
            "fold_moments": self._start,
            "evaluate": self._evaluate,
            "gradient": self._gradient,
            "scores": self._scores,
            "score_scatter": self._score_scatter,
            "slope": self._slope,
            "spread": self._spread,
            "corrections": self._corrections,
            "keep": self._keep,
            "curves": self._curves,
            "held_out_rows": self._held_out_rows,
            "answer_rows": self._answer_rows,
            "judge_rows": self._judge_rows,
        }

    def answer(self, message: Message) -> dict[str, Tensor]:
        """The sums that a step asks for, by the names of the points that they belong to."""
        step = message.header["step"]
        if step not in self._steps:
            raise FeddrmError(f"unknown step '{step}' of a fit: both ends need the same feddrm")
        return self._steps[step](message)

    def _start(self, message: Message) -> dict[str, Tensor]:
        self.rows.begin(message)
        masks = self.rows.holdout.masks(self.rows.part)
        for mask in masks:
            self.rows.check_fold(mask)
        features = self.rows.features
        rows = torch.cat(list(features.values()), dim=1).cpu()
        widths = [feature.shape[1] for feature in features.values()]
        out: dict[str, Tensor] = {}
        for part, moments in enumerate(site_moments(rows, masks)):
            sums = dict(zip(features, torch.split(moments.client_sums[0], widths), strict=True))
            own = {f"{part}/count": moments.counts.sum(), **_named(f"{part}/sum", sums)}
            out |= {name: self._placed(value) for name, value in own.items()} if message.header.get("pooled") else own
            out[f"{part}/scatter"] = moments.tensors()["scatter"]
        return out

    def _placed(self, value: Tensor) -> Tensor:
        """A value in this client's row, zeros in all others: in a sum over sites, clients stay apart."""
        rows = torch.zeros(self.site.clients, *value.shape, dtype=value.dtype)
        rows[self.site.number] = value
        return rows

    def _evaluate(self, message: Message) -> dict[str, Tensor]:
        """Loss and gradient, second derivatives where they are asked for, and scores of what is held out."""
        samples, curved = MessageSamples(self.rows, message), message.header["curved"]
        out: dict[str, Tensor] = {}
        for (table, target, fold), keys in grouped({k: tuple(v) for k, v in message.header["fits"].items()}).items():
            points = [self._point(message, key) for key in keys]
            fitted = samples.outside(table, target, fold).double()
            for key, point, sums in zip(keys, points, client_gradients(fitted, points), strict=True):
                out |= _named(f"{key}/fit", sums | (client_hessian(fitted, point) if key in curved else {}))
            if fold is not None:
                held = client_scores_at(samples.inside(table, target, fold).double(), points)
                out |= {f"{key}/held/{name}": v for key, of in zip(keys, held, strict=True) for name, v in of.items()}
        return out

    def _gradient(self, message: Message) -> dict[str, Tensor]:
        samples = MessageSamples(self.rows, message)
        out: dict[str, Tensor] = {}
        for key, (table, target, fold) in message.header["fits"].items():
            sample = samples.outside(table, target, fold).double()
            out |= _named(key, client_gradient(sample, self._point(message, key)))
        return out

    def _scores(self, message: Message) -> dict[str, Tensor]:
        samples = MessageSamples(self.rows, message)
        out: dict[str, Tensor] = {}
        for key, (table, target, fold) in message.header["fits"].items():
            out |= _named(key, client_scores(samples.inside(table, target, fold).double(), self._point(message, key)))
        return out

    def _score_scatter(self, message: Message) -> dict[str, Tensor]:
        samples = MessageSamples(self.rows, message)
        out: dict[str, Tensor] = {}
        for key, (table, target, fold) in message.header["fits"].items():
            sample = samples.outside(table, target, fold).double()
            whose = samples.subject_outside(fold)
            out |= _named(key, client_score_scatter(sample, self._point(message, key), whose))
        return out

    def _slope(self, message: Message) -> dict[str, Tensor]:
        """Slope and curvature for the temperature, at every scale."""
        logits, held = self._held_out(message, "client")
        parts = torch.split(torch.tensor(SCALES, dtype=torch.float64), max(1, SCALED // max(1, logits.numel())))
        each = [client_slopes(logits, held.y, scales) for scales in parts]
        return {"count": each[0]["count"], **{k: torch.cat([s[k] for s in each]) for k in ("slope", "even", "bend")}}

    def _spread(self, message: Message) -> dict[str, Tensor]:
        """Counts for the thresholds: test samples by the weight on their best client, subjects by that on this one."""
        logits, held = self._held_out(message, "client")
        strange = strangeness(held.x, self._inputs(message)).double()
        whose = held_subject = MessageSamples(self.rows, message).subject_inside(message.header["folds"])
        if len(rows := self.rows.of_test_samples(message, message.header["table"])):
            # The server knows of no more samples than those of training.
            some = torch.linspace(0, len(rows) - 1, min(len(rows), len(self.rows.part))).long()
            whose = self.site.client.test.subject_of_sample[some]
            self.floors.check_sum(len(torch.unique(whose)), "the test samples")
            logits = logits_at(rows[some.to(rows.device)], self._point(message, "all"))
        calm = logits * float(message.header["scale"])
        largest = {"strange": (strange, held_subject)}
        if len(rough := training_roughness(self.site.client).double()):
            own = self.site.client.train.subject_of_sample
            largest |= {"rough": (rough, own), "smooth": (1 / rough, own)}
        pooled, per_sum = bool(message.header.get("pooled")), self.floors.per_sum
        out = {
            name: largest_value(values.cpu(), subject, per_sum, pooled) for name, (values, subject) in largest.items()
        }
        for rule in RULES:
            weights = by_rule(calm, message.tensors["log_prior"].to(calm), rule).exp()
            for kind, values, counts in (
                ("top", weights.amax(1), torch.ones_like(whose)),
                ("own", weights[:, self.site.number], subject_shares(whose)),
            ):
                place = (values * BINS).long().clamp(0, BINS - 1).cpu()
                out[f"{rule}/{kind}"] = self.floors.pooled(place, whose, counts, BINS)
        return out

    def _corrections(self, message: Message) -> dict[str, Tensor]:
        """Scores of this site's own corrections on held-out samples. The corrections stay here."""
        samples = MessageSamples(self.rows, message)
        out: dict[str, Tensor] = {}
        for fold in range(message.header["folds"]):
            probe = self._point(message, str(fold))
            outside, inside = (
                part(message.header["table"], "class", fold) for part in (samples.outside, samples.inside)
            )
            held = Sample(inside.x, inside.y, logits_at(inside.x, probe))
            for i, ridge in enumerate(message.header["ridges"]):
                correction = self._corrected(outside, probe, ridge, fold, FINE_ROUNDS)
                out |= _named(f"{i}.{fold}", client_scores(held, correction))
        return out

    def _keep(self, message: Message) -> dict[str, Tensor]:
        """Fit the correction that this site answers with on all its samples, and keep it where only the site reads.

        So is its calibration, from the site's test samples. The site answers with them once it has their router.
        """
        probe, table = self._point(message, "probe"), message.header["table"]
        sample = MessageSamples(self.rows, message).outside(table, "class", None)
        correction = self._corrected(sample, probe, message.header["ridge"], None, CORRECTION_ROUNDS)
        rows = self.rows.of_test_samples(message, table)
        test = self.site.client.test
        calibration = AnswerCalibration.fit(logits_at(rows, probe + correction), test.y, test.subject)
        head = PrivateHead(correction.to(sample.x), calibration, None)
        self.store.keep(KEPT_HEAD, {"temperature": calibration.temperature}, head.tensors())
        return {}

    def kept_head(self, fit: str | None) -> PrivateHead | None:
        """The head of the latest fit, named after it; None where no heads were fitted."""
        kept = self.store.recall(KEPT_HEAD)
        if kept is None:
            return None
        scores, shares = kept.tensors.get("scores"), kept.tensors.get("shares")
        calibration = AnswerCalibration(kept.header["temperature"], scores, shares)
        return PrivateHead(kept.tensors["correction"], calibration, fit)

    def _curves(self, message: Message) -> dict[str, Tensor]:
        """Curves of the stack from held-out answers of the probe and, where there is one, the joint model."""
        probe, held = self._held_out(message, "class", "probe.")
        answers = [probe.log_softmax(1)]
        if message.header["joint"]:
            answers.append(joint_classes(self._held_out(message, "class", "joint.")[0], self.site.clients))
        return client_curves(torch.stack(answers), held.y, message.tensors["weights"].to(probe.device))

    def _held_out_rows(self, message: Message) -> dict[str, Tensor]:
        """The features of this site's held-out samples, one row each, for all sites to answer."""
        names, shape = message.header["features"], tuple(self.site.client.train.x.shape[1:])
        recipe = Recipe.of(self.rows.begun.header["recipe"])
        if own := [name for name in recipe.holding_samples(shape) if name in names]:
            raise FeddrmError(f"{own[0]} features contain these samples themselves: none leave this site")
        features, seen = self.rows.features, self._seen()
        return {f"{ROWS}{name}": features[name][seen] for name in names}

    def _answer_rows(self, message: Message) -> dict[str, Tensor]:
        """The classes that this site's heads give the rows of all sites; a row's fold is held out of its head."""
        table, samples = message.header["table"], MessageSamples(self.rows, message)
        columns = [message.tensors[f"shared/{feature}"] for feature in table.split("+")]
        rows, fold = scaler_of(message, table)(torch.cat(columns, dim=1)), message.tensors["shared/fold"]
        answers = torch.zeros(len(rows), dtype=torch.int64)
        for number in range(message.header["folds"]):
            probe, inside = self._point(message, str(number)), fold == number
            outside = samples.outside(table, "class", number)
            own = self._corrected(outside, probe, message.header["ridge"], number, FINE_ROUNDS)
            answers[inside] = logits_at(rows[inside].to(probe.device), probe + own).argmax(1).cpu()
        return {f"{ROWS}answers": answers}

    def _judge_rows(self, message: Message) -> dict[str, Tensor]:
        """Which of all sites' answers [n, m] about this site's held-out samples are right."""
        answers, y = message.tensors[f"{ROWS}answers"], self.rows.target("class")[self._seen()].cpu()
        if len(answers) != len(y):
            raise FeddrmError(f"{len(answers)} answers to {len(y)} held-out samples: let the server fit again")
        return {f"{ROWS}right": answers == y[:, None]}

    def _seen(self) -> Tensor:
        """Which samples some fold holds out."""
        return self.rows.part.to(self.rows.device) < self.rows.holdout.used

    def _corrected(self, sample: Sample, probe: Tensor, ridge: float, fold: int | None, rounds: int) -> Tensor:
        """The site's correction of the probe."""
        start = self.rows.begun.header
        used = sum(self.rows.holdout.remaining(size, fold) for size in start["sizes"]) * start["crops"]
        return own_correction(sample, probe, ridge, used, rounds)

    def _point(self, message: Message, key: str) -> Tensor:
        return message.tensors[f"point/{key}"].to(self.rows.device)

    def _inputs(self, message: Message) -> DecorrelatedInputs | None:
        """The inputs of a table that the strangeness is measured on."""
        if "inputs/matrix" not in message.tensors:
            return None
        places, matrix = message.tensors["inputs/places"], message.tensors["inputs/matrix"]
        return DecorrelatedInputs(places.to(self.rows.device), matrix.to(self.rows.device))

    def _held_out(self, message: Message, target: Target, prefix: str = "") -> tuple[Tensor, Sample]:
        """Logits of the held-out samples, each by the fit that did not see the sample, and these samples."""
        samples, logits, held = MessageSamples(self.rows, message), [], []
        for fold in range(message.header["folds"]):
            held.append(samples.inside(message.header["table"], target, fold))
            logits.append(logits_at(held[-1].x, self._point(message, f"{prefix}{fold}")))
        return torch.cat(logits), Sample(torch.cat([s.x for s in held]), torch.cat([s.y for s in held]))


def _named(key: str, message: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{key}/{name}": value for name, value in message.items()}
