"""The exact router of a finished run: fitted, measured on the test set, written into the run's folder."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feddrm.data import DEPLOYED, Federation, load
from feddrm.engine import Plan, State, load_state, require_gpu
from feddrm.errors import FeddrmError
from feddrm.evaluation import Predictions, Queries, predict
from feddrm.io.shards import SHARD_SIZE, shard_bytes
from feddrm.io.text import json_bytes
from feddrm.methods import Method
from feddrm.models import Model, Net
from feddrm.plugins import require_plugins
from feddrm.progress import progress_bar
from feddrm.registry import known_fields
from feddrm.router import FittedRouter, Router, RouterSettings, evaluate_router, fit_router
from feddrm.router.answer_calibration import AnswerCalibration
from feddrm.router.artifact import FIT
from feddrm.router.evaluate import answers_left_out, evaluate_routed
from feddrm.router.private_head import PrivateHead, client_slots
from feddrm.runs.client_predictions import client_models, execution, pooled_test_set, training_kernels
from feddrm.runs.config import Config, resolve
from feddrm.runs.folder import RunFolder

KINDS = ("client_accuracy", "system_accuracy", "system_c_index")  # figures by rule, of training and of the router
BY_ALL = ("vote", "averaged")  # rules by which all clients answer


def fit_run_router(
    folder: RunFolder,
    saved: Mapping[str, Any],
    federation: Federation | None = None,
    *,
    device: str | None = None,
    data_dir: str | None = None,
    progress: bool = False,
    **settings: Any,
) -> Router:
    """Fit, evaluate on the test set, and write ``router/``, ``clients/<name>/`` and the summary.

    ``saved`` is the content of the run's ``config.yaml``. The federation is loaded again by it; a federation that
    was made in Python must be given. ``settings`` are the fields of :class:`feddrm.router.RouterSettings`. ``views``
    among them are those of the fit and of its figures; otherwise the fit uses crops, and the figures the run's views.
    ``progress`` prints the steps on standard error.
    """
    router_settings = RouterSettings(**known_fields(RouterSettings, settings, "router"))
    router_settings.check()
    require_gpu(device or "cpu")
    if folder.summary() is None:
        raise FeddrmError(f"{folder.path} is not finished: train it to the end ('feddrm train' resumes it) first")
    require_plugins(saved.get("plugins"), folder.config_file)
    federation = federation if federation is not None else load_run_federation(folder, saved, data_dir)
    with folder.exclusive(), _progress_steps() if progress else contextlib.nullcontext() as on_step:
        folder.refuse_other_data(federation, "give the data that it was trained on")
        if not folder.state_file.exists():
            raise FeddrmError(f"{folder.path} has no checkpoint any more: train it again, into another folder")
        config = saved_config(saved, federation, device)
        if "views" in settings:
            config = replace(config, evaluation=replace(config.evaluation, views=router_settings.views))
        fitted, figures = _fit(folder, config, federation.to(config.device), router_settings, on_step)
        write_router(folder, config, federation, fitted, figures)
        return fitted.router


def write_router(
    folder: RunFolder, config: Config, federation: Federation, fitted: FittedRouter, figures: dict[str, Any]
) -> None:
    """Write ``router/``, what belongs to each client, and the figures of a fitted router."""
    artifact = fitted.artifact(config.as_dict()["model"])
    calibrations = figures.get("calibrations", {"trained": {}})
    trained = calibrations["trained"]
    heads = {
        name: PrivateHead(correction, calibrations["refit"][name], artifact.fit)
        for name, correction in fitted.private.items()
    }
    public, sharded = _figures(folder, fitted, figures), len(federation) > SHARD_SIZE
    if sharded:
        private = _fitted_shards(folder, federation, trained, heads)
    else:
        public |= _scales(folder, federation)
        private = _private_files(folder, trained, heads)
    artifact.write(folder.router, public, private)
    for name in federation.names:  # what an earlier fit has left
        files = folder.client(name)
        earlier = [files.scale_file, files.temperature_file] if sharded else []
        for file in [*earlier, *([files.head_file] if sharded or name not in heads else [])]:
            file.unlink(missing_ok=True)


def measure_router(
    folder: RunFolder, saved: Mapping[str, Any], federation: Federation, **settings: Any
) -> dict[str, Any]:
    """The figures of a router fitted on the latest checkpoint, finished run or not; nothing is written."""
    config = saved_config(saved, federation, None)
    return _fit(folder, config, federation.to(config.device), RouterSettings(**settings), None)[1]


@contextlib.contextmanager
def _progress_steps() -> Iterator[Callable[[str], None]]:
    with progress_bar("fit router") as advance:
        steps = itertools.count()
        yield lambda step: advance(next(steps), None, step, True)


def _fit(
    folder: RunFolder,
    config: Config,
    federation: Federation,
    settings: RouterSettings,
    on_step: Callable[[str], None] | None,
) -> tuple[FittedRouter, dict[str, Any]]:
    """The router of the latest checkpoint, and its figures on the test set."""
    state = load_state(folder.state_file, config.device)
    if len(state.private) != len(federation):
        clients, given = len(state.private), len(federation)
        raise FeddrmError(f"{folder.path} has {clients} clients, the data {given}: give its own data")
    net = config.build_net(federation).requires_grad_(False)
    models = client_models(config.method, state)
    views = federation.query_views.take(settings.views)

    def predictions(queries: Queries, workers: int = 1, threads: int = 1) -> Predictions:
        # The precision of training holds for these predictions only: the fit's own products are not to be rounded.
        with training_kernels(config, net, threads):
            return predict(net, models, queries, execution=execution(config, workers))

    def published(x: Tensor) -> Tensor:
        """Log class probabilities of training samples by the trained models, in the precision of training."""
        unused = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        queries = Queries(x, unused, unused, views)
        return predictions(queries, threads=torch.get_num_threads()).logits.double().log_softmax(-1)

    test = pooled_test_set(config, federation, state.round)
    fitted = fit_router(net, state.shared, federation, settings, published=published, test=test, on_step=on_step)
    line = answers_left_out(fitted.facts, test, settings)
    answered = predictions(test, config.threads) if line is None else None
    if line is not None:
        fitted = with_left_out(fitted, line)
    return fitted, router_figures(config, net, state, federation, fitted, test, answered)


def with_left_out(fitted: FittedRouter, line: str) -> FittedRouter:
    """The same with one more line about what is left out."""
    return replace(fitted, chosen={**fitted.chosen, "left_out": [*fitted.chosen.get("left_out", []), line]})


def router_figures(
    config: Config,
    net: Net,
    state: State,
    federation: Federation,
    fitted: FittedRouter,
    test: Queries,
    answered: Predictions | None,
) -> dict[str, Any]:
    """The figures of a router on the test set, from all clients' answers, or (None) from one client's to every sample.

    :func:`answers_left_out` says whether all of them may be in memory.
    """
    if answered is not None:
        return evaluate_router(fitted, net, state.shared, test, answered, federation.weights)
    models = client_models(config.method, state)

    def ask(routes: Tensor) -> Tensor:
        """The logits of every test sample by one client's model."""
        asked = [(client, (routes == client).nonzero()[:, 0]) for client in routes.bincount().nonzero()[:, 0].tolist()]
        parts = [Queries(test.x[rows], test.labels[rows], test.origin[rows], test.views) for _, rows in asked]
        with training_kernels(config, net, torch.get_num_threads()):
            how = execution(config)
            logits = [
                predict(net, [models[i]], part, execution=how).logits[0]
                for (i, _), part in zip(asked, parts, strict=True)
            ]
        order = torch.cat([rows for _, rows in asked])
        return torch.cat(logits)[order.argsort()]

    return evaluate_routed(fitted, net, state.shared, test, ask, federation.task, federation.weights)


