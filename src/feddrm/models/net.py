"""The network of every model: a trunk, a class branch and an optional client branch.

The first word of a leaf's name is its part. Methods decide by the part which leaves are trained, which
travel and which stay private.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feddrm.tasks import CLASSIFICATION, Task


class Outputs(NamedTuple):
    """The outputs of a network for a batch.

    ``stages`` holds the activations in order, from ``"input"`` to ``"embedding"``, which equals
    ``features``. Covariate shift shows in the shallow stages, label shift in the deep ones.
    ``client_logits`` is None for a network without a client branch. Under ``torch.vmap`` return single
    fields of such a network, because vmap returns tensors only. ``task`` says what the logits mean.
    """

    logits: Tensor
    features: Tensor
    client_logits: Tensor | None
    stages: dict[str, Tensor]
    task: Task = CLASSIFICATION


class Dense(nn.Module):
    """ReLU(LayerNorm(W x + c)) of the flattened input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.linear(x.flatten(1))))


Branch = tuple[nn.Module, nn.Linear]  # projection and head


class Net(nn.Module):
    """Trunk -> embedding b(x) -> ``project`` -> ``head``; the client branch leaves at a stage of the trunk.

    The trunk's children are the named stages. No part may hold a buffer: the parameters are the whole
    state, so that a client's model is a plain dict of tensors.
    """

    client_project: nn.Module | None
    client_head: nn.Linear | None

    def __init__(
        self,
        trunk: nn.Sequential,
        class_branch: Branch,
        client_branch: Branch | None = None,
        client_stage: str = "embedding",
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.project, self.head = class_branch
        self.client_project, self.client_head = client_branch or (None, None)
        self.client_stage = client_stage
        self.task: Task = CLASSIFICATION

    def forward(self, x: Tensor) -> Outputs:
        features, stages = self.embed(x)
        logits = _logits(self.head, self.hidden(features))
        return Outputs(logits, features, self.client_logits(stages), stages, self.task)

    def embed(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """b(x) and every stage: the trunk's pass, which any number of heads can share."""
        stages = {"input": x}
        for name, stage in self.trunk.named_children():
            stages[name] = x = stage(x)
        return x, stages

    def hidden(self, features: Tensor) -> Tensor:
        """u, the input of the class head."""
        u: Tensor = self.project(features)
        return u

    def client_logits(self, stages: Mapping[str, Tensor]) -> Tensor | None:
        """Logits over the clients that a sample may come from; None without a client branch."""
        if self.client_project is None or self.client_head is None:
            return None
        return _logits(self.client_head, self.client_project(stages[self.client_stage]))

    def sizes(self) -> dict[str, int]:
        """Number of parameters of every part."""
        return {name: sum(p.numel() for p in part.parameters()) for name, part in self.named_children()}


def _logits(head: nn.Linear, u: Tensor) -> Tensor:
    """The head's output in the head's precision, whatever the trunk's: rounded logits would tie."""
    if u.is_cuda and torch.is_autocast_enabled("cuda"):
        with torch.autocast("cuda", enabled=False):
            return F.linear(u.to(head.weight.dtype), head.weight, head.bias)
    out: Tensor = head(u)
    return out


_copies = threading.local()


def of_this_thread(net: Net) -> Net:
    """The calling thread's copy of the network. It has layers of its own; the leaves are those of ``net``.

    ``functional_call`` swaps leaves into a module for a moment. Two threads that do so in one module compute with each
    other's leaves.
    """
    own: WeakKeyDictionary[Net, Net] = vars(_copies).setdefault("by_net", WeakKeyDictionary())
    if net not in own:
        own[net] = copy.deepcopy(net, {id(leaf): leaf for leaf in net.parameters()})
    return own[net]


def is_trunk(leaf: str) -> bool:
    """Whether the embedding b(x) depends on the leaf."""
    return _part_of(leaf) == "trunk"


def is_project(leaf: str) -> bool:
    """Whether the leaf lies between the embedding and the class head."""
    return _part_of(leaf) == "project"


def is_head(leaf: str) -> bool:
    """Whether the leaf belongs to the class head, the part that personalised methods keep private."""
    return _part_of(leaf) == "head"


def is_output(leaf: str) -> bool:
    """Whether the leaf belongs to a head, over classes or over clients."""
    return _part_of(leaf) in ("head", "client_head")


def is_client_branch(leaf: str) -> bool:
    """Whether only the client logits depend on the leaf."""
    return _part_of(leaf) in ("client_project", "client_head")


def part(leaves: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The leaves of one part by their names within it: ``functional_call(net.head, part(leaves, "head"), u)``."""
    return {leaf.removeprefix(f"{name}."): value for leaf, value in leaves.items() if _part_of(leaf) == name}


def _part_of(leaf: str) -> str:
    return leaf.partition(".")[0]
