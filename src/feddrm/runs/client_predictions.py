"""The predictions of all clients' models after a round, for the pooled test set or for any queries."""

from __future__ import annotations

import torch

from feddrm.data import Federation, Pool
from feddrm.engine import CPU_QUERIES, GPU_QUERIES, State, arithmetic
from feddrm.evaluation import Execution, Queries, Replay, pooled_queries
from feddrm.methods import Method, Tensors
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


def client_models(method: Method, state: State) -> list[Tensors]:
    """The model that every client answers with."""
    return [method.serve(method.send(state.shared, i), slots) for i, slots in enumerate(state.private)]


def execution(config: Config, workers: int = 1, replay: Replay | None = None) -> Execution:
    """How predictions are computed on the run's device."""
    batch_size = GPU_QUERIES if torch.device(config.device).type == "cuda" else CPU_QUERIES
    return Execution(arithmetic(config.precision, config.device), batch_size, workers, replay)
