"""One run on one site: the network, the data and the private store with which the site trains and evaluates."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from feddrm.data import Client, Participant
from feddrm.deploy.site.fit_rows import SiteClient
from feddrm.deploy.site.floors import Floors
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.site.site_fit import SiteFit
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.engine import (
    CPU_QUERIES,
    RoundSchedule,
    State,
    Update,
    cpu_kernels,
    first_state,
    functional,
    train_client,
)
from feddrm.engine.rounds import check_mask
from feddrm.io.run_files import ClientFiles
from feddrm.methods import Slots, Tensors
from feddrm.runs.config import SMALL_SIDE, threads_for


class SiteRun:
    """Made once from the server's run spec; ``client_files`` are what the site answers queries with."""

    def __init__(
        self, spec: RunSpec, client: Client, store: PrivateStore, client_files: ClientFiles, floors: Floors
    ) -> None:
        self.spec, self.client, self.store, self.client_files = spec, client, store, client_files
        self.device = client.train.x.device
        self.method, self.net = spec.make_method(), spec.make_net().to(self.device)
        self.forward = functional(self.net)
        self.schedule = RoundSchedule(self.method, spec.make_plan(), len(spec.names))
        self.participant = Participant(spec.names.index(client.name), client, spec.make_crop())
        site = SiteClient(client, self.participant.number, self.participant.crop, len(spec.names), len(spec.classes))
        self.fit = SiteFit(self.net, site, store, floors)

    def private_slots(self, after: int, message: str | None = None) -> Slots:
        """The private slots after a round; the initial ones after round 0."""
        if after > 0:
            return self.store.load(after, self.device, message)
        return self._first_state.private[self.participant.number]

    @property
    def _first_state(self) -> State:
        leaves = {leaf: value.detach() for leaf, value in self.net.named_parameters()}
        return first_state(self.method, leaves, len(self.spec.names))

    def check_method(self) -> None:
        """Refuse a method that counts places of a batch without a sample, by the site's first sample."""
        with self._kernels():
            check_mask(self.schedule, self.forward, self.participant, self._first_state)

    def subjects_of_round(self, number: int) -> int:
        """Of how many subjects at least the samples are that the phase of a round with the fewest steps sees.

        An upload is a sum of their gradients. Batches are drawn by samples: at worst, from the largest subjects alone.
        """
        steps = [phase.steps for phase in self.method.phases(self.schedule.stage(number)) if phase.steps]
        samples = min([len(self.client.train), *(self.schedule.plan.batch_size * each for each in steps)])
        sizes = torch.unique(self.client.train.subject_of_sample, return_counts=True)[1]
        return 1 + int((sizes.sort(descending=True).values.cumsum(0) < samples).sum())

    def train(self, received: Tensors, private: Slots, number: int) -> Update:
        """Train one round as the engine does."""
        with self._kernels():
            return train_client(self.schedule, self.forward, self.participant, received, private, number)

    def accuracy(self, received: Tensors, private: Slots) -> dict[str, int]:
        """How many test samples the site has, and how many its own model gets right."""
        return accuracy_counts(self.test_logits(received, private), self.client.test.y)

    def test_logits(self, received: Tensors, private: Slots) -> Tensor:
        """The logits of the site's own model for its test samples."""
        model = self.method.serve(received, private)
        with torch.no_grad(), self._kernels():
            batches = torch.split(self.client.test.x, CPU_QUERIES)
            return torch.cat([self.forward(model, self.client.view(x)).logits for x in batches])

    def _kernels(self) -> AbstractContextManager[None]:
        """The engine's kernels. Photographs get all cores, because no other client trains in this process."""
        shape = self.spec.shape
        small = len(shape) != 3 or min(shape[1:]) < SMALL_SIDE
        return cpu_kernels(self.net, self.schedule.plan.batch_size, threads_for(small, str(self.device)))


def accuracy_counts(logits: Tensor, labels: Tensor) -> dict[str, int]:
    """How many answers there are, and how many are right."""
    right = logits.argmax(1) == labels
    return {"right": int(right.sum()), "tested": len(right)}
