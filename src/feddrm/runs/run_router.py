"""The exact router of a finished run: fitted, measured, written into its folder."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from feddrm.data import DEPLOYED, Federation, load
from feddrm.engine import Plan, arithmetic, load_state
from feddrm.engine.kernels import CPU_QUERIES, GPU_QUERIES
from feddrm.engine.kernels import router_kernels as router_kernels
from feddrm.errors import FeddrmError
from feddrm.evaluation import Execution, Predictions, Queries, pooled_queries, predict
from feddrm.io.atomic import write_atomically
from feddrm.methods import Method
from feddrm.models import Model
from feddrm.progress import progress_bar
from feddrm.router import FittedRouter, Router, RouterSettings, evaluate_router, fit_router
from feddrm.runs.config import Config, known_fields, resolve
from feddrm.runs.folder import RunFolder

if TYPE_CHECKING:
    from feddrm.runs.run import Run

PRIVATE_HEAD, SCALE = "head.safetensors", "scale.json"


def fit_run_router(
    run: Run,
    federation: Federation | None = None,
    *,
    device: str | None = None,
    data_dir: str | None = None,
    progress: bool = False,
    **settings: Any,
) -> Router:
    """Fit, evaluate on the test set, and write ``router/``, ``clients/<name>/`` and the summary.

    The federation is loaded again from the run's configuration; one that was made in Python must be
    given. ``settings`` are those of :class:`feddrm.router.RouterSettings`; ``progress`` says on standard error
    what is being done.
    """
    chosen = RouterSettings(**known_fields(RouterSettings, settings, "router"))
    chosen.check()
    if run.summary is None:
        raise FeddrmError(f"{run.path} is not finished: train it to the end ('feddrm train' resumes it) first")
    federation = federation if federation is not None else _load_again(run, data_dir)
    folder = RunFolder(run.path)
    with folder.alone(), _steps_shown() if progress else contextlib.nullcontext() as on_step:
        folder.refuse_other_data(federation, "give the data that it was trained on")
        if not folder.state_file.exists():
            raise FeddrmError(f"{run.path} has no checkpoint any more: train it again, into another folder")
        return _fit(run, folder, federation, chosen, device, on_step)


@contextlib.contextmanager
def _steps_shown() -> Iterator[Callable[[str], None]]:
    with progress_bar("fit router") as advance:
        done = itertools.count()
        yield lambda what: advance(next(done), None, what, True)


def _fit(
    run: Run,
    folder: RunFolder,
    federation: Federation,
    chosen: RouterSettings,
    device: str | None,
    on_step: Callable[[str], None] | None,
) -> Router:
    config = _config_again(run, federation, device)
    federation = federation.to(config.device)
    state = load_state(folder.state_file, config.device)
    method = config.method
    clients = len(federation) if method.client_branch else None
    if len(state.private) != len(federation):
        raise FeddrmError(f"{run.path} has {len(state.private)} clients, the data {len(federation)}: give its own data")
    net = config.model.build(federation.shape, len(federation.classes), clients, config.plan.seed).to(config.device)
    net.requires_grad_(False)
    models = [method.serve(method.send(state.shared, i), p) for i, p in enumerate(state.private)]

    how = arithmetic(config.precision, config.device)
    batch = GPU_QUERIES if torch.device(config.device).type == "cuda" else CPU_QUERIES

    def asking(queries: Queries, workers: int = 1) -> Predictions:
        with how.set():  # here alone: the fit's own products are not to be rounded
            return predict(net, models, queries, execution=Execution(how, batch, workers))

    def published(x: Tensor) -> Tensor:
        """What the models say of training samples, in the arithmetic they were trained in."""
        nobody = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return asking(Queries(x, nobody, nobody)).logits.double().log_softmax(-1)

    with router_kernels(int(federation.sizes.sum())):
        fitted = fit_router(net, state.shared, federation, chosen, published=published, on_step=on_step)
    test = pooled_queries(
        federation,
        crop=config.evaluation.test_crop,
        seed=config.plan.seed,
        round=state.round,
        workers=config.threads,
    )
    answers = asking(test, workers=config.threads)
    found = evaluate_router(fitted, net, state.shared, test, answers, federation.weights)
    _write(folder, config, federation, fitted, found)
    return fitted.router


def _load_again(run: Run, data_dir: str | None) -> Federation:
    settings = dict(run.config["data"])
    name = settings.pop("name")
    if name == DEPLOYED:
        raise FeddrmError(f"the samples of {run.path} lie on its sites: 'feddrm deploy run' fits the router there")
    if data_dir is not None:
        settings["data_dir"] = data_dir
    try:
        return load(name, **settings)
    except FeddrmError as error:
        raise FeddrmError(f"cannot load the data of {run.path} again ({error}); or give the federation") from error


def _config_again(run: Run, federation: Federation, device: str | None) -> Config:
    """The run's own configuration as values, on another device where asked."""
    given = dict(run.config)
    parts = {part: dict(given.pop(part)) for part in ("data", "method", "model", "evaluation")}
    known = {key: given[key] for key in asdict(Plan()) if key in given}
    device = device or _possible(str(given.get("device", "cpu")))
    return resolve(
        federation,
        data=parts["data"],
        method=Method.make(parts["method"].pop("name"), **parts["method"]),
        model=Model.make(parts["model"].pop("name"), **parts["model"]),
        device=device,
        precision=given.get("precision", "auto") if device.startswith("cuda") else "auto",  # CPUs have but one
        threads=given.get("threads"),
        evaluation=parts["evaluation"],
        **known,
    )


