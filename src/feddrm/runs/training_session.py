"""The training session: it plays the rounds, evaluates them, and writes metrics, checkpoints and the summary."""

from __future__ import annotations

import datetime
import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from feddrm.data import Federation, Participant, Pool
from feddrm.data.summary import dataset_summary
from feddrm.engine import RoundResult, RoundSchedule, State, arithmetic, engine_for, federate, first_state, functional
from feddrm.engine.private_shards import PrivateShards
from feddrm.engine.rounds import check_mask, is_untested
from feddrm.errors import DivergedError
from feddrm.evaluation import (
    LASTING,
    AnswersBySample,
    Predictions,
    Replay,
    answer_metrics,
    class_confusion,
    collapse_summary,
    collapsed_share,
    confusion,
    confusion_as_plain,
    evaluate,
    evaluate_participants,
    is_collapsed,
    own_answers,
    per_client,
    pooled_subjects,
    summarise,
    votes,
)
from feddrm.io.shards import SHARD_SIZE
from feddrm.runs.client_predictions import all_outcomes, all_predictions, participant_predictions, pooled_test_set
from feddrm.runs.config import Config
from feddrm.runs.environment import hardware, versions
from feddrm.runs.folder import RunFolder
from feddrm.runs.listeners import OnRound

PARTICIPANTS = "participants"  # the figures of a line of metrics that are of a round's participants alone
log = logging.getLogger("feddrm.runs")
CHECKPOINT_SECONDS = 20.0  # between two checkpoints: what a crash may cost
CHECKPOINT_SHARE = 0.05  # of the time at most: where a checkpoint is hundreds of megabytes, a crash may cost more


