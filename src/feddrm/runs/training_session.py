"""The training session: it plays the rounds, evaluates them, and writes metrics, checkpoints and the summary."""

from __future__ import annotations

import datetime
import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from feddrm.data import Federation, Pool
from feddrm.data.summary import DatasetSummary
from feddrm.engine import RoundResult, RoundSchedule, State, arithmetic, engine_for, federate, first_state, functional
from feddrm.errors import FeddrmError
from feddrm.evaluation import (
    LASTING,
    Predictions,
    Replay,
    answer_metrics,
    class_confusion,
    collapse_summary,
    collapsed_share,
    confusion,
    evaluate,
    head_routes,
    is_collapsed,
    own_answers,
    per_client,
    summarise,
    votes,
)
from feddrm.runs.client_predictions import all_predictions, pooled_test_set
from feddrm.runs.config import Config
from feddrm.runs.environment import hardware, versions
from feddrm.runs.folder import RunFolder
from feddrm.runs.listeners import OnRound

log = logging.getLogger("feddrm.runs")
CHECKPOINT_SECONDS = 20.0  # between two checkpoints: what a crash may cost
CHECKPOINT_SHARE = 0.05  # of the time at most: where a checkpoint is hundreds of megabytes, a crash may cost more


class TrainingSession:
    """One training, from its first round or a checkpoint to the summary."""

    def __init__(self, config: Config, federation: Federation, folder: RunFolder) -> None:
        self.config, self.federation, self.folder = config, federation, folder
        self.net = config.build_net(federation)
        self.on_gpu = torch.device(config.device).type == "cuda"
        self.test_pool = Pool.of(federation, "test") if self.on_gpu else None
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
        if state is None:
            self.begin()
            leaves = {leaf: value.detach() for leaf, value in self.net.named_parameters()}
            state = first_state(config.method, leaves, len(self.federation))
        predictions = None
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
                    self.save(state)
                    elsewhere = ", and choose another --out" if state.round else ""
                    raise FeddrmError(
                        f"the loss is not finite after round {result.state.round}: lower --lr (it is "
                        f"{config.plan.lr:g}) or scale the data{elsewhere}"
                    )
                metrics = None
                if config.evaluation.due(result.state.round, rounds):
                    predictions, metrics = self.evaluate(result)
                    self.folder.add_metrics(metrics)
                    self.warn_of_collapse(metrics)
                state = result.state  # only now: Ctrl-C saves it, and a saved round is never evaluated again
                if time.monotonic() > self.next_save:
                    self.save(state)
                for listen in listeners:
                    listen(result, metrics, rounds)
                began = time.perf_counter()
        except KeyboardInterrupt:
            self.save(state)  # whole rounds only: the round that was cut short is trained again
            raise
        self.save(state)
        self.finish(state, predictions)

    def begin(self) -> None:
        """Write the dataset summary."""
        DatasetSummary.of(self.federation).write(self.folder.path)

    def diverged(self, result: RoundResult) -> bool:
        """Whether the loss or, after the last round, a parameter is not finite."""
        if result.loss is not None and not math.isfinite(result.loss):
            return True
        if result.state.round < self.config.plan.rounds:
            return False  # the loss of the next round will show it
        parts = [result.state.shared, *(leaves for slots in result.state.private for leaves in slots.values())]
        return not all(bool(value.isfinite().all()) for leaves in parts for value in leaves.values())

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

    def evaluate(self, result: RoundResult) -> tuple[Predictions, dict[str, Any]]:
        """The predictions after a round and its line of ``metrics.jsonl``."""
        began = time.perf_counter()
        predictions = self.predictions(result.state)
        accuracies = evaluate(predictions, self.federation.weights, self.config.evaluation.ties)
        self.seconds["evaluate"] += time.perf_counter() - began
        names = self.federation.names
        return predictions, {
            "round": result.state.round,
            "stage": "tune" if result.stage.tuning else "train",
            "lr": result.lr,
            "loss": result.loss,
            "answered": [names[i] for i in result.answered],
            **accuracies,
            **({"collapsed_share": collapsed_share(predictions)} if predictions.task.classifies else {}),
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

    def finish(self, state: State, predictions: Predictions | None) -> None:
        """Write the last round in detail, the shared and the private leaves, and last of all the summary."""
        weights, names = self.federation.weights, self.federation.names
        predictions = predictions or self.predictions(state)
        routes = {
            name: confusion(chosen, predictions.origin, len(names)).tolist()
            for name, chosen in head_routes(predictions, weights).items()
        }
        rows = per_client(predictions, names, weights, self.config.evaluation.ties)
        for row, client in zip(rows, self.federation.clients, strict=True):
            row["train"] = len(client.train)
        detail = {"round": state.round, "per_client": rows, "confusion": routes}
        metrics = {}
        if predictions.task.classifies:
            answers, labels = own_answers(predictions), predictions.labels
            detail["votes"] = votes(predictions)
            detail["class_confusion"] = {"own": class_confusion(answers.argmax(-1), labels, answers.shape[1]).tolist()}
            metrics = {"metrics": {"own": answer_metrics(answers, labels, predictions.origin, names)}}
        self.folder.write_json(self.folder.evaluation_file, detail)
        self.folder.publish(state.shared, dict(zip(names, state.private, strict=True)))
        self.folder.write_json(self.folder.summary_file, {**self.summary(state), **metrics})

    def summary(self, state: State) -> dict[str, Any]:
        """The content of ``summary.json``."""
        window = self.config.evaluation.window
        evaluated = self.folder.metrics()
        entries = evaluated[-window:]
        # Models before and after tuning differ, so the means are over one stage only.
        entries = [entry for entry in entries if entry["stage"] == entries[-1]["stage"]]
        accuracies = [{k: e[k] for k in e if k.endswith(("_accuracy", "_c_index"))} for e in entries]
        return {
            **summarise(accuracies, window),
            "window": len(entries),
            "rounds": state.round,
            **collapse_summary(evaluated),
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
            **({"peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30} if self.on_gpu else {}),
            "hardware": hardware(self.config.device),
            "versions": versions(),
            "date": datetime.date.today().isoformat(),
        }
