"""The predictions of all clients' models after a round, for the pooled test set or for any queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from feddrm.data import Federation, Pool
from feddrm.engine import CPU_QUERIES, GPU_QUERIES, State, arithmetic, cpu_kernels
from feddrm.evaluation import (
    AnswersBySample,
    Execution,
    Predictions,
    Queries,
    Replay,
    pooled_queries,
    predict,
    predict_parts,
)
from feddrm.methods import Method, Tensors
from feddrm.models import Net
from feddrm.runs.config import Config

CPU_LOGITS, GPU_LOGITS = 2**23, 2**29  # in memory at a time, of all models: 32 MiB and 2 GiB


@contextmanager
def training_kernels(config: Config, net: Net, threads: int = 1) -> Iterator[None]:
    """Compute with the kernels and the precision of training, so that a second measurement gives the same bits.

    With several ``threads`` per operation the last bits may differ.
    """
    with cpu_kernels(net, config.plan.batch_size, threads), arithmetic(config.precision, config.device).set():
        yield


def pooled_test_set(
    config: Config,
    federation: Federation,
    round: int,
    pool: Pool | None = None,
    clients: Sequence[int] | None = None,
) -> Queries:
    """The test samples of all or some clients with the crops of this round; ``pool`` holds them on a GPU."""
    return pooled_queries(
        federation,
        crop=config.evaluation.test_crop,
        seed=config.plan.seed,
        round=round,
        views=config.evaluation.views,
        workers=config.threads,
        pool=pool,
        clients=clients,
    )


def all_predictions(config: Config, net: Net, state: State, test: Queries, replay: Replay | None = None) -> Predictions:
    """The predictions of every client's model, of the published client head and of the global model."""
    how = execution(config, config.threads, replay)
    return predict(net, client_models(config.method, state), test, **_of_server(config, state), execution=how)


def _of_server(config: Config, state: State) -> dict[str, Tensors | None]:
    """The models that are the server's: of the published client head, and the global one."""
    method = config.method
    branch = state.shared if method.client_branch else None
    return {"client_branch": branch, "global_model": method.global_model(state.shared)}


def all_outcomes(
    config: Config, net: Net, state: State, test: Queries, weights: Tensor, replay: Replay | None = None
) -> AnswersBySample:
    """The outcomes of :func:`all_predictions`, made part by part where they would take too much memory."""
    how = execution(config, config.threads, replay)
    most = GPU_LOGITS if torch.device(config.device).type == "cuda" else CPU_LOGITS
    answers = net.head.out_features * len(state.private)
    size = max(1, most // answers // how.batch_size) * how.batch_size
    if len(test.labels) > size:
        how = replace(how, replay=None)  # a graph is for one number of samples; the last part has another
    models = client_models(config.method, state)
    parts = predict_parts(net, models, test, size, **_of_server(config, state), execution=how)
    return AnswersBySample.join((AnswersBySample.of(part, weights) for part in parts), len(test.labels))


def participant_predictions(
    config: Config, net: Net, state: State, test: Queries, participants: Sequence[int]
) -> Predictions:
    """The predictions of the participants' models for ``test``, their own test samples."""
    models = client_models(config.method, state, participants)
    # Every round has another number of samples. To try all convolution algorithms for each would take longer.
    with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, benchmark=False):
        how = execution(config, config.threads)
        return predict(net, models, test, **_of_server(config, state), execution=how)


def client_models(method: Method, state: State, clients: Sequence[int] | None = None) -> list[Tensors]:
    """The model that every client answers with, or every one of the given numbers."""
    numbers = range(len(state.private)) if clients is None else clients
    return [method.serve(method.send(state.shared, i), state.private[i]) for i in numbers]


def execution(config: Config, workers: int = 1, replay: Replay | None = None) -> Execution:
    """How predictions are computed on the run's device."""
    batch_size = GPU_QUERIES if torch.device(config.device).type == "cuda" else CPU_QUERIES
    return Execution(arithmetic(config.precision, config.device), batch_size, workers, replay)
