"""Times one FedDRM round with evaluation on two CPU cores: feddrm against the official code's way to do it.

    FEDDRM_DATA=folder python -m benchmarks.cpu_round [--json FILE]

LeNet on CIFAR-10, 8 clients, 10 steps, batch 128. The official way in short: Pillow processes every sample at
every access, every client's weights go through the disk, and average accuracy and system accuracy each have a pass
of their own, the latter with every client's model on every test image. Both sides use the same network, optimiser
and cores. Ours is the better of two runs; the official way runs once, because it takes minutes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.data_pipeline import pillow_access
from benchmarks.result import finish
from feddrm.data import Client, Federation, load
from feddrm.data.federation import Split
from feddrm.engine import Plan, RoundSchedule, federate, first_state, functional
from feddrm.evaluation import Execution, evaluate, pooled_queries, predict
from feddrm.methods import FedDRM
from feddrm.models import Model, Net, is_head

PLAN = Plan(rounds=800, local_steps=10, batch_size=128)


def ours(federation: Federation, net: Net) -> dict[str, float]:
    torch.set_num_threads(1)  # as in a run: whole clients run in parallel, single operations do not
    method, m = FedDRM(), len(federation)
    leaves = {leaf: value.detach().clone() for leaf, value in net.named_parameters()}
    workers = os.cpu_count() or 1
    schedule = RoundSchedule(method, PLAN, m)
    rounds = federate(schedule, functional(net), federation, first_state(method, leaves, m), workers=workers)
    state = next(rounds).state
    models = [method.serve(method.send(state.shared, i), private) for i, private in enumerate(state.private)]
    predictions = predict(
        net,
        models,
        pooled_queries(federation, crop=True, seed=0, round=1, workers=workers),
        client_branch=state.shared,
        execution=Execution(workers=workers),
    )
    return evaluate(predictions, federation.weights)["system_accuracy"]


class Official:
    """The official pipeline, reduced to the parts that take time."""

    def __init__(self, federation: Federation, net: Net, folder: Path) -> None:
        self.federation, self.net, self.folder = federation, net, folder
        self.pixels = {
            (c.name, part): split.x.permute(0, 2, 3, 1).contiguous().numpy()
            for c in federation.clients
            for part, split in (("train", c.train), ("test", c.test))
        }

    def batches(self, client: Client, part: str, split: Split, order: torch.Tensor):
        assert client.view.shift is not None
        images = self.pixels[client.name, part]
        for rows in order.split(PLAN.batch_size):
            x = [pillow_access(images[i], client.view.shift) for i in rows.tolist()]
            yield torch.stack(x), split.y[rows]

    def round(self) -> float:
        torch.set_num_threads(os.cpu_count() or 1)
        m, weights = len(self.federation), self.federation.weights.tolist()
        torch.save(self.net.state_dict(), self.folder / "server.pt")
        for i, client in enumerate(self.federation.clients):
            self.net.load_state_dict(torch.load(self.folder / "server.pt"))
            optimiser = torch.optim.SGD(self.net.parameters(), PLAN.lr, PLAN.momentum, weight_decay=PLAN.weight_decay)
            order = torch.randperm(len(client.train))[: PLAN.local_steps * PLAN.batch_size]
            for x, y in self.batches(client, "train", client.train, order):
                out = self.net(x)
                assert out.client_logits is not None
                loss = 0.9 * F.cross_entropy(out.logits, y)
                loss = loss + 0.1 * F.cross_entropy(out.client_logits, torch.full_like(y, i))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            torch.save(self.net.state_dict(), self.folder / f"client{i}.pt")
        states = [torch.load(self.folder / f"client{i}.pt") for i in range(m)]
        mean = {leaf: sum(w * s[leaf] for w, s in zip(weights, states, strict=True)) for leaf in states[0]}
        for i, state in enumerate(states):
            composite = {leaf: state[leaf] if is_head(leaf) else value for leaf, value in mean.items()}
            torch.save(composite, self.folder / f"client{i}.pt")
        with torch.no_grad():
            return self.average() + self.system(mean)

    def average(self) -> float:
        right = 0
        for i, client in enumerate(self.federation.clients):
            self.net.load_state_dict(torch.load(self.folder / f"client{i}.pt"))
            for x, y in self.batches(client, "test", client.test, torch.arange(len(client.test))):
                right += int((self.net(x).logits.argmax(1) == y).sum())
        return right

    def system(self, server: dict[str, torch.Tensor]) -> float:
        right = 0
        for client in self.federation.clients:
            for x, y in self.batches(client, "test", client.test, torch.arange(len(client.test))):
                self.net.load_state_dict(server)
                scores = self.net(x).client_logits
                assert scores is not None
                chosen = (scores - self.federation.weights.float().log()).argmax(1)
                logits = []
                for j in range(len(self.federation)):
                    self.net.load_state_dict(torch.load(self.folder / f"client{j}.pt"))
                    logits.append(self.net(x).logits)
                right += int((torch.stack(logits)[chosen, torch.arange(len(y))].argmax(1) == y).sum())
        return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    federation = load("cifar10")
    net = Model.make("lenet").build(federation.shape, 10, len(federation))
    for client in federation.clients:  # built once per run, like the official side's pixel arrays
        assert client.view.shift is not None
        client.view.shift.table("cpu")
    times = []
    for _ in range(2):
        start = time.perf_counter()
        ours(federation, net)
        times.append(time.perf_counter() - start)
    with tempfile.TemporaryDirectory() as folder:
        official = Official(federation, net, Path(folder))
        start = time.perf_counter()
        official.round()
        theirs = time.perf_counter() - start
    figures = {
        "ours_seconds": round(min(times), 2),
        "official_way_seconds": round(theirs, 2),
        "ratio": round(theirs / min(times), 1),
    }
    finish(figures, arguments.json, libraries=["pillow"])


if __name__ == "__main__":
    main()
