"""Parity with figures of the reference implementations: parameters, accuracies and losses of eleven methods."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from feddrm.data import Batch
from feddrm.engine import Plan, client_update, functional
from feddrm.evaluation import Predictions, average_accuracy, client_accuracy, route, routed_predictions, vote
from feddrm.methods import Method, Sgd, Slots, Stage, Tensors
from feddrm.models import Dense, Net

pytestmark = pytest.mark.golden

# The reference's names of hyper-parameters, and ours.
SETTINGS = {
    "feddrm": {"lam": "feddrm_ratio"},
    "fedavgft": {},
    "fedproxft": {"mu": "fedprox_mu"},
    "fedsamft": {"rho": "fedsam_rho"},
    "fedbabu": {},
    "fedrep": {},
    "fedpac": {"mu": "fedpac_mu"},
    "confree": {},
    "fedas": {},
    "ditto": {"lam": "ditto_lambda"},
    "fedala": {},
}
TUNED = {"fedavgft", "fedproxft", "fedsamft", "fedbabu"}
RENAMED = {
    "backbone": "trunk.embedding",
    "image_fc": "project.linear",
    "image_ln": "project.norm",
    "image_classifier": "head",
    "machine_fc": "client_project.linear",
    "machine_ln": "client_project.norm",
    "machine_classifier": "client_head",
}


class Reference(NamedTuple):
    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def tensors(self, prefix: str) -> Tensors:
        """Leaves under a prefix, by our names, in float64."""
        found = {name.removeprefix(prefix): value for name, value in self.arrays.items() if name.startswith(prefix)}
        return {our_name(leaf): torch.from_numpy(value).double() for leaf, value in found.items()}

    def method(self, name: str) -> Method:
        settings = {ours: self.meta["hyper"][theirs] for ours, theirs in SETTINGS[name].items()}
        if name in TUNED:
            settings["tuning"] = self.meta["finetune_rounds"]
        if name == "fedala":
            settings["learn_mix"] = False
        return Method.make(name, **settings)

    def net(self, clients: bool) -> Net:
        stem, conv, project = (
            self.arrays[f"init/drm/{leaf}.weight"].shape for leaf in ("backbone.0", "backbone.3", "image_fc")
        )
        trunk = nn.Sequential(
            nn.Conv2d(stem[1], stem[0], 3, stride=2),
            nn.GroupNorm(4, stem[0]),
            nn.ReLU(),
            nn.Conv2d(conv[1], conv[0], 3),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

        def branch(outputs: int) -> tuple[Dense, nn.Linear]:
            return Dense(project[1], project[0]), nn.Linear(project[0], outputs)

        named = nn.Sequential(OrderedDict(embedding=trunk))
        return Net(named, branch(self.meta["classes"]), branch(self.meta["clients"]) if clients else None).double()


class Round(NamedTuple):
    loss: float
    shared: Tensors
    private: list[Slots]


def our_name(leaf: str) -> str:
    part, _, rest = leaf.partition(".")
    return f"{RENAMED[part]}.{rest}"


@pytest.fixture(scope="module")
def reference(golden: Path) -> Reference:
    with np.load(golden / "methods.npz") as file:
        arrays = {name: file[name] for name in file.files}
    return Reference(json.loads(arrays.pop("meta").tobytes()), arrays)


@pytest.fixture(scope="module", params=sorted(SETTINGS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def played(reference: Reference, name: str) -> list[Round]:
    """The method's rounds on the reference's batches, each phase from the first batch on."""
    meta, method = reference.meta, reference.method(name)
    x, y = torch.from_numpy(reference.arrays["train_x"]).double(), torch.from_numpy(reference.arrays["train_y"]).long()
    sizes = torch.from_numpy(reference.arrays["n"]).double()
    weights = sizes / sizes.sum()
    plan = Plan(rounds=meta["rounds"], lr=meta["lr"])
    net = functional(reference.net(method.client_branch))
    shared, own = method.start(reference.tensors("init/drm/" if method.client_branch else "init/plain/"))
    private = [own] * meta["clients"]
    rounds = []
    for number in range(1, meta["rounds"] + 1):
        stage = Stage(meta["local_steps"], tuning=number > meta["rounds"] - method.tuning_rounds(meta["rounds"]))
        lr = torch.tensor(plan.rate(number), dtype=torch.float64)
        sgd = Sgd(meta["momentum"], meta["weight_decay"], lr)
        updates = []
        for client in range(meta["clients"]):
            lists = [
                [reference_batch(x, y, client, step % x.shape[1]) for step in range(phase.steps)]
                for phase in method.phases(stage)
            ]
            received = method.send(shared, client)
            updates.append(client_update(method, net, received, private[client], lists, stage, sgd))
        shared = method.aggregate(shared, [update.upload for update in updates], weights)
        private = [update.private for update in updates]
        loss = sum(float(weight * update.loss) for weight, update in zip(weights, updates, strict=True))
        rounds.append(Round(loss, shared, private))
    return rounds


def reference_batch(x: Tensor, y: Tensor, client: int, step: int) -> Batch:
    labels = y[client, step]
    return Batch(x[client, step], labels, torch.full_like(labels, client), torch.ones_like(labels, dtype=torch.bool))


def predictions_of(reference: Reference, method: Method, round: Round) -> Predictions:
    """Every client's served model on all test batches; client logits from the aggregated branch."""
    x, y = torch.from_numpy(reference.arrays["test_x"]).double(), torch.from_numpy(reference.arrays["test_y"]).long()
    origin = torch.arange(len(y))[:, None, None].expand_as(y).flatten()
    net = functional(reference.net(method.client_branch))
    with torch.no_grad():
        outputs = [
            net(method.serve(method.send(round.shared, client), private), x.flatten(0, 2))
            for client, private in enumerate(round.private)
        ]
    # The branch is shared, so every client's composite holds the aggregated one.
    return Predictions(torch.stack([out.logits for out in outputs]), y.flatten(), origin, outputs[0].client_logits)


