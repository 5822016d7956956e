"""The answers of all clients' models after a round, to the pooled test set or to any queries."""

from __future__ import annotations

from typing import Any

import torch

from feddrm.data import Federation, Pool
from feddrm.engine import State, arithmetic
from feddrm.evaluation import Answers, Queries, ask, pooled_queries
from feddrm.models import Net
from feddrm.runs.config import Config
from feddrm.runs.kernels import CPU_QUERIES, GPU_QUERIES


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


def ask_clients(config: Config, net: Net, state: State, queries: Queries, **options: Any) -> Answers:
    """What every client's model answers; ``options`` as for :func:`feddrm.evaluation.ask`."""
    method = config.method
    models = [method.serve(method.send(state.shared, i), slots) for i, slots in enumerate(state.private)]
    return ask(
        net,
        models,
        queries,
        arithmetic=arithmetic(config.precision, config.device),
        batch_size=GPU_QUERIES if torch.device(config.device).type == "cuda" else CPU_QUERIES,
        **options,
    )
