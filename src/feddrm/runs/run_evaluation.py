"""The accuracies of a trained run, measured again on its test samples: after its last round, with several views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feddrm.data import Federation
from feddrm.engine import load_state
from feddrm.errors import FeddrmError
from feddrm.evaluation import answer_metrics, evaluate, own_answers
from feddrm.io.staging import Snapshot, read_whole
from feddrm.router import FittedRouter, evaluate_router
from feddrm.router.artifact import FIT, HEADS, MANIFEST, read_manifest
from feddrm.router.fit.local_cohort import facts_of
from feddrm.router.private_head import ClientParts
from feddrm.runs.client_predictions import all_predictions, pooled_test_set, training_kernels
from feddrm.runs.folder import RunFolder
from feddrm.runs.run_router import KINDS, load_run_federation, saved_config


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
    federation = federation if federation is not None else load_run_federation(folder, saved, data_dir)
    folder.refuse_other_data(federation, "give the data that it was trained on")
    if not folder.state_file.exists():
        raise FeddrmError(f"{folder.path} has no checkpoint to evaluate: train it again, into another folder")
    config = saved_config({**saved, "evaluation": {**saved["evaluation"], "views": views}}, federation, device)
    federation = federation.to(config.device)
    state = load_state(folder.state_file, config.device)
    net = config.build_net(federation).requires_grad_(False)
    test = pooled_test_set(config, federation, state.round)
    with training_kernels(config, net):
        predictions = all_predictions(config, net, state, test)
    figures = {"round": state.round, **evaluate(predictions, federation.weights, config.evaluation.ties)}
    if federation.task.classifies:
        answers = own_answers(predictions)
        figures["metrics"] = {"own": answer_metrics(answers, predictions.labels, predictions.origin, federation.names)}
    if Snapshot.of(folder.router).has(folder.router / MANIFEST):
        fitted = read_whole(folder.router, lambda now: _fitted_router(folder, federation, config.device, now))
        routed = evaluate_router(fitted, net, state.shared, test, predictions, federation.weights)
        if federation.task.classifies:
            figures["metrics"]["system"] = routed["metrics"]
            figures["label_sets"] = routed["router"]["label_sets"]
        figures |= {kind: {**figures[kind], **routed[kind]} for kind in KINDS if kind in routed}
    return figures


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
    return FittedRouter.load(folder.router, facts_of(federation), private, device)