def load_run_federation(folder: RunFolder, saved: Mapping[str, Any], data_dir: str | None) -> Federation:
    """The run's federation, loaded again by its settings."""
    require_plugins(saved.get("plugins"), folder.config_file)
    settings = dict(saved["data"])
    name = settings.pop("name")
    if name == DEPLOYED:
        raise FeddrmError(
            f"the samples of {folder.path} lie on its sites: 'feddrm deploy run' fits the router there; put "
            "a damaged one back from the server or a site, which have the same"
        )
    if data_dir is not None:
        settings["data_dir"] = data_dir
    try:
        return load(name, **settings)
    except FeddrmError as error:
        raise FeddrmError(f"cannot load the data of {folder.path} again ({error}); or give the federation") from error


def saved_config(saved: Mapping[str, Any], federation: Federation, device: str | None) -> Config:
    """The run's configuration, on another device if one is given."""
    given = dict(saved)
    parts = {part: dict(given.pop(part, {})) for part in ("data", "method", "model", "evaluation")}
    plan = {key: given[key] for key in asdict(Plan()) if key in given}
    device = device or _available(str(given.get("device", "cpu")))
    return resolve(
        federation,
        data=parts["data"],
        method=Method.make(parts["method"].pop("name"), **parts["method"]),
        model=Model.make(parts["model"].pop("name"), **parts["model"]),
        device=device,
        precision=given.get("precision", "auto") if device.startswith("cuda") else "auto",  # CPUs have only one
        threads=given.get("threads"),
        evaluation=parts["evaluation"],
        **plan,
    )


