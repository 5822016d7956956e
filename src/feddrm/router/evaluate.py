"""Accuracies and calibration of a fitted router on the pooled test set, under the names of ``summary.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from feddrm.evaluation import (
    Predictions,
    Queries,
    answer_metrics,
    c_index,
    class_confusion,
    client_accuracy,
    confusion,
    route,
    routed_curves,
    routed_predictions,
    survival_curves,
    system_accuracy,
)
from feddrm.models import Net
from feddrm.router.answer_calibration import FOLDS, HeldOutAnswers, answer_figures
from feddrm.router.features.base import Leaves, Recipe, extract
from feddrm.router.fit.fit_router import FittedRouter
from feddrm.router.fit.head_problems import joint_classes, joint_clients
from feddrm.router.label_sets import label_set_figures
from feddrm.router.policy import by_rule, conformal_set, conformal_threshold, consult, reliability
from feddrm.router.router import Calibration, Router
from feddrm.router.solver.client_statistics import logits_at
from feddrm.rules import RIVALS, RULES, Competence, Evidence, Rule
from feddrm.tasks import Survival

COVERAGES = (0.5, 0.8, 0.9, 0.95, 1.0)


def evaluate_router(
    fitted: FittedRouter, net: Net | None, shared: Leaves, test: Queries, predictions: Predictions, weights: Tensor
) -> dict[str, Any]:
    """Client and system accuracy by every rule, calibration, and the gain from abstaining; all are fractions.

    ``exact_...`` and ``consult_...`` use the trained private heads, ``refit_...`` the refitted ones.
    ``global_probe``, ``joint`` and ``stacked`` predict at the server (the stack with the clients' help).
    ``..._competence`` ask the client that is likeliest right, ``rival_...`` choose among the trained heads otherwise.
    Mixtures use the weights of the posterior rule. ``calibrations`` are the clients' own, for their folders alone;
    ``answers``, ``label_sets`` and ``metrics`` are measured with those that were fitted without the sample. ``metrics``
    and ``class_confusion`` are of the answers by one client, chosen by the density rule.

    Of survival there are C-indices instead, and nothing that needs classes.
    """
    router, labels, origin = fitted.router, predictions.labels, predictions.origin
    features = router.recipe.features if fitted.heads is None else router.recipe.features + fitted.heads.recipe.features
    recipe = Recipe(tuple(dict.fromkeys(features)))
    columns = test.views.mean(test.x, lambda x: extract(recipe, net, shared, x))
    routed_by = torch.cat([columns[f.name] for f in router.recipe.features], dim=1)
    logits = router.logits(routed_by).double()
    log_weights = {rule: by_rule(logits, router.log_prior, rule) for rule in RULES}
    by_origin = {f"exact_{rule}": route(logits, weights.to(logits.device), rule) for rule in RULES}
    client = {f"exact_{rule}": client_accuracy(logits, origin, weights, rule) for rule in RULES}
    curve = reliability(log_weights["posterior"], origin)
    routing: dict[str, Any] = {
        "client_accuracy": client,
        "confusion": {name: confusion(routes, origin, router.clients).tolist() for name, routes in by_origin.items()},
        "router": {
            "features": router.recipe.name,
            "ece": curve.error,
            "ece_density": reliability(log_weights["density"], origin).error,
            "reliability": curve.as_dict(),
            "conformal": _conformal(router.calibration, log_weights, origin),
            "temperature": router.calibration.temperature,
        },
    }
    if not predictions.task.classifies:
        return {**routing, "system_c_index": _c_indices(predictions, by_origin, log_weights["posterior"])}
    published = predictions.logits.double().log_softmax(-1)
    system = {
        name: system_accuracy(routed_predictions(predictions.logits, routes), labels)
        for name, routes in by_origin.items()
    }
    evidence = _evidence(router, routed_by, logits, published)
    chosen_by = {rule: rule_class().scores(evidence).argmax(1) for rule, rule_class in _beyond_origin(evidence).items()}
    for rule, routes in chosen_by.items():
        name = f"exact_{rule}" if rule == Competence.name else f"rival_{rule}"
        system[name] = system_accuracy(routed_predictions(predictions.logits, routes), labels)
    mixture = consult(log_weights["posterior"], published)
    two = consult(log_weights["posterior"], published, 2)
    system["consult_2"] = system_accuracy(two.argmax(-1), labels)
    system["consult_all"] = system_accuracy(mixture.argmax(-1), labels)
    trained, held_out = HeldOutAnswers.of(published, labels, origin)
    calibrations = {"trained": trained}
    label_sets = {"trained": label_set_figures(held_out, log_weights["density"], labels)}
    answers = {
        "exact_density": answer_figures(published, held_out.log_classes, log_weights["density"], labels, 1),
        "consult_all": answer_figures(published, held_out.log_classes, log_weights["posterior"], labels, None),
    }
    calibrated = held_out.log_classes[by_origin["exact_density"], torch.arange(len(labels), device=labels.device)]
    refit_oracle = None
    if fitted.heads is not None:
        x = fitted.heads.scaler(torch.cat([columns[f.name] for f in fitted.heads.recipe.features], dim=1))
        own = _own_heads(fitted, x)
        by_heads, by_joint, refit_oracle = _head_accuracies(fitted, x, own, log_weights, mixture, predictions, weights)
        system |= by_heads
        client |= by_joint
        if Competence.name in chosen_by:
            system["refit_competence"] = system_accuracy(routed_predictions(own, chosen_by[Competence.name]), labels)
        calibrations["refit"], held_out = HeldOutAnswers.of(own, labels, origin)
        label_sets["refit"] = label_set_figures(held_out, log_weights["density"], labels)
        answers["refit_density"] = answer_figures(own, held_out.log_classes, log_weights["density"], labels, 1)
    return {
        **routing,
        "system_accuracy": system,
        "refit_oracle_accuracy": refit_oracle,
        "router": {
            **routing["router"],
            "answers": answers,
            "label_sets": label_sets,
            "selective": _selective(mixture, labels),
            # The trunk was trained on the judged samples, so as a rule more right answers are expected than are given.
            "expected_right": None if evidence.right is None else float(evidence.right.amax(1).mean()),
        },
        "metrics": answer_metrics(calibrated, labels, origin, router.names),
        "class_confusion": class_confusion(calibrated.argmax(-1), labels, calibrated.shape[1]).tolist(),
        "calibrations": {kind: dict(zip(router.names, values, strict=True)) for kind, values in calibrations.items()},
    }


def _c_indices(
    predictions: Predictions, routes: Mapping[str, Tensor], log_posterior: Tensor
) -> dict[str, float | None]:
    """System C-indices: by the trained model of the chosen client, and by mixtures of the clients' curves."""
    task, log_curves = predictions.task, survival_curves(predictions).log()
    assert isinstance(task, Survival)
    curves = {name: routed_curves(log_curves, chosen) for name, chosen in routes.items()}
    curves |= {"consult_2": consult(log_posterior, log_curves, 2), "consult_all": consult(log_posterior, log_curves)}
    return {name: c_index(task.risk(curve.exp()), predictions.labels) for name, curve in curves.items()}


def _evidence(router: Router, features: Tensor, logits: Tensor, answers: Tensor) -> Evidence:
    """All that the rules may look at. ``answers`` are the trained heads', not calibrated, as rivals take them."""
    return Evidence(
        logits,
        router.log_prior.to(logits),
        None if router.competence is None else router.right(features),
        answers,
        router.scaler(features.to(router.weight.dtype)).double(),
        None if router.means is None else router.means.double(),
    )


def _beyond_origin(evidence: Evidence) -> dict[str, type[Rule]]:
    """The rules besides those of origin whose evidence is there."""
    rules = {name: Rule.family[name] for name in (Competence.name, *RIVALS)}
    return {
        name: rule for name, rule in rules.items() if all(getattr(evidence, field) is not None for field in rule.needs)
    }


def _own_heads(fitted: FittedRouter, x: Tensor) -> Tensor:
    """Log class probabilities [m, N, K] by every client's refitted head."""
    assert fitted.heads is not None
    probe = logits_at(x, fitted.heads.probe.double())
    return torch.stack(
        [(probe + logits_at(x, fitted.private[name].double())).log_softmax(1) for name in fitted.router.names]
    )


def _head_accuracies(
    fitted: FittedRouter,
    x: Tensor,
    own: Tensor,
    log_weights: Mapping[str, Tensor],
    mixture: Tensor,
    predictions: Predictions,
    weights: Tensor,
) -> tuple[dict[str, float], dict[str, float], float]:
    """System and client accuracies by the fitted heads, and the oracle accuracy of the refitted private heads."""
    heads, labels, origin = fitted.heads, predictions.labels, predictions.origin
    assert heads is not None
    clients = fitted.router.clients
    probe = logits_at(x, heads.probe.double()).log_softmax(1)
    classes = {"global_probe": probe, "refit_all": consult(log_weights["posterior"], own)}
    client: dict[str, float] = {}
    if heads.joint is not None:
        pairs = logits_at(x, heads.joint.double())
        classes["joint"] = joint_classes(pairs, clients)
        client["joint_posterior"] = client_accuracy(joint_clients(pairs, clients), origin, weights, "posterior")
    for name, stack in heads.stacks.items():
        classes[name] = stack({**classes, "consult_all": mixture})
    system = {name: system_accuracy(value.argmax(-1), labels) for name, value in classes.items()}
    for rule in RULES:
        hard = consult(log_weights[rule], own, 1)
        system[f"refit_{rule}"] = system_accuracy(hard.argmax(-1), labels)
    return system, client, system_accuracy(routed_predictions(own, origin), labels)


def _conformal(
    calibration: Calibration, log_weights: Mapping[str, Tensor], origin: Tensor
) -> dict[str, dict[str, float]]:
    """How often a set holds the right client and how many clients it holds, by rule and allowed miss.

    Thresholds that come from these test samples are measured by parts in turn, each with a threshold of the others.
    """
    part = torch.arange(len(origin), device=origin.device) % FOLDS.parts
    measured = {}
    for name, threshold in calibration.conformal.items():
        rule, _, miss = name.rpartition("_")
        least = torch.full((len(origin), 1), threshold, dtype=torch.float64, device=origin.device)
        for fold in range(FOLDS.used if calibration.tested else 0):
            inside = part == fold
            least[inside] = conformal_threshold(log_weights[rule][~inside], origin[~inside], float(miss))
        sets = conformal_set(log_weights[rule], least).double()
        measured[name] = {
            "covered": float(sets.gather(1, origin[:, None]).mean()),
            "size": float(sets.sum(1).mean()),
        }
    return measured


def _selective(mixture: Tensor, labels: Tensor) -> list[dict[str, float]]:
    """System accuracy of the most confident queries, by the fraction that is answered."""
    confidence, predicted = mixture.max(-1)
    right = (predicted == labels).double()[confidence.argsort(descending=True, stable=True)]
    rows = []
    for coverage in COVERAGES:
        answered = max(1, round(coverage * len(right)))
        rows.append({"coverage": coverage, "accuracy": float(right[:answered].mean())})
    return rows
