"""What a federation's models are worth: average, oracle, global, client and system accuracy.

``ask`` runs every client's model over the pooled test set once; everything after that is a pure
function of what they answered.
"""

from feddrm.evaluation.accuracy import (
    TIES,
    average_accuracy,
    client_accuracy,
    confusion,
    evaluate,
    global_accuracy,
    oracle_accuracy,
    per_client,
    route,
    routed_predictions,
    system_accuracy,
    vote,
    votes,
)
from feddrm.evaluation.cuda_replay import Replay
from feddrm.evaluation.predictions import Answers, Queries, ask, pooled_queries
from feddrm.evaluation.window import summarise
from feddrm.rules import RULES

__all__ = [
    "RULES",
    "TIES",
    "Answers",
    "Queries",
    "Replay",
    "ask",
    "average_accuracy",
    "client_accuracy",
    "confusion",
    "evaluate",
    "global_accuracy",
    "oracle_accuracy",
    "per_client",
    "pooled_queries",
    "route",
    "routed_predictions",
    "summarise",
    "system_accuracy",
    "vote",
    "votes",
]
