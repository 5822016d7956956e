"""How methods are run: the training loop, rounds, checkpoints."""

from feddrm.engine.checkpoint import load_state, save_state, write_atomically
from feddrm.engine.client_update import Update, client_update, functional
from feddrm.engine.precision import PRECISIONS, Arithmetic, arithmetic
from feddrm.engine.rounds import (
    ENGINES,
    Plan,
    RoundResult,
    RoundSchedule,
    State,
    engine_for,
    federate,
    first_state,
    participants,
    play_round,
    train_client,
)

__all__ = [
    "ENGINES",
    "PRECISIONS",
    "Arithmetic",
    "Plan",
    "RoundResult",
    "RoundSchedule",
    "State",
    "Update",
    "arithmetic",
    "client_update",
    "engine_for",
    "federate",
    "first_state",
    "functional",
    "load_state",
    "participants",
    "play_round",
    "save_state",
    "train_client",
    "write_atomically",
]
