"""Rounds over the channel: ask the sites, check their uploads, aggregate them. And the state between two rounds."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from feddrm.deploy.privacy import Privacy
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.masked_sums import MaskedSums
from feddrm.deploy.server.reply_validation import blank_upload, check_header, check_update
from feddrm.deploy.wire.channel import REMOVED_MEMBER, Channel, Request
from feddrm.deploy.wire.fixed_point import WORD_BYTES, count_words
from feddrm.deploy.wire.masks import FEWEST_SITES, SUMMED, summed_fields
from feddrm.deploy.wire.messages import Message, pack, read_stored
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.engine import RoundSchedule, first_state
from feddrm.engine.communication import Communication, sizes_of
from feddrm.engine.rounds import UNMASKED
from feddrm.errors import FeddrmError, UnmaskedError
from feddrm.io.atomic import write_atomically
from feddrm.io.tensors import tensor_bytes
from feddrm.methods import Tensors


@dataclass(frozen=True, eq=False)
class ServerState:
    """The server's checkpoint: shared leaves, every site's last accepted round, metrics, what the rounds have sent.

    ``messages`` are the digests of the messages whose answers were accepted: which private parts the sites made then.
    """

    round: int
    shared: Tensors
    accepted: Mapping[str, int]
    history: tuple[Mapping[str, Any], ...] = ()
    communication: Communication = field(default_factory=Communication)
    messages: Mapping[str, str] = field(default_factory=dict)

    def after(self, name: str) -> dict[str, Any]:
        """The fields of a message to a site that say from which of its private parts it goes on."""
        return {"after": self.accepted[name], "after_message": self.messages.get(name)}

    def save(self, path: Path) -> None:
        header = {"round": self.round, "accepted": dict(self.accepted), "history": list(self.history)}
        header["messages"] = dict(self.messages)
        write_atomically(path, pack({**header, "communication": self.communication.saved()}, self.shared))

    @classmethod
    def load(cls, path: Path) -> ServerState:
        header, shared = read_stored(path, "put it back from a copy, or choose another 'run'")
        sent = Communication.load(header.get("communication", {}))  # older versions did not count
        return cls(
            header["round"], shared, header["accepted"], tuple(header["history"]), sent, header.get("messages", {})
        )


class Played(NamedTuple):
    """What a round brought: the shared leaves, the header of every site that answered, counts, and the loss."""

    shared: Tensors
    headers: Mapping[str, Mapping[str, Any]]
    counts: Sequence[Mapping[str, Any]]  # headers with the numbers of tested samples and of right answers
    loss: float | None
    down: Sequence[int] = ()  # the bytes of the tensors that were sent to each site that was asked
    up: Sequence[int] = ()  # and of those that came back


class Training:
    """Plays the rounds of one run; the state is passed in and out."""

    def __init__(self, settings: FederationSettings, spec: RunSpec, channel: Channel) -> None:
        self.settings, self.spec, self.channel = settings, spec, channel
        self.method = spec.make_method()
        self.schedule = RoundSchedule(self.method, spec.make_plan(), len(spec.names))
        self.sums = MaskedSums(channel, spec, settings.deadline)
        self._upload_forms: dict[bool, Tensors] = {}  # by whether the round is one of tuning

    def initial_state(self) -> ServerState:
        leaves = {leaf: value.detach() for leaf, value in self.spec.make_net().named_parameters()}
        return ServerState(0, first_state(self.method, leaves, 1).shared, dict.fromkeys(self.spec.names, 0))

    def check_method(self, state: ServerState) -> bool:
        """Have the sites try a method that is not of the package, as one process does; False if none could.

        Only a site has samples to try it on. It says no more than whether the method counts places without one.
        """
        header = {"kind": "check method", "brief": self.spec.as_dict()}
        names = [name for name in self.spec.names if name in self.channel.site_keys]
        requests: dict[str, Request] = {name: ({**header, **state.after(name)}, {}) for name in names}
        replies = self.channel.ask(
            requests, self.settings.deadline, lambda _, reply: Message(check_header(reply.header, "unmasked"), {})
        )
        if refusing := [name for name in names if name in replies and replies[name].header["unmasked"]]:
            text = UNMASKED.format(name=self.method.name)
            raise UnmaskedError(f"{text} (tried at {', '.join(refusing)}); then choose another 'run'")
        return bool(replies)

    def next_round(self, state: ServerState) -> ServerState | None:
        """Play one round with the sites that answer in time; None if they are fewer than the quorum."""
        number, began = state.round + 1, time.perf_counter()
        drawn = [self.spec.names[i] for i in self.schedule.answering(number)]
        asked = [name for name in drawn if name in self.channel.site_keys]  # a removed site is not asked any more
        self.channel.on_event("round started", {"round": number, "asked": asked})
        played = self._play_masked(state, asked) if self.spec.secure_aggregation else self._play(state, asked)
        if played is None:
            return None
        answered = list(played.headers)
        sent = state.communication.after(self.schedule.stage(number).name, played.down, played.up)
        entry: dict[str, Any] = {
            "round": number,
            "lr": self.schedule.plan.rate(number),
            "loss": played.loss,
            "asked": asked,
            "answered": answered,
            "missing": {n: self.channel.absences.get(n, REMOVED_MEMBER) for n in drawn if n not in answered},
            "seconds": time.perf_counter() - began,
            "site_seconds": max((header["seconds"] for header in played.headers.values()), default=0.0),
            "bytes_sent": {name: self.channel.bytes_sent[name] for name in answered},
            "bytes_received": {name: self.channel.bytes_received[name] for name in answered},
            **sent.totals(number),
            **accuracy(played.counts, "accuracy_before"),
        }
        if self.spec.privacy is not None:
            privacy = Privacy(**self.spec.privacy)
            entry["epsilon"] = {name: privacy.epsilon(header["uploads"]) for name, header in played.headers.items()}
        accepted = {**state.accepted, **dict.fromkeys(answered, number)}
        messages = {**state.messages, **{name: header["answers"] for name, header in played.headers.items()}}
        return ServerState(number, played.shared, accepted, (*state.history, entry), sent, messages)

    def _play(self, state: ServerState, asked: Sequence[str]) -> Played | None:
        """A round whose uploads the server sees one by one."""
        requests, form = self._requests(state, asked), self._upload_form(state)

        def check(name: str, reply: Message) -> Message:
            return check_update(reply, form, requests[name][1], self.spec.privacy is not None)

        replies = self.channel.ask(requests, self.settings.deadline, check) if asked else {}
        if asked and len(replies) < min(self.settings.quorum, len(asked)):
            return None
        answered = [name for name in self.spec.names if name in replies]  # in the order of the clients' numbers
        headers = {name: replies[name].header for name in answered}
        down = sizes_of(requests[name][1] for name in self.channel.asked) if asked else []
        if not answered:
            return Played(state.shared, headers, [], None, down)
        sizes = torch.tensor([self.spec.sizes[self.spec.names.index(name)] for name in answered]).double()
        weights = sizes / sizes.sum()
        uploads = [replies[name].tensors for name in answered]
        shared = self._aggregate(state, uploads, weights)
        losses = [header.get("loss") for header in headers.values()]
        loss = None if None in losses else float(weights @ torch.tensor(losses, dtype=torch.float64))
        return Played(shared, headers, list(headers.values()), loss, down, sizes_of(uploads))

    def _play_masked(self, state: ServerState, asked: Sequence[str]) -> Played | None:
        """A round of which the server learns sums only.

        A site sends its part of a round for one set of sites. If one of them stays away, the round is given up: asked
        again for the others, the difference of both sums would be that site's upload, should it still arrive.
        """
        if len(asked) < FEWEST_SITES:
            raise FeddrmError(
                f"{len(asked)} sites are left, secure aggregation needs {FEWEST_SITES}: add a site, choose another run"
            )
        ready = self.sums.ready(asked, state.accepted)
        if len(ready) < max(self.settings.quorum, FEWEST_SITES):
            return None
        begun = self.sums.begun(state.round + 1) or {tuple(ready)}
        chosen = set().union(*begun)
        if len(begun) > 1 or not chosen <= set(ready):
            away = ", ".join(sorted(chosen - set(ready)))
            text = f"round {state.round + 1} is given up: {away or 'a site'} left it after others had sent their part"
            self.channel.on_event("complaint", {"text": text})
            return Played(state.shared, {}, [], None)
        names, form = [name for name in self.spec.names if name in chosen], self._upload_form(state)
        private = self.spec.privacy is not None
        fields = {} if private else summed_fields(dict.fromkeys(SUMMED, 0))
        known = ("seconds", "answers", *(("uploads",) if private else ()))
        share = sum(self.spec.share_of(name) for name in names)
        requests = self._requests(state, names)
        answer = self.sums.ask(requests, {**form, **fields}, known, share)
        if answer is None:
            return None
        headers, mean = answer
        counts = {key: mean.pop(f"field/{key}").item() for key in SUMMED if fields}
        shared = self._aggregate(state, [mean], torch.ones(1, dtype=torch.float64))
        down = sizes_of(tensors for _, tensors in requests.values())
        up = [WORD_BYTES * count_words({**form, **fields})] * len(headers)  # as masked: the loss and counts are in it
        return Played(shared, headers, [counts], counts.get("loss"), down, up)

    def _upload_form(self, state: ServerState) -> Tensors:
        """An upload of the right form."""
        number = state.round + 1
        tuning = self.schedule.stage(number).tuning
        if tuning not in self._upload_forms:
            self._upload_forms[tuning] = blank_upload(self.spec, self.schedule, state.shared, number)
        return self._upload_forms[tuning]

    def _requests(self, state: ServerState, names: Sequence[str]) -> dict[str, Request]:
        header = {"kind": "train", "brief": self.spec.as_dict(), "round": state.round + 1}
        return {
            name: (
                {**header, **state.after(name)},
                self.method.send(state.shared, self.spec.names.index(name)),
            )
            for name in names
        }

    def _aggregate(self, state: ServerState, uploads: Sequence[Tensors], weights: Tensor) -> Tensors:
        """The new shared leaves."""
        shared = self.method.aggregate(state.shared, uploads, weights)
        if not all(bool(value.isfinite().all()) for value in shared.values()):
            raise FeddrmError(
                f"round {state.round + 1} ends in a model that is not finite: lower lr, choose another run"
            )
        return shared


def round_record(state: ServerState) -> dict[str, Any]:
    """What the audit trail keeps of the last round: who took part, who did not and why, the hash of the aggregate."""
    entry = state.history[-1]
    return {
        **{key: entry[key] for key in ("round", "asked", "answered", "missing")},
        "aggregate": hashlib.sha256(tensor_bytes(state.shared)).hexdigest(),
    }


def accuracy(counts: Iterable[Mapping[str, Any]], name: str) -> dict[str, float]:
    """The share of right answers over the test samples of all sites, as ``name``; empty if no site sent counts."""
    sums = [(header.get("right", 0), header.get("tested", 0)) for header in counts]
    tested = sum(tested for _, tested in sums)
    return {name: sum(right for right, _ in sums) / tested} if tested else {}
