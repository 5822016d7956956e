"""``feddrm.fit``: from a federation of frozen features to a run folder, without rounds."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from feddrm.data import Federation
from feddrm.data.summary import dataset_summary
from feddrm.engine import RoundResult, State, require_gpu
from feddrm.errors import FeddrmError, SettingError
from feddrm.methods import ClosedFormMethod, Method, Stage
from feddrm.models import Model, is_trunk
from feddrm.router import RouterSettings
from feddrm.router.evaluate import answers_left_out
from feddrm.router.fit.cohort import Trunk
from feddrm.router.fit.fit_closed_form import ClosedFormFit, fit_closed_form
from feddrm.router.fit.local_cohort import LocalCohort
from feddrm.runs.client_predictions import pooled_test_set
from feddrm.runs.config import as_method, resolve
from feddrm.runs.folder import RunFolder
from feddrm.runs.run import Run
from feddrm.runs.run_router import router_figures, with_left_out, write_router
from feddrm.runs.train import load_data
from feddrm.runs.training_session import TrainingSession
from feddrm.threads import router_kernels
from feddrm.typed_settings import typed_arguments

log = logging.getLogger("feddrm.runs")
FEWEST = 2  # training samples: the sums of one sample are the sample itself


@typed_arguments
def fit(
    data: str | Federation,
    method: str | Method = "fed3r",
    *,
    out: str | Path,
    model: str | Model | Mapping[str, Any] | None = None,
    data_settings: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Fit router and heads on frozen features in closed form, into the folder ``out``; a finished fit there is kept.

    ``method`` is ``fed3r`` or ``fedlda``, ``model`` is ``identity`` (the samples are features) or ``onnx``. Of the
    ``settings`` of :func:`feddrm.train`, only ``seed``, ``evaluation`` and ``device`` have an effect.

    Example:
        >>> embeddings, labels = np.random.default_rng(0).normal(size=(60, 8)), np.arange(60) % 2
        >>> data = {"oslo": (embeddings, labels), "lima": (embeddings + 1, labels)}
        >>> run = feddrm.fit(feddrm.Federation.from_arrays(data), out="runs/frozen")
        >>> run.predict(embeddings[:2])
        Answers(2 labels for 2 queries, 2 classes)
    """
    method = as_method(method)
    if not method.closed_form:
        raise SettingError(
            f"method '{method.name}' has rounds: train it with 'feddrm train' (feddrm.train), or fit fed3r or fedlda"
        )
    require_gpu(str(settings.get("device", "cpu")))
    federation, reload_settings = load_data(data, data_settings)
    config = resolve(federation, data=reload_settings, method=method, model=model, **{"rounds": 0, **settings})
    check_sizes(federation)
    folder = RunFolder(out)
    session = TrainingSession(config, federation, folder)
    with folder.exclusive() as used_before:
        if "router" in (folder.summary() or {}):
            folder.open(config, federation, used_before)  # refuses other settings and other data
        else:
            with router_kernels(int(federation.sizes.sum())):
                began = time.perf_counter()
                result = _fit(session)
                session.seconds["train"] = time.perf_counter() - began
                _write(session, result, used_before)
        return replace(Run.open(out), federation=federation)


def check_sizes(federation: Federation) -> None:
    """Refuse a client whose sums would give its samples away."""
    for client in federation.clients:
        if len(client.train) < FEWEST:
            raise FeddrmError(
                f"client '{client.name}' has {len(client.train)} training sample, which its sums would give away: give "
                f"it at least {FEWEST}, or leave the client out"
            )


def _fit(session: TrainingSession) -> ClosedFormFit:
    config, federation = session.config, session.federation
    assert isinstance(config.method, ClosedFormMethod)
    net = session.net.requires_grad_(False)
    trunk = Trunk(net, {leaf: value.detach() for leaf, value in net.named_parameters() if is_trunk(leaf)})
    cohort = LocalCohort(federation, RouterSettings(seed=config.plan.seed))
    result = fit_closed_form(cohort, trunk, config.method)  # refuses values that are not finite
    if (far := federation.far_warning()) is not None:
        log.warning("%s", far)
    for line in result.warnings:
        log.warning("%s: %s", federation.name, line)
    return result


def _write(session: TrainingSession, result: ClosedFormFit, used_before: bool) -> None:
    """Evaluate, then write everything. The figures of the router come last: a fit that has them is finished."""
    config, federation, folder = session.config, session.federation, session.folder
    state = State(0, result.shared, tuple({"model": dict(result.private[name])} for name in federation.names))
    answered = tuple(range(len(federation)))
    test = pooled_test_set(config, federation, state.round)
    line = answers_left_out(result.fitted.facts, test, RouterSettings())
    predictions = session.predictions(state) if line is None else None
    result_of_fit = RoundResult(state, Stage(config.plan.local_steps), 0.0, None, answered)
    outcomes, metrics = session.evaluate(result_of_fit, predictions)
    fitted = result.fitted
    if line is not None:
        log.info(line)
        fitted = with_left_out(fitted, line)
    figures = router_figures(config, session.net, state, federation, fitted, test, predictions)
    folder.open(config, federation, used_before)
    for file in (folder.summary_file, folder.metrics_file):
        file.unlink(missing_ok=True)  # of a fit that was cut off
    dataset_summary(federation).write(folder.path)
    folder.save(state)
    folder.write_json(folder.seconds_file, session.seconds)
    folder.add_metrics(metrics)
    session.finish(state, outcomes)
    write_router(folder, config, federation, fitted, figures)
