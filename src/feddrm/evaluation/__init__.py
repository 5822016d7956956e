"""Evaluation: average, oracle, global, client and system accuracy of a federation's models, and metrics of answers.

``predict`` runs every client's model over the pooled test set once; all accuracies and metrics are pure
functions of its result.
"""

from feddrm.evaluation.accuracy import (
    TIES,
    average_accuracy,
    client_accuracy,
    confusion,
    confusion_as_plain,
    evaluate,
    evaluate_participants,
    global_accuracy,
    oracle_accuracy,
    per_client,
    routed_predictions,
    routes_accuracy,
    system_accuracy,
    vote,
    votes,
)
from feddrm.evaluation.answer_metrics import answer_metrics, class_confusion, own_answers, sampling_units
from feddrm.evaluation.answers_by_sample import AnswersBySample, route, routed
from feddrm.evaluation.collapse import LASTING, collapse_summary, collapsed_share, is_collapsed
from feddrm.evaluation.concordance import average_c_index, c_index
from feddrm.evaluation.cuda_replay import Replay
from feddrm.evaluation.predictions import (
    Execution,
    Predictions,
    Queries,
    pooled_queries,
    pooled_subjects,
    predict,
    predict_parts,
)
from feddrm.evaluation.window import summarise

__all__ = [
    "LASTING",
    "TIES",
    "AnswersBySample",
    "Execution",
    "Predictions",
    "Queries",
    "Replay",
    "answer_metrics",
    "average_accuracy",
    "average_c_index",
    "c_index",
    "class_confusion",
    "client_accuracy",
    "collapse_summary",
    "collapsed_share",
    "confusion",
    "confusion_as_plain",
    "evaluate",
    "evaluate_participants",
    "global_accuracy",
    "is_collapsed",
    "oracle_accuracy",
    "own_answers",
    "per_client",
    "pooled_queries",
    "pooled_subjects",
    "predict",
    "predict_parts",
    "route",
    "routed",
    "routed_predictions",
    "routes_accuracy",
    "sampling_units",
    "summarise",
    "system_accuracy",
    "vote",
    "votes",
]
