"""A trained run after its last round: its accuracies measured again, and a client's model without any router."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from feddrm.data import Federation
from feddrm.engine import State, load_state, require_gpu
from feddrm.errors import FeddrmError
from feddrm.evaluation import answer_metrics, evaluate, own_answers
from feddrm.io.staging import Snapshot, read_whole
from feddrm.models import Net
from feddrm.predictor.predictor import ANSWERS, Predictor, TrainedHead
from feddrm.registry import require_client
from feddrm.router import FittedRouter, Recipe, Router, RouterSettings
from feddrm.router.answer_calibration import AnswerCalibration
from feddrm.router.artifact import FIT, HEADS, read_manifest
from feddrm.router.evaluate import answers_left_out
from feddrm.router.fit.cohort import Facts
from feddrm.router.private_head import ClientParts
from feddrm.router.solver.problem import Scaler
from feddrm.runs.client_predictions import (
    all_outcomes,
    all_predictions,
    client_models,
    pooled_test_set,
    training_kernels,
)
from feddrm.runs.config import Config
from feddrm.runs.folder import RunFolder
from feddrm.runs.run_router import KINDS, load_run_federation, router_figures, saved_config

log = logging.getLogger("feddrm.runs")


def evaluate_run(
    folder: RunFolder,
    saved: Mapping[str, Any],
    federation: Federation | None = None,
    *,
    views: int = 1,
    device: str | None = None,
    data_dir: str | None = None,
) -> dict[str, Any]:
    """Accuracies and metrics of the latest checkpoint, and of the router where one is fitted. Nothing is written.

    ``saved`` is the content of ``config.yaml``, by which the federation is loaded again unless it is given. One view
    is what training evaluates: one random crop per sample where its settings say so.
    """
    require_gpu(device or "cpu")
    federation = federation if federation is not None else load_run_federation(folder, saved, data_dir)
    saved = {**saved, "evaluation": {**saved.get("evaluation", {}), "views": views}}
    config, state, net = _after_last_round(folder, saved, federation, device)
    federation = federation.to(config.device)
    test = pooled_test_set(config, federation, state.round)
    line = answers_left_out(Facts.of(federation), test, RouterSettings())
    with training_kernels(config, net):
        predictions = all_predictions(config, net, state, test) if line is None else None
        outcomes = predictions or all_outcomes(config, net, state, test, federation.weights)
    figures = {"round": state.round, **evaluate(outcomes, federation.weights, config.evaluation.ties)}
    if federation.task.classifies:
        answers = own_answers(outcomes)
        own = answer_metrics(answers, test.labels, test.origin, federation.names, test.subject)
        figures["metrics"] = {"own": own}
    if folder.has_router:
        fitted = read_whole(folder.router, lambda now: _fitted_router(folder, federation, config.device, now))
        routed = router_figures(config, net, state, federation, fitted, test, predictions)
        if line is not None:
            log.info(line)
        if federation.task.classifies:
            figures["metrics"]["system"] = routed["metrics"]
            if line is None:
                figures["label_sets"] = routed["router"]["label_sets"]
        figures |= {kind: {**figures[kind], **routed[kind]} for kind in KINDS if kind in routed}
    return figures


def checkpoint_predictor(
    folder: RunFolder, saved: Mapping[str, Any], federation: Federation | None, client: str, views: int
) -> Predictor:
    """A client's trained model, from the latest checkpoint. Its probabilities are not calibrated: a fit does that."""
    federation = federation if federation is not None else load_run_federation(folder, saved, None)
    require_client(client, federation.names)
    number = federation.names.index(client)
    config, state, net = _after_last_round(folder, saved, federation, "cpu")
    (leaves,) = client_models(config.method, state, [number])
    used = {leaf: leaves[leaf] for leaf, _ in net.named_parameters()}
    facts, view = Facts.of(federation), federation.clients[number].view
    # A router without features cannot tell clients apart. It knows the form of samples, and this client's scale.
    nothing = torch.zeros(0)
    router = Router(
        names=federation.names,
        recipe=Recipe(()),
        scaler=Scaler(nothing, nothing),
        weight=torch.zeros(len(federation), 0),
        bias=torch.zeros(len(federation)),
        log_prior=facts.log_prior,
        shape=facts.shape,
        input_mean=view.mean,
        input_std=view.std,
        columns=facts.columns,
        schema=facts.schema,
        query_views=facts.query_views,
    )
    head = TrainedHead(net, used, False, AnswerCalibration())
    taken = router.views(views)
    return Predictor(client, ANSWERS[0], federation.classes, router, head, True, taken, task=federation.task)


def _after_last_round(
    folder: RunFolder, saved: Mapping[str, Any], federation: Federation, device: str | None
) -> tuple[Config, State, Net]:
    """The run's configuration, its latest checkpoint and its network."""
    folder.refuse_other_data(federation, "give the data that it was trained on")
    if not folder.state_file.exists():
        raise FeddrmError(f"{folder.path} has no checkpoint to evaluate: train it again, into another folder")
    config = saved_config(saved, federation, device)
    state = load_state(folder.state_file, config.device)
    return config, state, config.build_net(federation.to(config.device)).requires_grad_(False)


def _fitted_router(folder: RunFolder, federation: Federation, device: str, now: Snapshot) -> FittedRouter:
    """The router and the heads of an earlier fit, with every client's private correction."""
    manifest = read_manifest(folder.router)
    if tuple(manifest["clients"]) != federation.names:
        raise FeddrmError(f"{folder.router} has other clients than the run: fit it again ('feddrm fit-router')")
    private = {}
    if HEADS in manifest["files"]:
        fit, again = manifest["notes"].get(FIT), "fit the router again ('feddrm fit-router')"
        for name in federation.names:
            head = ClientParts(folder.client(name), folder, manifest, now, again).head(fit, again)
            if head is None:
                raise FeddrmError(f"{folder.path} has no refitted head of client '{name}' (head.safetensors): {again}")
            private[name] = head.correction
    return FittedRouter.load(folder.router, Facts.of(federation), private, device)