def _available(device: str) -> str:
    return "cpu" if device.startswith("cuda") and not torch.cuda.is_available() else device


def _scales(folder: RunFolder, federation: Federation) -> dict[Path, bytes]:
    """How each client scales raw samples: as it did in training, even if the others scale differently."""
    return {
        folder.client(client.name).scale_file: json_bytes({"mean": client.view.mean, "std": client.view.std})
        for client in federation.clients
    }


def _private_files(
    folder: RunFolder, trained: Mapping[str, AnswerCalibration], heads: Mapping[str, PrivateHead]
) -> dict[Path, bytes]:
    """Each client's calibration and, where heads were fitted, its private head."""
    return {
        **{folder.client(name).temperature_file: value.file() for name, value in trained.items()},
        **{folder.client(name).head_file: head.file() for name, head in heads.items()},
    }


def _fitted_shards(
    folder: RunFolder,
    federation: Federation,
    trained: Mapping[str, AnswerCalibration],
    heads: Mapping[str, PrivateHead],
) -> dict[Path, bytes]:
    """The same of a large federation, with the clients' scales: a hundred clients in each file."""
    files = {}
    for number, start in enumerate(range(0, len(federation), SHARD_SIZE)):
        clients = federation.clients[start : start + SHARD_SIZE]
        slots = {
            client.name: client_slots(
                client.view.mean, client.view.std, trained.get(client.name), heads.get(client.name)
            )
            for client in clients
        }
        fit = next((head.fit for head in heads.values()), None)
        files[folder.fitted_file(number)] = shard_bytes(slots, None if fit is None else {FIT: fit})
    return files


def _figures(folder: RunFolder, fitted: FittedRouter, figures: dict[str, Any]) -> dict[Path, bytes]:
    """The summary and the evaluation with the router's figures; those of an earlier router are replaced."""
    summary = dict(folder.summary() or {})
    for kind in (kind for kind in KINDS if kind in figures):
        measured = {rule: {"mean": value, "std": None} for rule, value in figures[kind].items()}
        summary[kind] = {**_of_training(summary.get(kind)), **measured}
    reliability = figures["router"].pop("reliability")
    answers = {kind: values.pop("reliability") for kind, values in figures["router"].get("answers", {}).items()}
    chosen = fitted.chosen["router"]
    summary["router"] = {
        **figures["router"],
        **{key: figures[key] for key in ("refit_oracle_accuracy",) if key in figures},
        **{key: chosen[key] for key in ("recipe", "ridge", "rounds", "converged", "held_out_accuracy")},
        "seconds": dict(fitted.seconds),
        "own_scales": fitted.router.own_scales,
        **{key: value for key, value in fitted.chosen.items() if key == "views"},
        **{key: fitted.chosen[key] for key in ("message", "left_out") if key in fitted.chosen},
    }
    evaluation = folder.read_json(folder.evaluation_file) or {}
    evaluation["confusion"] = {**_of_training(evaluation.get("confusion")), **figures["confusion"]}
    evaluation["reliability"] = reliability
    if "metrics" in figures:  # answers are classes
        summary["metrics"] = {**summary.get("metrics", {}), "system": figures["metrics"]}
        by_answer = evaluation.get("class_confusion", {})
        evaluation["class_confusion"] = {**by_answer, "system": figures["class_confusion"]}
        evaluation["answer_reliability"] = answers["exact_density"]
    return {folder.evaluation_file: json_bytes(evaluation), folder.summary_file: json_bytes(summary)}


def _of_training(by_rule: dict[str, Any] | None) -> dict[str, Any]:
    """The figures that training measured, without those of an earlier router."""
    return {rule: value for rule, value in (by_rule or {}).items() if rule in BY_ALL or rule.startswith("head_")}