def _possible(device: str) -> str:
    return "cpu" if device.startswith("cuda") and not torch.cuda.is_available() else device


def _write(
    folder: RunFolder, config: Config, federation: Federation, fitted: FittedRouter, found: dict[str, Any]
) -> None:
    """Server files, then every client's own, then the figures; what was there before is replaced."""
    router = fitted.router
    fitted.save(folder.path / "router", config.as_dict()["model"])
    for client in federation.clients:
        own = folder.path / "clients" / client.name
        own.mkdir(parents=True, exist_ok=True)
        # It scales raw samples as it did in training, whatever the others do.
        folder.write_json(f"clients/{client.name}/{SCALE}", {"mean": client.view.mean, "std": client.view.std})
        if (head := fitted.private.get(client.name)) is None:
            (own / PRIVATE_HEAD).unlink(missing_ok=True)  # of an earlier fit: it does not go with this one
        else:
            content = save({"correction": head.detach().cpu().contiguous()})
            write_atomically(own / PRIVATE_HEAD, content, private=True)
    summary = dict(folder.read_json("summary.json"))
    for kind in ("client_accuracy", "system_accuracy"):
        measured = {rule: {"mean": value, "std": None} for rule, value in found[kind].items()}
        summary[kind] = {**_trained(summary.get(kind)), **measured}
    curve = found["router"].pop("reliability")
    summary["router"] = {
        **found["router"],
        "refit_oracle_accuracy": found["refit_oracle_accuracy"],
        "recipe": fitted.chosen["router"]["recipe"],
        "ridge": fitted.chosen["router"]["ridge"],
        "rounds": fitted.chosen["router"]["rounds"],
        "converged": fitted.chosen["router"]["converged"],
        "held_out_accuracy": fitted.chosen["router"]["held_out_accuracy"],
        "seconds": dict(fitted.seconds),
        "own_scales": router.own_scales,
    }
    evaluation = folder.read_json("evaluation.json") or {}
    evaluation["confusion"] = {**_trained(evaluation.get("confusion")), **found["confusion"]}
    evaluation["reliability"] = curve
    folder.write_json("evaluation.json", evaluation)
    folder.write_json("summary.json", summary)


def _trained(by_rule: dict[str, Any] | None) -> dict[str, Any]:
    """What training measured; whatever an earlier router did is left out."""
    return {rule: value for rule, value in (by_rule or {}).items() if rule == "vote" or rule.startswith("head_")}


def read_inputs(router: Router, columns: list[str] | None, paths: list[Path]) -> tuple[Tensor, list[str]]:
    """Queries from files, as the router wants them, with a name each: images, or tables of its columns."""
    from feddrm.data.sources.csv_tables import read_rows
    from feddrm.data.sources.images import read_images

    if len(router.shape) == 3:
        channels, height, width = router.shape
        pixels = [read_images([path], (height, width), grey=channels == 1) for path in paths]
        for path, one in zip(paths, pixels, strict=True):
            if one.shape[1] != channels:
                raise FeddrmError(f"{path} has {one.shape[1]} channels, the router wants {channels}: convert it")
        return torch.from_numpy(np.concatenate(pixels)), [str(path) for path in paths]
    found, names = [], []
    for path in paths:
        rows, places = read_rows(path, tuple(columns) if columns else None, router.shape[0])
        found.append(torch.from_numpy(rows))
        names += places
    return torch.cat(found), names
