"""The engine runs methods: schedule, client update, rounds, the loop over them, checkpoints, kernels."""

from feddrm.engine.checkpoint import load_state, save_state
from feddrm.engine.client_update import Update, client_update, functional
from feddrm.engine.federate import engine_for, federate, require_gpu
from feddrm.engine.kernels import CPU_QUERIES, GPU_QUERIES, cpu_kernels, free_card, largest_product
from feddrm.engine.precision import PRECISIONS, Arithmetic, arithmetic
from feddrm.engine.rounds import play_round, train_client
from feddrm.engine.schedule import Plan, RoundResult, RoundSchedule, State, first_state, participants

__all__ = [
    "CPU_QUERIES",
    "GPU_QUERIES",
    "PRECISIONS",
    "Arithmetic",
    "Plan",
    "RoundResult",
    "RoundSchedule",
    "State",
    "Update",
    "arithmetic",
    "client_update",
    "cpu_kernels",
    "engine_for",
    "federate",
    "first_state",
    "free_card",
    "functional",
    "largest_product",
    "load_state",
    "participants",
    "play_round",
    "require_gpu",
    "save_state",
    "train_client",
]
