"""FedPAC (Xu et al., ICLR 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy
import torch
from torch import Tensor

from feddrm.data import Batch
from feddrm.errors import SettingError
from feddrm.methods.losses import class_means, class_sums, classify, cross_entropy, distance, distance_to_means
from feddrm.methods.method import (
    Forward,
    Method,
    Phase,
    Slots,
    Stage,
    Statistics,
    Tensors,
    body,
    check_variant,
    split_steps,
    weighted_mean,
)
from feddrm.models import is_head

MIXING = ("sums", "counts", "squares")
ALIGNING = ("class_sums", "class_counts")
STATISTICS = ("client", *MIXING, *ALIGNING)
KNOWN = ("client", "prototypes", "seen")  # sent with the leaves
SMALLEST_SHARE = 1e-3
HEAD_RATE = 0.1


@dataclass(frozen=True)
class FedPAC(Method):
    """FedRep with a pull on the body; originally, feature alignment and heads mixed across clients

    ``variant="paper"``: the loss of the body phase adds (mu / 2) times the squared distance to the received
    body. ``variant="original"``: it adds ``align`` times the distance of features to global class
    prototypes, and the server mixes the clients' heads by a quadratic programme per client. Heads and class
    statistics then travel. They are measured on batches of the round: those for the mixture with the body
    that all received, those for the prototypes with the body that the client trained.
    """

    name: ClassVar[str] = "fedpac"
    mu: float = 0.01
    variant: str = "paper"
    align: float = 1.0

    @property
    def device_aggregate(self) -> bool:
        return self.variant == "paper"  # the quadratic programmes are solved on the CPU

    @property
    def averages(self) -> bool:
        return self.variant == "paper"

    @property
    def needs_classes(self) -> bool:
        return self.variant == "original"

    def check(self, rounds: int) -> None:
        super().check(rounds)
        check_variant(self.name, self.variant)
        if not (0 <= self.mu < math.inf and 0 <= self.align < math.inf):
            raise SettingError(
                f"mu={self.mu}, align={self.align}: weights of penalties must be numbers and not negative"
            )

    def phases(self, stage: Stage) -> tuple[Phase | Statistics, ...]:
        first, second = split_steps(stage.steps)
        if self.variant == "paper":
            return Phase(first, classify, train=is_head), Phase(second, self._near, train=body)
        return (
            Statistics(second, _statistics, "mixing"),
            Phase(first, classify, train=is_head, sgd={"lr": HEAD_RATE}),
            Phase(second, self._aligned, train=body),
            Statistics(second, _prototypes, "aligning"),
        )

    def shares(self, leaf: str, stage: Stage) -> bool:
        return self.variant == "original" or not is_head(leaf)

    def extras(self) -> tuple[str, ...]:
        return STATISTICS if self.variant == "original" else ()

    def start(self, leaves: Tensors) -> tuple[Tensors, Slots]:
        shared = {leaf: value for leaf, value in leaves.items() if not is_head(leaf)}
        return shared, {"model": {leaf: value for leaf, value in leaves.items() if is_head(leaf)}}

    def send(self, shared: Tensors, client: int) -> Tensors:
        """The body and, in the original variant, the prototypes and this client's mixture of heads."""
        if self.variant == "paper":
            return shared
        mine = f"mixed/{client}/"
        sent = {leaf.removeprefix(mine): v for leaf, v in shared.items() if "/" not in leaf or leaf.startswith(mine)}
        return {**sent, "client": torch.tensor(client)}

    def begin(self, received: Tensors, private: Slots) -> Slots:
        known = {name: received[name] for name in KNOWN if name in received}
        return {"model": self.serve(received, private), "shared": received, "known": known}

    def finish(self, slots: Slots, stage: Stage) -> tuple[Tensors, Slots]:
        model = slots["model"]
        private: Slots = {"model": {leaf: v for leaf, v in model.items() if is_head(leaf)}}
        if self.variant == "paper":
            return {leaf: v for leaf, v in model.items() if not is_head(leaf)}, private
        return {**model, **slots["mixing"], **slots["aligning"], "client": slots["known"]["client"]}, private

    def aggregate(self, shared: Tensors, uploads: Sequence[Tensors], weights: Tensor) -> Tensors:
        if self.variant == "paper" or not uploads:
            return super().aggregate(shared, uploads, weights)
        bodies = [{k: v for k, v in u.items() if k not in STATISTICS and not is_head(k)} for u in uploads]
        sums, counts = (torch.stack([u[name] for u in uploads]).sum(0) for name in ALIGNING)
        out = {**shared, **weighted_mean(bodies, weights), **class_means(sums, counts)}
        for upload, share in zip(uploads, head_shares(uploads), strict=True):
            heads = weighted_mean([{k: v for k, v in u.items() if is_head(k)} for u in uploads], share)
            out.update({f"mixed/{int(upload['client'])}/{leaf}": value for leaf, value in heads.items()})
        return out

    def serve(self, received: Tensors, private: Slots) -> Tensors:
        return {**private["model"], **{leaf: value for leaf, value in received.items() if leaf not in KNOWN}}

    def _near(self, net: Forward, slots: Slots, batch: Batch) -> Tensor:
        trained = [leaf for leaf in slots["model"] if not is_head(leaf)]
        return classify(net, slots, batch) + self.mu * distance(slots["model"], slots["shared"], trained)

    def _aligned(self, net: Forward, slots: Slots, batch: Batch) -> Tensor:
        out = net(slots["model"], batch.x)
        loss = cross_entropy(out.logits, batch.y, batch.mask)
        if "prototypes" not in slots["known"]:  # there are none before the first aggregation
            return loss
        return loss + self.align * distance_to_means(out.features, slots["known"], batch)