class TrainingSession:
    """One training, from its first round or a checkpoint to the summary; samples and network are on its device."""

    def __init__(self, config: Config, federation: Federation, folder: RunFolder) -> None:
        self.config, self.federation, self.folder = config, federation.to(config.device), folder
        self.net = config.build_net(federation)
        self.on_gpu = torch.device(config.device).type == "cuda"
        self.test_pool = Pool.of(self.federation, "test") if self.on_gpu else None
        self.replay = Replay() if engine_for(config.engine, config.device) == "graph" else None
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self.seconds = {"train": 0.0, "evaluate": 0.0}
        self.next_save = time.monotonic() + CHECKPOINT_SECONDS
        self.collapsed_in_a_row = 0

    def train(self, state: State | None, listeners: Sequence[OnRound]) -> None:
        """Train from ``state``, or from the start, to the last round and finish the run."""
        config, rounds = self.config, self.config.plan.rounds
        self.seconds |= self.folder.read_json(self.folder.seconds_file) or {}
        state = self.start() if state is None else state
        outcomes = None
        began = time.perf_counter()
        try:
            for result in federate(
                RoundSchedule(config.method, config.plan, len(self.federation)),
                functional(self.net, arithmetic(config.precision, config.device)),
                self.federation,
                state,
                workers=config.threads,
                engine=config.engine,
            ):
                self.seconds["train"] += time.perf_counter() - began
                if self.diverged(result):
                    elsewhere = ", and choose another --out" if state.round else ""
                    raise DivergedError(
                        f"the loss is not finite after round {result.state.round}: lower --lr (it is "
                        f"{config.plan.lr:g}) or scale the data{elsewhere}"
                    )
                outcomes, metrics = self.measure(result)
                state = result.state  # only now: Ctrl-C saves it, and a saved round is never evaluated again
                if time.monotonic() > self.next_save:
                    self.save(state)
                for listen in listeners:
                    listen(result, metrics, rounds)
                began = time.perf_counter()
        except (KeyboardInterrupt, DivergedError):
            self.save(state)  # whole rounds only: the round that was cut short is trained again
            raise
        self.save(state)
        self.finish(state, outcomes)

    def start(self) -> State:
        """The state before round 1. The private slots of a large federation lie on disk."""
        dataset_summary(self.federation).write(self.folder.path)
        leaves, clients = {leaf: value.detach() for leaf, value in self.net.named_parameters()}, len(self.federation)
        state = first_state(self.config.method, leaves, clients)
        if is_untested(self.config.method):
            forward = functional(self.net, arithmetic(self.config.precision, self.config.device))
            schedule = RoundSchedule(self.config.method, self.config.plan, clients)
            check_mask(schedule, forward, Participant.of(self.federation, 0), state)
        if clients <= SHARD_SIZE:
            return state
        shards = PrivateShards.start(self.folder.state_shards, state.private[0], clients, self.config.device)
        return state._replace(private=shards)

    def measure(self, result: RoundResult) -> tuple[AnswersBySample | None, dict[str, Any] | None]:
        """Evaluate a round, or its participants, and write the line of metrics; None for what is not due."""
        evaluation, outcomes, metrics = self.config.evaluation, None, None
        if evaluation.due(result.state.round, self.config.plan.rounds):
            outcomes, metrics = self.evaluate(result)
            self.warn_of_collapse(metrics)
        elif evaluation.participants and result.answered:
            metrics = self.evaluate_participants(result)
        if metrics is not None:
            self.folder.add_metrics(metrics)
        return outcomes, metrics

    def diverged(self, result: RoundResult) -> bool:
        """Whether the loss or, after the last round, a parameter is not finite."""
        if result.loss is not None and not math.isfinite(result.loss):
            return True
        if result.state.round < self.config.plan.rounds:
            return False  # the loss of the next round will show it
        parts = [result.state.shared, *(leaves for slots in result.state.private for leaves in slots.values())]
        finite = ([value.isfinite().all() for value in leaves.values()] for leaves in parts if leaves)
        return not all(bool(torch.stack(values).all()) for values in finite)  # each bool waits for a GPU

    def save(self, state: State) -> None:
        """Write a checkpoint, unless no round is done, and decide when the next one is due."""
        if not state.round:
            return
        began = time.monotonic()
        self.folder.save(state)
        self.folder.write_json(self.folder.seconds_file, self.seconds)
        ended = time.monotonic()
        self.next_save = ended + max(CHECKPOINT_SECONDS, (ended - began) / CHECKPOINT_SHARE)

    def predictions(self, state: State) -> Predictions:
        """The predictions of every client's model for the pooled test set after this round."""
        test = pooled_test_set(self.config, self.federation, state.round, self.test_pool)
        return all_predictions(self.config, self.net, state, test, self.replay)

    def outcomes(self, state: State) -> AnswersBySample:
        """What the figures need of these predictions."""
        test = pooled_test_set(self.config, self.federation, state.round, self.test_pool)
        return all_outcomes(self.config, self.net, state, test, self.federation.weights, self.replay)

    def evaluate(
        self, result: RoundResult, predictions: Predictions | None = None
    ) -> tuple[AnswersBySample, dict[str, Any]]:
        """The outcomes after a round and its line of ``metrics.jsonl``."""
        began, weights = time.perf_counter(), self.federation.weights
        outcomes = self.outcomes(result.state) if predictions is None else AnswersBySample.of(predictions, weights)
        accuracies = evaluate(outcomes, weights, self.config.evaluation.ties)
        self.seconds["evaluate"] += time.perf_counter() - began
        collapsed = {"collapsed_share": collapsed_share(outcomes)} if outcomes.task.classifies else {}
        return outcomes, {**self.training_figures(result), **accuracies, **collapsed}

    def evaluate_participants(self, result: RoundResult) -> dict[str, Any]:
        """The line of ``metrics.jsonl`` of a round whose participants alone are evaluated."""
        began, who = time.perf_counter(), result.answered
        test = pooled_test_set(self.config, self.federation, result.state.round, self.test_pool, who)
        predictions = participant_predictions(self.config, self.net, result.state, test, who)
        figures = evaluate_participants(predictions, who, self.federation.weights)
        self.seconds["evaluate"] += time.perf_counter() - began
        return {**self.training_figures(result), PARTICIPANTS: figures}

    def training_figures(self, result: RoundResult) -> dict[str, Any]:
        """What a line of ``metrics.jsonl`` begins with."""
        names = self.federation.names
        return {
            "round": result.state.round,
            "stage": result.stage.name,
            "lr": result.lr,
            "loss": result.loss,
            "answered": [names[i] for i in result.answered],
            **result.state.communication.totals(result.state.round),
        }

    def warn_of_collapse(self, metrics: Mapping[str, Any]) -> None:
        """Say that training has collapsed, once it lasts."""
        self.collapsed_in_a_row = self.collapsed_in_a_row + 1 if is_collapsed(metrics) else 0
        if self.collapsed_in_a_row == LASTING:
            log.warning(
                "round %d: for %.0f %% of the samples the client's model gives one answer to all queries: "
                "lower --lr (it is %g), or try --clip 1 or --warmup",
                metrics["round"], 100 * metrics["collapsed_share"], self.config.plan.lr,
            )  # fmt: skip

    def finish(self, state: State, outcomes: AnswersBySample | None) -> None:
        """Write the last round in detail, the shared and the private leaves, and last of all the summary."""
        weights, names = self.federation.weights, self.federation.names
        outcomes = outcomes or self.outcomes(state)
        routes = {
            name: confusion_as_plain(confusion(chosen, outcomes.origin, len(names)))
            for name, chosen in outcomes.routes.items()
        }
        rows = per_client(outcomes, names, weights, self.config.evaluation.ties)
        for row, client in zip(rows, self.federation.clients, strict=True):
            row["train"] = len(client.train)
        detail = {"round": state.round, "per_client": rows, "confusion": routes}
        metrics = {}
        if outcomes.task.classifies:
            answers, labels = own_answers(outcomes), outcomes.labels
            detail["votes"] = votes(outcomes)
            detail["class_confusion"] = {"own": class_confusion(answers.argmax(-1), labels, answers.shape[1]).tolist()}
            own = answer_metrics(answers, labels, outcomes.origin, names, pooled_subjects(self.federation))
            metrics = {"metrics": {"own": own}}
        self.folder.write_json(self.folder.evaluation_file, detail)
        self.folder.publish(state.shared, names, state.private)
        self.folder.write_json(self.folder.summary_file, {**self.summary(state), **metrics})

    def summary(self, state: State) -> dict[str, Any]:
        """The content of ``summary.json``."""
        evaluated = [entry for entry in self.folder.metrics() if PARTICIPANTS not in entry]
        entries = evaluated[-self.config.evaluation.window :]
        # Models before and after tuning differ, so the means are over one stage only.
        entries = [entry for entry in entries if entry["stage"] == entries[-1]["stage"]]
        accuracies = [{k: e[k] for k in e if k.endswith(("_accuracy", "_c_index"))} for e in entries]
        return {
            **summarise(accuracies),
            "window": len(entries),
            "rounds": state.round,
            **collapse_summary(evaluated),
            **state.communication.summary(state.round),
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
            **({"peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30} if self.on_gpu else {}),
            "hardware": hardware(self.config.device),
            "versions": versions(),
            "date": datetime.date.today().isoformat(),
        }
