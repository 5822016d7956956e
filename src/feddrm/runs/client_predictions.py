"""The predictions of all clients' models after a round, for the pooled test set or for any queries."""

from __future__ import annotations

from typing import Any

import torch

from feddrm.data import Federation, Pool
from feddrm.engine import State, arithmetic
from feddrm.engine.kernels import CPU_QUERIES, GPU_QUERIES
from feddrm.evaluation import Execution, Predictions, Queries, Replay, pooled_queries, predict
from feddrm.models import Net
from feddrm.runs.config import Config


def pooled_test_set(config: Config, federation: Federation, round: int, pool: Pool | None = None) -> Queries:
    """The test samples of all clients with the crops of this round; ``pool`` holds them on a GPU."""
    return pooled_queries(
        federation,
        crop=config.evaluation.test_crop,
        seed=config.plan.seed,
        round=round,
        workers=config.threads,
        pool=pool,
    )


def execution(config: Config, workers: int = 1, replay: Replay | None = None) -> Execution:
    """How the configured device computes predictions."""
    batch_size = GPU_QUERIES if torch.device(config.device).type == "cuda" else CPU_QUERIES
    return Execution(arithmetic(config.precision, config.device), batch_size, workers, replay)


def predict_clients(
    config: Config, net: Net, state: State, queries: Queries, how: Execution, **models: Any
) -> Predictions:
    """Every client's predictions; ``models`` are further ones, as for :func:`feddrm.evaluation.predict`."""
    method = config.method
    served = [method.serve(method.send(state.shared, i), slots) for i, slots in enumerate(state.private)]
    return predict(net, served, queries, execution=how, **models)
