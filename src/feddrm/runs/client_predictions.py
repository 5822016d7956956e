"""The predictions of all clients' models after a round, for the pooled test set or for any queries."""

from __future__ import annotations

import torch

from feddrm.data import Federation, Pool
from feddrm.engine import CPU_QUERIES, GPU_QUERIES, State, arithmetic
from feddrm.evaluation import Execution, Predictions, Queries, Replay, pooled_queries, predict
from feddrm.methods import Method, Tensors
from feddrm.models import Net
from feddrm.runs.config import Config


def pooled_test_set(config: Config, federation: Federation, round: int, pool: Pool | None = None) -> Queries:
    """The test samples of all clients with the crops of this round; ``pool`` holds them on a GPU."""
    return pooled_queries(
        federation,
        crop=config.evaluation.test_crop,
        seed=config.plan.seed,
        round=round,
        views=config.evaluation.views,
        workers=config.threads,
        pool=pool,
    )


def all_predictions(config: Config, net: Net, state: State, test: Queries, replay: Replay | None = None) -> Predictions:
    """The predictions of every client's model, of the published client head and of the global model."""
    method = config.method
    return predict(
        net,
        client_models(method, state),
        test,
        client_branch=state.shared if method.client_branch else None,
        global_model=method.global_model(state.shared),
        execution=execution(config, config.threads, replay),
    )


def client_models(method: Method, state: State) -> list[Tensors]:
    """The model that every client answers with."""
    return [method.serve(method.send(state.shared, i), slots) for i, slots in enumerate(state.private)]


def execution(config: Config, workers: int = 1, replay: Replay | None = None) -> Execution:
    """How predictions are computed on the run's device."""
    batch_size = GPU_QUERIES if torch.device(config.device).type == "cuda" else CPU_QUERIES
    return Execution(arithmetic(config.precision, config.device), batch_size, workers, replay)