def _statistics(net: Forward, slots: Slots, batch: Batch) -> Tensors:
    squares = (net(slots["model"], batch.x).features.square().sum(1) * batch.mask).sum()
    return {**class_sums(net, slots["model"], batch), "squares": squares}


def _prototypes(net: Forward, slots: Slots, batch: Batch) -> Tensors:
    return dict(zip(ALIGNING, class_sums(net, slots["model"], batch).values(), strict=True))


def head_shares(uploads: Sequence[Tensors]) -> Tensor:
    """Row i holds the shares of all clients' heads in client i's mixture, by the original's bias-variance trade-off.

    They minimise a' (diag(V) + D_i) a over the simplex. D_i is the Gram matrix of the differences of
    class-conditional mean features, V the variance of their estimates. Tiny shares become zero.
    """
    totals = torch.stack([u["counts"].sum() for u in uploads]).double().cpu()
    means = torch.stack([u["sums"] for u in uploads]).double().cpu() / totals[:, None, None]
    squares = torch.stack([u["squares"] for u in uploads]).double().cpu()
    variance = ((squares / totals - means.square().sum((1, 2))) / totals).clamp_min(0)
    rows = []
    for i, own in enumerate(variance):
        root = np.vstack([np.diag(variance.sqrt()), (means[i] - means).flatten(1).T.numpy()])
        share = _simplex_minimum(root / max(float(own), 1e-12 * float((root**2).sum(0).max()), 1e-300) ** 0.5)
        share[share < SMALLEST_SHARE] = 0
        rows.append(share / share.sum())
    return torch.from_numpy(np.stack(rows)).to(uploads[0]["sums"])


def _simplex_minimum(root: np.ndarray) -> np.ndarray:
    """The point a of the simplex that minimises |root a|; ``root`` must be scaled so that the minimum is about one.

    It is b / sum b, where b minimises |root b|^2 + (sum b - 1)^2 among non-negative vectors: with b = s a, the minimum
    of s^2 |root a|^2 + (s - 1)^2 over s grows with |root a|. Non-negative least squares are solved exactly; a general
    solver would stop as soon as the largest of very different distances no longer changes.
    """
    m = root.shape[1]
    square = np.vstack([np.linalg.qr(root, mode="r"), np.ones(m)])
    # SciPy imports its submodules on first use, so that only this method waits for scipy.optimize.
    solution, _ = scipy.optimize.nnls(square, np.append(np.zeros(len(square) - 1), 1.0))
    return np.asarray(solution / solution.sum())