def test_every_recorded_method_is_compared(reference):
    assert set(reference.meta["records"]) == set(SETTINGS)
    assert {leaf.split("/")[1] for leaf in reference.arrays if leaf.startswith("final/")} == set(SETTINGS)


def test_final_models_agree_on_every_leaf(reference, name, played):
    method = reference.method(name)
    for client, private in enumerate(played[-1].private):
        served = method.serve(method.send(played[-1].shared, client), private)
        wanted = reference.tensors(f"final/{name}/{client}/")
        assert set(served) == set(wanted)
        for leaf, value in wanted.items():
            torch.testing.assert_close(served[leaf], value, rtol=0, atol=1e-10, msg=lambda m, leaf=leaf: f"{leaf}: {m}")


def test_accuracies_agree_in_every_round(reference, name, played):
    record, method = reference.meta["records"][name], reference.method(name)
    sizes = torch.from_numpy(reference.arrays["n"])
    average, system, clients = [], [], []
    for round in played:
        predictions = predictions_of(reference, method, round)
        average.append(average_accuracy(predictions, sizes))
        if predictions.client_logits is None:
            said = vote(predictions.logits)
        else:
            said = routed_predictions(predictions.logits, route(predictions.client_logits, sizes, "density"))
            clients.append(client_accuracy(predictions.client_logits, predictions.origin, sizes, "posterior"))
        system.append(float((said == predictions.labels).double().mean()))
    # Counts must be the same; a weighted mean of them may be added up in another order.
    assert average == pytest.approx(record["avg_acc"], rel=0, abs=1e-12)
    assert system == pytest.approx(record["sys_acc"], rel=0, abs=1e-12)
    assert clients == pytest.approx(record.get("machine_avg_acc", []), rel=0, abs=1e-12)


def test_training_losses_agree_in_every_round(reference, name, played):
    record, method = reference.meta["records"][name], reference.method(name)
    wanted = np.array(record["train_loss"])
    if "machine_train_loss" in record:  # the two parts of the joint loss are recorded apart
        wanted = method.lam * wanted + (1 - method.lam) * np.array(record["machine_train_loss"])
    assert [round.loss for round in played] == pytest.approx(wanted, rel=0, abs=1e-10)
