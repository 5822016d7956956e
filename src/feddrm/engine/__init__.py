"""How methods are run: the training loop, rounds, checkpoints."""

from feddrm.engine.checkpoint import load_state, save_state, write_atomically
from feddrm.engine.rounds import Plan, Played, State, federate, first_state, participants, play_round
from feddrm.engine.update import Update, client_update, functional

__all__ = [
    "Plan",
    "Played",
    "State",
    "Update",
    "client_update",
    "federate",
    "first_state",
    "functional",
    "load_state",
    "participants",
    "play_round",
    "save_state",
    "write_atomically",
]
