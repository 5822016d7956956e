"""Answers without a server: every query is routed, and the chosen clients of a run folder are asked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddrm.engine import CPU_QUERIES
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.run_files import RunFiles
from feddrm.io.staging import Snapshot
from feddrm.predictor.predictor import Predictor, class_names, named_sets, private_slots
from feddrm.predictor.query_files import check_pixels
from feddrm.registry import check_choice, require_client
from feddrm.router import Decision, Router, load_router, read_manifest
from feddrm.router.artifact import manifest_task
from feddrm.router.label_sets import ROUNDING, SHARE, check_label_miss, clients_for_sets, mixed_p_values, within_set
from feddrm.router.policy import consult as mixture
from feddrm.tasks import CLASSIFICATION, Survival, Task, require_classes
from feddrm.typed_settings import typed_arguments

ABSTAIN = ("mark", "answer")


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers to N queries.

    ``client_probability`` [N] says how sure the router is of the client, ``label_probability`` [N] how sure the
    clients that answered are of the label. ``client`` is the best client, ``answered`` has all that were asked, the
    best one first. A query from which the router abstains has no label (None), nobody answers it, and its class
    probabilities are not numbers (nan), unless ``abstain="answer"`` asked for them. Without routing, ``decision`` is
    None and ``client_probability`` is nan. ``label_sets`` has the classes that each query may have, if sets were
    requested; None where the router abstains, and where too much of its probability is with clients that are away.

    Answers about survival have no labels. Their ``classes`` are intervals, and their ``probabilities`` are those to
    be free of the event at the end of each; ``risk`` [N] orders the queries.
    """

    classes: tuple[str, ...]
    labels: tuple[str | None, ...]
    label_probability: Tensor
    probabilities: Tensor  # [N, classes]
    client: tuple[str | None, ...]
    client_probability: Tensor
    answered: tuple[tuple[str, ...], ...]
    decision: Decision | None
    label_sets: tuple[tuple[str, ...] | None, ...] | None = None
    task: Task = CLASSIFICATION

    @property
    def risk(self) -> Tensor:
        """Minus the expected number of intervals that are survived; of survival only."""
        if not isinstance(self.task, Survival):
            raise FeddrmError(f"the task is {self.task.name}, which has no risks: look at labels and probabilities")
        return self.task.risk(self.probabilities)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        given, what = sum(map(bool, self.answered)), "labels" if self.task.classifies else "curves"
        noun = "classes" if self.task.classifies else "intervals"
        return f"Answers({given} {what} for {len(self)} queries, {len(self.classes)} {noun})"

    def as_dicts(self, queries: Sequence[str]) -> list[dict[str, Any]]:
        """Plain values for JSON, one dictionary per query, under the names of the gateway's answers."""
        decision = self.decision
        right = None if decision is None or decision.right is None else decision.right_probability.tolist()
        # Lists: one element of a tensor takes as long as hundreds of a list.
        abstain = [False] * len(self) if decision is None else decision.abstain.tolist()
        client_probability, probabilities = _numbers(self.client_probability), self.probabilities.tolist()
        said = self._said()
        return [
            {
                "query": query,
                **{name: values[i] for name, values in said.items()},
                "client": self.client[i],
                "client_probability": client_probability[i],
                "answered": list(self.answered[i]),
                "abstain": abstain[i],
                "reason": "" if decision is None else decision.reason[i],
                **({} if right is None else {"right_probability": right[i]}),
                **({} if self.label_sets is None else {"label_set": _listed(self.label_sets[i])}),
                "flags": [flag.as_flag() for flag in decision.flags[i]]
                if decision is not None and decision.flags
                else [],
                self._curve: dict(zip(self._names, probabilities[i], strict=True)) if self.answered[i] else None,
            }
            for i, query in enumerate(queries)
        ]

    @property
    def _curve(self) -> str:
        """The name of the probabilities."""
        return "probabilities" if self.task.classifies else "survival"

    @property
    def _names(self) -> tuple[str, ...]:
        """What each probability belongs to: a class, or an interval's last day."""
        return tuple(map(str, self.task.edges)) if isinstance(self.task, Survival) else self.classes

    def _said(self) -> dict[str, Sequence[Any]]:
        """The answers to all queries: labels and their probabilities, or risks."""
        if not self.task.classifies:
            return {"risk": _numbers(self.risk)}
        return {"label": self.labels, "label_probability": _numbers(self.label_probability)}

    def csv_table(self, queries: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
        """Header and rows: the fields of :meth:`as_dicts`, then every probability."""
        entries = self.as_dicts(queries)
        header = [name for name in (entries[0] if entries else ()) if name not in ("flags", self._curve)]
        rows = []
        for entry in entries:
            sets = {name: ",".join(entry[name]) for name in ("answered", "label_set") if entry.get(name) is not None}
            cells = entry | sets
            given = entry[self._curve] or {}
            rows.append([*(cells[name] for name in header), *(given.get(name) for name in self._names)])
        what = "probability of" if self.task.classifies else "survival to day"
        return [*header, *(f"{what} {name}" for name in self._names)], rows


@typed_arguments
def answer_queries(  # noqa: PLR0913 (the options of a public method)
    run: RunFiles,
    x: Tensor | NDArray[Any] | Sequence[Any],
    *,
    client: str | None = None,
    consult: int = 1,
    abstain: str = "mark",
    answer: str = "trained",
    views: int = 1,
    label_miss: float | None = None,
    **routing: Any,
) -> Answers:
    """Route raw samples or network inputs [N, ...], and ask the ``consult`` best clients of each.

    ``client`` names one client to ask about all samples, without routing. ``answer`` is ``trained`` or ``refit``, as
    for :meth:`Predictor.load`. Features and answers are averaged over so many ``views`` of a sample. ``label_miss``
    requests label sets that miss the label with this probability (:mod:`feddrm.router.label_sets`); they ask as many
    clients as hold 95 % of the router's probability. ``routing`` has the options of
    :meth:`feddrm.router.Router.route`.
    """
    check_choice("abstain", abstain, ABSTAIN)
    if label_miss is not None:
        check_label_miss(label_miss, routing.get("rule") or "density")
    before = Snapshot.of(run.router)
    router, task = load_router(run.router), manifest_task(read_manifest(run.router))
    if label_miss is not None:
        require_classes(task, "a label set", "leave out label_miss")
    samples = router.samples(x).detach().cpu()
    check_pixels(samples, router.input_mean, "queries")
    number = len(samples)
    if client is None:
        decision = router.route(samples, views=views, **routing)
        chosen = _best_clients(router, decision, consult, routing.get("available"), label_miss is not None)
        asked = decision.client >= 0
        if abstain == "mark":
            asked &= ~decision.abstain
        best = [None if place < 0 else router.names[place] for place in decision.client.tolist()]
        client_probability = decision.probabilities.gather(1, chosen.number[:, :1])[:, 0].double()
        sure = chosen.sets & ~decision.abstain
    else:
        _check_client(router, client, consult, routing)
        decision, best = None, [client] * number
        chosen = _Chosen.alone(router.names.index(client), number)
        asked, client_probability = torch.ones(number, dtype=torch.bool), torch.full((number,), math.nan).double()
        sure = asked
    classes = class_names(run.path, int(read_manifest(run.router)["classes"]))
    probabilities = torch.full((number, len(classes)), math.nan, dtype=torch.float64)
    p_values = torch.zeros_like(probabilities)
    options = {"answer": answer, "views": views}
    probabilities[asked], p_values[asked] = _ask(
        run, router, options, samples[asked], chosen[asked], label_miss is not None
    )
    if Snapshot.of(run.router) != before:  # clients may have been asked under two routers
        raise FeddrmError(f"the router of {run.path} was replaced meanwhile: ask again")
    top, label = probabilities.max(1)
    labelled = asked & task.classifies
    return Answers(
        classes,
        tuple(classes[k] if given else None for k, given in zip(label.tolist(), labelled.tolist(), strict=True)),
        top.masked_fill(~labelled, math.nan),
        probabilities,
        tuple(best),
        client_probability,
        tuple(
            tuple(router.names[i] for i, place in zip(row, places, strict=True) if place)
            for row, places in zip(chosen.number.tolist(), (chosen.asked & asked[:, None]).tolist(), strict=True)
        ),
        decision,
        None if label_miss is None else _sets(within_set(p_values, label_miss), sure, classes),
        task,
    )


def answers_of(predictor: Predictor, x: Tensor | NDArray[Any] | Sequence[Any]) -> Answers:
    """The answers of one client to all samples, without routing."""
    samples = predictor.router.samples(x).detach().cpu()
    check_pixels(samples, predictor.router.input_mean, "queries")
    starts = range(0, max(1, len(samples)), CPU_QUERIES)  # of no samples, too, the answer has its form
    parts = [predictor([("inputs", samples[i : i + CPU_QUERIES].numpy())])[0] for i in starts]
    probabilities = torch.from_numpy(np.concatenate(parts))
    number, task = len(probabilities), predictor.task
    top, label = probabilities.max(1)
    unknown = torch.full((number,), math.nan, dtype=torch.float64)
    return Answers(
        predictor.classes,
        tuple(predictor.classes[k] if task.classifies else None for k in label.tolist()),
        top if task.classifies else unknown,
        probabilities,
        (predictor.name,) * number,
        unknown,
        ((predictor.name,),) * number,
        None,
        task=task,
    )


@dataclass(frozen=True, eq=False)
class _Chosen:
    """The clients of N queries, best first: which are asked, and the logarithms of their weights.

    ``sets`` says where they hold enough of the router's probability for a label set.
    """

    number: Tensor  # [N, k]
    asked: Tensor  # [N, k]
    log_weights: Tensor  # [N, k], minus infinity for those that are not asked
    sets: Tensor  # [N]

    @classmethod
    def alone(cls, client: int, queries: int) -> _Chosen:
        number, everywhere = torch.full((queries, 1), client), torch.ones(queries, 1, dtype=torch.bool)
        return cls(number, everywhere, torch.zeros_like(number, dtype=torch.float64), everywhere[:, 0])

    def __getitem__(self, rows: Tensor) -> _Chosen:
        return _Chosen(self.number[rows], self.asked[rows], self.log_weights[rows], self.sets[rows])


def _best_clients(
    router: Router, decision: Decision, consult: int, available: Sequence[str] | Tensor | None, sets: bool
) -> _Chosen:
    """The best available clients: ``consult`` of them and, for label sets, as many as hold enough probability."""
    if not 1 <= consult <= router.clients:
        raise SettingError(f"consult {consult} of {router.clients} clients: give 1 to {router.clients}")
    names = router.names if available is None else available
    mask = names if isinstance(names, Tensor) else torch.tensor([name in names for name in router.names])
    most = router.clients if sets else consult
    top = decision.probabilities.double().masked_fill(~mask, -1).topk(max(1, min(most, int(mask.sum()))))
    weights = top.values.clamp_min(0)
    enough = weights.sum(1) >= SHARE - ROUNDING
    # Without enough probability a set is not given, and asks nobody besides those to consult.
    asked = torch.arange(weights.shape[1]) < consult
    asked = torch.where(enough[:, None], clients_for_sets(weights, consult), asked)
    # Clients so unlikely that all weights are zero are mixed equally.
    weights = torch.where(weights.sum(1, keepdim=True) > 0, weights, torch.ones_like(weights))
    return _Chosen(top.indices, asked, weights.log().masked_fill(~asked, -math.inf).log_softmax(1), enough)


def _sets(within: Tensor, sure: Tensor, classes: Sequence[str]) -> tuple[tuple[str, ...] | None, ...]:
    """The label sets by name; None where none is given."""
    pairs = zip(named_sets(within, classes), sure.tolist(), strict=True)
    return tuple(tuple(names) if given else None for names, given in pairs)


def _check_client(router: Router, client: str, consult: int, routing: dict[str, Any]) -> None:
    require_client(client, router.names)
    given = ["consult"] * (consult != 1) + [name for name, value in routing.items() if value is not None]
    if given:
        raise SettingError(f"client '{client}' is asked alone, without the router: leave out {' and '.join(given)}")


def _ask(
    run: RunFiles, router: Router, options: Mapping[str, Any], x: Tensor, chosen: _Chosen, sets: bool
) -> tuple[Tensor, Tensor]:
    """Class probabilities [n, K]: the mixture of the answers of every sample's ``chosen`` clients; and p-values.

    ``options`` are those of :meth:`Predictor.load`. P-values are zero unless label ``sets`` need them.
    """
    classes = int(read_manifest(run.router)["classes"])
    answers = torch.zeros(*chosen.number.T.shape, classes, dtype=torch.float64)
    p_values = torch.zeros_like(answers)
    for number in sorted(set(chosen.number[chosen.asked].tolist())):
        predictor = _load_predictor(run, router.names[number], options)
        places = ((chosen.number == number) & chosen.asked).nonzero()  # pairs of sample and rank
        for part in places.split(CPU_QUERIES):
            sample, rank = part.T
            (own,) = predictor([("inputs", x[sample].numpy())])
            answers[rank, sample] = torch.from_numpy(own)
            if sets:
                p_values[rank, sample] = torch.from_numpy(predictor.p_values(own))
    mixed = mixture(chosen.log_weights, answers.log()).exp()
    return mixed, mixed_p_values(chosen.log_weights, answers, p_values)


def _load_predictor(run: RunFiles, client: str, options: Mapping[str, Any]) -> Predictor:
    files = run.client(client)
    if private_slots(files, run, Snapshot.of(run.router)) is None:
        raise FeddrmError(
            f"{run.path} has no private part of client '{client}' ({files.private_file}): ask that client through a "
            "gateway ('feddrm query'), or one whose private part is here (--client NAME)"
        )
    return Predictor.load(files.path, run.path, **options)


def _listed(label_set: tuple[str, ...] | None) -> list[str] | None:
    return None if label_set is None else list(label_set)


def _numbers(values: Tensor) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
