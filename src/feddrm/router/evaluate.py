"""Accuracies and calibration of a fitted router on the pooled test set, under the names of ``summary.json``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
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
    confusion_as_plain,
    route,
    routed,
    routed_predictions,
    routes_accuracy,
    sampling_units,
    system_accuracy,
)
from feddrm.models import Net
from feddrm.router.answer_calibration import FOLDS, AnswerCalibration, HeldOutAnswers, answer_figures, trust
from feddrm.router.features.base import Leaves, Recipe, extract
from feddrm.router.fit.cohort import Facts
from feddrm.router.fit.fit_router import FittedRouter
from feddrm.router.fit.head_problems import joint_classes, joint_clients
from feddrm.router.label_sets import label_set_figures
from feddrm.router.policy import (
    Calibration,
    by_rule,
    conformal_set,
    conformal_threshold,
    consult,
    reliability_of,
    subject_shares,
)
from feddrm.router.router import Router
from feddrm.router.settings import RouterSettings
from feddrm.router.solver.client_statistics import BLOCK, logits_at
from feddrm.rules import RIVALS, RULES, Competence, Evidence, Rule
from feddrm.tasks import Survival, Task

Ask = Callable[[Tensor], Tensor]  # the logits [N, K] of test samples, each by the client [N] that is asked
BYTES = 8  # of one client's probability of one class
COVERAGES = (0.5, 0.8, 0.9, 0.95, 1.0)


def answers_left_out(facts: Facts, test: Queries, settings: RouterSettings) -> str | None:
    """The line that says that :func:`evaluate_router` would take too much memory; None if it would not.

    At its peak it holds all answers six times.
    """
    size = BYTES * len(facts.names) * len(test.labels) * len(facts.classes)
    return settings.too_large("answers of all clients to all test samples", size, test.x.device)


def evaluate_router(
    fitted: FittedRouter, net: Net | None, shared: Leaves, test: Queries, predictions: Predictions, weights: Tensor
) -> dict[str, Any]:
    """Client and system accuracy by every rule, calibration, and the gain from abstaining; all are fractions.

    ``exact_...`` and ``consult_...`` use the trained private heads, ``refit_...`` the refitted ones.
    ``global_probe``, ``joint`` and ``stacked`` predict at the server (the stack with the clients' help).
    ``..._competence`` ask the client that is likeliest right, ``rival_...`` choose among the trained heads otherwise.
    Mixtures use the weights of the posterior rule. ``calibrations`` are the clients' own, for their folders alone;
    ``answers``, ``label_sets`` and ``metrics`` are measured with those that were fitted without the sample. ``metrics``
    and ``class_confusion`` are of the answers by one client, chosen by the density rule; so is ``coverage``.

    Of survival there are C-indices instead, and nothing that needs classes.
    """
    router, labels, origin = fitted.router, predictions.labels, predictions.origin
    columns, routed_by = _features(fitted, net, shared, test)
    routing, by_origin = _routing(router, routed_by, test, weights)
    client = routing["client_accuracy"]
    logits = router.logits(routed_by).double()
    log_weights = {rule: by_rule(logits, router.log_prior, rule) for rule in RULES}
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
    trained, held_out = HeldOutAnswers.of(published, labels, origin, test.subject)
    calibrations = {"trained": trained}
    label_sets = {"trained": label_set_figures(held_out, log_weights["density"], labels)}
    log_classes = held_out.log_classes
    del held_out  # its p-values: each of these takes 8 m N K bytes, and few are to be in memory at once
    answers = {
        "exact_density": answer_figures(published, log_classes, log_weights["density"], labels, 1),
        "consult_all": answer_figures(published, log_classes, log_weights["posterior"], labels, None),
    }
    chosen = by_origin["exact_density"]
    calibrated = routed(log_classes, chosen)
    # The trunk was trained on the judged samples, so as a rule more right answers are expected than are given.
    expected_right = None if evidence.right is None else float(evidence.right.amax(1).mean())
    del evidence, published, log_classes
    refit_oracle = None
    if fitted.heads is not None:
        x = fitted.heads.scaler(fitted.heads.recipe.joined(columns))
        own = _own_heads(fitted, x)
        by_heads, by_joint, refit_oracle = _head_accuracies(fitted, x, own, log_weights, mixture, predictions, weights)
        system |= by_heads
        client |= by_joint
        if Competence.name in chosen_by:
            system["refit_competence"] = system_accuracy(routed_predictions(own, chosen_by[Competence.name]), labels)
        calibrations["refit"], held_out = HeldOutAnswers.of(own, labels, origin, test.subject)
        label_sets["refit"] = label_set_figures(held_out, log_weights["density"], labels)
        log_classes = held_out.log_classes
        del held_out
        answers["refit_density"] = answer_figures(own, log_classes, log_weights["density"], labels, 1)
    return {
        **routing,
        "system_accuracy": system,
        "refit_oracle_accuracy": refit_oracle,
        "router": {
            **routing["router"],
            "answers": answers,
            "label_sets": label_sets,
            "coverage": _by_coverage(router, routed_by, routed_predictions(predictions.logits, chosen) == labels),
            "expected_right": expected_right,
        },
        "metrics": answer_metrics(calibrated, labels, origin, router.names, test.subject),
        "class_confusion": class_confusion(calibrated.argmax(-1), labels, calibrated.shape[1]).tolist(),
        "calibrations": {kind: dict(zip(router.names, values, strict=True)) for kind, values in calibrations.items()},
    }


def evaluate_routed(
    fitted: FittedRouter, net: Net | None, shared: Leaves, test: Queries, ask: Ask, task: Task, weights: Tensor
) -> dict[str, Any]:
    """The figures that need one client's answer to every query, where all clients' answers would take too much memory.

    They are those of :func:`evaluate_router`, under the same names; those of mixtures, label sets, competence and the
    rivals are left out. ``ask`` returns the logits [N, K] of the trained models of the clients [N] that are asked.
    """
    router, labels, origin = fitted.router, test.labels, test.origin
    columns, routed_by = _features(fitted, net, shared, test)
    routing, by_origin = _routing(router, routed_by, test, weights)
    if isinstance(task, Survival):
        risks = {name: task.risk(task.answers(ask(routes).double())) for name, routes in by_origin.items()}
        return {**routing, "system_c_index": {name: c_index(risk, labels) for name, risk in risks.items()}}
    asked = {name: ask(routes) for name, routes in by_origin.items()}
    system = {name: system_accuracy(logits.argmax(-1), labels) for name, logits in asked.items()}
    held_out = partial(_calibrated, routes=by_origin["exact_density"], test=test, names=router.names)
    trained, calibrated = held_out(asked["exact_density"].double(), ask(origin).double())
    answers = {"exact_density": _trust(asked["exact_density"], calibrated, labels)}
    calibrations = {"trained": trained}
    if fitted.heads is not None:
        x = fitted.heads.scaler(fitted.heads.recipe.joined(columns))
        heads = {name: _by_heads(fitted, x, chosen) for name, chosen in {**by_origin, "oracle": origin}.items()}
        system["global_probe"] = system_accuracy(logits_at(x, fitted.heads.probe.double()).argmax(-1), labels)
        system |= {f"refit_{rule}": system_accuracy(heads[f"exact_{rule}"].argmax(-1), labels) for rule in RULES}
        calibrations["refit"], refitted = held_out(heads["exact_density"], heads["oracle"])
        answers["refit_density"] = _trust(heads["exact_density"], refitted, labels)
        routing["refit_oracle_accuracy"] = system_accuracy(heads["oracle"].argmax(-1), labels)
    return {
        **routing,
        "system_accuracy": system,
        "router": {
            **routing["router"],
            "answers": answers,
            "coverage": _by_coverage(router, routed_by, asked["exact_density"].argmax(-1) == labels),
        },
        "metrics": answer_metrics(calibrated, labels, origin, router.names, test.subject),
        "class_confusion": class_confusion(calibrated.argmax(-1), labels, calibrated.shape[1]).tolist(),
        "calibrations": calibrations,
    }


def _features(fitted: FittedRouter, net: Net | None, shared: Leaves, test: Queries) -> tuple[dict[str, Tensor], Tensor]:
    """All features of the test samples by name, and the router's own."""
    router = fitted.router
    features = router.recipe.features if fitted.heads is None else router.recipe.features + fitted.heads.recipe.features
    recipe = Recipe(tuple(dict.fromkeys(features)))
    columns = test.views.mean(test.x, lambda x: extract(recipe, net, shared, x))
    return columns, router.recipe.joined(columns)


def _routing(
    router: Router, features: Tensor, test: Queries, weights: Tensor
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """How well the router finds the client of every sample, and the clients that it chooses by every rule.

    Samples are taken in blocks: the weights of all of them over all clients may not fit in memory.
    """
    rows, origin = max(1, BLOCK[features.device.type] // router.clients), test.origin.to(features.device)
    unit = sampling_units(origin, test.subject)

    def blocks(rule: str) -> Iterator[tuple[Tensor, Tensor]]:
        for part in torch.split(features, rows):
            logits = router.logits(part).double()
            yield logits, by_rule(logits, router.log_prior, rule)

    routes, curves = {}, {}
    conformal: dict[str, dict[str, float]] = {}
    for rule in RULES:
        parts = []
        for (logits, log_weights), clients in zip(blocks(rule), torch.split(origin, rows), strict=True):
            top, best = log_weights.exp().max(1)
            chosen = route(logits, weights.to(logits.device), rule)
            parts.append((chosen, log_weights.gather(1, clients[:, None]), top, best))
        chosen, own, top, best = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        routes[f"exact_{rule}"], curves[rule] = chosen, reliability_of(top, best == origin)
        conformal |= _conformal(router.calibration, rule, own, unit, (weights for _, weights in blocks(rule)))
    return {
        "client_accuracy": {name: routes_accuracy(chosen, origin, weights) for name, chosen in routes.items()},
        "confusion": {
            name: confusion_as_plain(confusion(chosen, origin, router.clients)) for name, chosen in routes.items()
        },
        "router": {
            "features": router.recipe.name,
            "ece": curves["posterior"].error,
            "ece_density": curves["density"].error,
            "reliability": curves["posterior"].as_dict(),
            "conformal": conformal,
            "temperature": router.calibration.temperature,
        },
    }, routes


def _calibrated(
    by_route: Tensor, own: Tensor, routes: Tensor, test: Queries, names: Sequence[str]
) -> tuple[dict[str, AnswerCalibration], Tensor]:
    """Every client's calibration, and the answers [N, K] to queries, each calibrated without the query itself.

    ``by_route`` are the logits of the chosen clients ``routes``, ``own`` those of every query's own client.
    """
    kept, answers = {}, torch.empty_like(by_route)
    for client, name in enumerate(names):
        mine, asked = test.origin == client, (routes == client).nonzero()[:, 0]
        others = asked[~mine[asked]]
        rows = torch.cat([mine.nonzero()[:, 0], others])
        logits = torch.cat([own[mine], by_route[others]])
        first = torch.arange(int(mine.sum()), device=rows.device)
        subject = None if test.subject is None else test.subject[mine.cpu()]
        kept[name], held_out = HeldOutAnswers.of_client(client, logits, test.labels[rows], first, subject)
        chosen = routes[rows] == client
        answers[rows[chosen]] = held_out.log_classes[chosen]
    return kept, answers


def _trust(logits: Tensor, calibrated: Tensor, labels: Tensor) -> dict[str, object]:
    return trust(calibrated, labels) | trust(logits.double().log_softmax(-1), labels, "uncalibrated_")


def _by_heads(fitted: FittedRouter, x: Tensor, routes: Tensor) -> Tensor:
    """Logits [N, K] by the refitted heads of the chosen clients."""
    assert fitted.heads is not None
    out = logits_at(x, fitted.heads.probe.double())
    for client in routes.bincount().nonzero()[:, 0].tolist():
        asked = routes == client
        out[asked] += logits_at(x[asked], fitted.private[fitted.router.names[client]].double())
    return out


def _c_indices(
    predictions: Predictions, routes: Mapping[str, Tensor], log_posterior: Tensor
) -> dict[str, float | None]:
    """System C-indices: by the trained model of the chosen client, and by mixtures of the clients' curves."""
    task = predictions.task
    assert isinstance(task, Survival)
    log_curves = task.answers(predictions.logits.double()).log()
    curves = {name: routed(log_curves, chosen) for name, chosen in routes.items()}
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
    answers = probe.new_empty((fitted.router.clients, *probe.shape))
    for answer, name in zip(answers, fitted.router.names, strict=True):
        answer.copy_((probe + logits_at(x, fitted.private[name].double())).log_softmax(1))
    return answers


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
    calibration: Calibration, rule: str, own: Tensor, unit: Tensor, blocks: Iterable[Tensor]
) -> dict[str, dict[str, float]]:
    """How often a rule's set holds the right client and how many clients it holds, by allowed miss.

    ``own`` [N, 1] are the log-weights of the samples' own clients, ``blocks`` those of all clients, block by block.
    Thresholds that come from these test samples are measured by parts in turn, each with a threshold of the others.
    Samples of one ``unit``, a subject, are in one part, and count as one together.
    """
    part, shares = unit % FOLDS.parts, subject_shares(unit)
    least = {}
    for name, threshold in calibration.conformal.items():
        if name.rpartition("_")[0] == rule:
            least[name] = torch.full_like(own, threshold)
            for fold in range(FOLDS.used if calibration.tested else 0):
                rest = part != fold
                miss = float(name.rpartition("_")[2])
                least[name][~rest] = conformal_threshold(own[rest][:, 0], shares[rest], miss)
    sizes, start = dict.fromkeys(least, 0), 0
    for log_weights in blocks if least else ():
        for name, thresholds in least.items():
            sizes[name] += int(conformal_set(log_weights, thresholds[start : start + len(log_weights)]).sum())
        start += len(log_weights)
    return {
        name: {
            "covered": float(conformal_set(own, thresholds).double().mean()),
            "size": sizes[name] / len(own),
        }
        for name, thresholds in least.items()
    }


def _by_coverage(router: Router, features: Tensor, right: Tensor) -> list[dict[str, float]]:
    """What the option ``coverage`` gains: the share of the queries that the router answers, and their accuracy.

    The router itself decides, so these are the queries that a user of the option sees answered.
    """
    rows = []
    for coverage in COVERAGES:
        parts = torch.split(features, max(1, BLOCK[features.device.type] // router.clients))
        abstain = torch.cat([router.route_features(part, coverage=coverage).abstain for part in parts])
        answered = ~abstain.to(right.device)
        if bool(answered.any()):
            share, accuracy = answered.double().mean(), right[answered].double().mean()
            rows.append({"coverage": coverage, "answered": float(share), "accuracy": float(accuracy)})
    return rows
