"""How methods are run: the training loop, rounds, checkpoints."""

from feddrm.engine.checkpoint import load_state, save_state, write_atomically
from feddrm.engine.precision import PRECISIONS, Arithmetic, arithmetic
from feddrm.engine.rounds import (
    ENGINES,
    Agenda,
    Plan,
    Played,
    State,
    engine_for,
    federate,
    first_state,
    participants,
    play_round,
    train_client,
)
from feddrm.engine.update import Update, client_update, functional

__all__ = [
    "ENGINES",
    "PRECISIONS",
    "Agenda",
    "Arithmetic",
    "Plan",
    "Played",
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
