"""The server's half: rounds asked of sites by letter, a checkpoint after each, the router at the end."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from feddrm.deploy.privacy import Privacy
from feddrm.deploy.server.federation_settings import ServerSettings
from feddrm.deploy.server.negotiation import make_brief
from feddrm.deploy.server.remote_cohort import RemoteCohort, SiteMissingError
from feddrm.deploy.wire.channel import Post, Question, Say, Transport
from feddrm.deploy.wire.messages import Message, pack, unpack
from feddrm.deploy.wire.public_files import describe_run, public_files
from feddrm.deploy.wire.reply_validation import (
    HELLO,
    MEASURED,
    BlankFit,
    blank_upload,
    check_header,
    check_sums,
    check_update,
)
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.engine import Plan, RoundSchedule, cpu_kernels, first_state
from feddrm.errors import FeddrmError
from feddrm.io.atomic import write_atomically
from feddrm.methods import Method, Tensors
from feddrm.router.artifact import MANIFEST, read_manifest
from feddrm.router.fit.cohort import Trunk
from feddrm.router.fit.fit_router import fit_cohort
from feddrm.runs.folder import RunFolder

AGAIN_SECONDS = 2.0
PATIENCE = 30  # times that all wait for one site which answers, but not what can be used


@dataclass(frozen=True, eq=False)
class Progress:
    """All the server remembers: the shared leaves, whose answer of which round it took last, and what happened."""

    round: int
    shared: Tensors
    accepted: Mapping[str, int]
    history: tuple[Mapping[str, Any], ...] = ()

    def save(self, path: Path) -> None:
        header = {"round": self.round, "accepted": dict(self.accepted), "history": list(self.history)}
        write_atomically(path, pack(header, self.shared))

    @classmethod
    def load(cls, path: Path) -> Progress:
        header, shared = unpack(path.read_bytes())
        return cls(header["round"], shared, header["accepted"], tuple(header["history"]))


class Server:
    """Plays the rounds of one run that are left, whatever happened before."""

    def __init__(
        self,
        settings: ServerSettings,
        folder: Path,
        courier: Transport,
        key: ec.EllipticCurvePrivateKey,
        site_keys: Mapping[str, ec.EllipticCurvePublicKey],
        say: Say,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings, self.folder, self.say, self.sleep = settings, folder, say, sleep
        self.names = settings.clients
        self.post = Post(courier, key, site_keys, say)
        self.run = RunFolder(folder)
        self._refusals: Counter[str] = Counter()  # how often all have waited for a site that refused
        self._forms: dict[bool, Tensors] = {}  # of an upload, while clients only tune and before
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def go(self) -> None:
        """To the end: rounds, the router, the sites' own parts."""
        if self.run.summary_file.exists():
            return
        brief = self._brief()
        describe_run(self.folder, brief)
        method, plan = brief.make_method(), brief.make_plan()
        progress = self._progress(brief, method)
        with cpu_kernels(brief.make_net(), plan.batch_size):
            progress = self._train(brief, method, plan, progress)
        self._finish(brief, method, progress)

    def _train(self, brief: RunSpec, method: Method, plan: Plan, progress: Progress) -> Progress:
        """The rounds that are left."""
        agenda = RoundSchedule(method, plan, len(self.names))
        while progress.round < plan.rounds:
            played = self._round(brief, method, agenda, progress)
            if played is None:
                self.say("waiting", {"round": progress.round, "for": self._silent(self.names)})
                self.sleep(AGAIN_SECONDS)
                continue
            progress = played
            progress.save(self.checkpoint)
            self.say("training", {"round": progress.round, "rounds": plan.rounds, **progress.history[-1]})
            self._write_metrics(progress)
        self._write_metrics(progress)  # the last line may be missing after a crash
        return progress

    def _silent(self, names: Sequence[str]) -> str:
        """Who of them has not answered the last letters, and why not where that is known."""
        missing = [name for name in names if name not in self.post.sent]
        why = self.post.refused
        return ", ".join(f"{name} ({why[name]})" if name in why else name for name in missing)

    def _wait(self, progress: Progress, names: Sequence[str]) -> None:
        """For sites without which nothing goes on; one that is away may come back, one that refuses must be seen to."""
        for name, reason in self.post.refused.items():
            self._refusals[name] += 1
            if self._refusals[name] >= PATIENCE:
                raise FeddrmError(
                    f"{name}: {reason} (said {PATIENCE} times; then 'feddrm deploy run' goes on from here)"
                )
        self.say("waiting", {"round": progress.round, "for": self._silent(names)})
        self.sleep(AGAIN_SECONDS)

    def _write_metrics(self, progress: Progress) -> None:
        lines = b"".join(json.dumps(entry).encode() + b"\n" for entry in progress.history)
        write_atomically(self.run.metrics_file, lines)

    def _brief(self) -> RunSpec:
        """What all agree on: made once, when every site has said what it holds, and kept."""
        path = self.folder / "brief.json"
        self.settings.check_same(self.folder)
        if path.exists():
            return RunSpec.of(json.loads(path.read_text()))
        told: dict[str, Message] = {}
        while len(told) < len(self.names):
            for name, letter in self.post.meet().items():
                usable = self.post.usable(name, letter, lambda _, said: Message(check_header(said.header, *HELLO), {}))
                if usable is None:
                    self.post.at.pop(name)  # it is asked again
                else:
                    told[name] = usable
            missing = [name for name in self.names if name not in told]
            if missing:
                self.say("waiting", {"round": 0, "for": ", ".join(missing)})
                self.sleep(AGAIN_SECONDS)
        brief = make_brief(self.settings, {name: told[name].header for name in self.names})
        self.settings.begin(self.folder)
        write_atomically(path, json.dumps(brief.as_dict(), indent=2).encode())
        return brief

    def _progress(self, brief: RunSpec, method: Method) -> Progress:
        if self.checkpoint.exists():
            return Progress.load(self.checkpoint)
        leaves = {leaf: value.detach() for leaf, value in brief.make_net().named_parameters()}
        return Progress(0, first_state(method, leaves, 1).shared, dict.fromkeys(self.names, 0))

    def _round(self, brief: RunSpec, method: Method, agenda: RoundSchedule, progress: Progress) -> Progress | None:
        """One round with whoever can be reached and answers in time; None where there are too few."""
        number = progress.round + 1
        began = time.perf_counter()
        asked = [self.names[i] for i in agenda.answering(number)]
        letters = {
            name: (
                {"kind": "train", "brief": brief.as_dict(), "round": number, "after": progress.accepted[name]},
                method.send(progress.shared, self.names.index(name)),
            )
            for name in asked
        }
        answers = self._updates(brief, agenda, progress, letters) if asked else {}
        if asked and len(answers) < min(self.settings.quorum, len(asked)):
            return None
        answered = [name for name in self.names if name in answers]  # in the order of their numbers
        shared, loss = progress.shared, None
        if answered:
            sizes = torch.tensor([brief.sizes[self.names.index(n)] for n in answered]).double()
            weights = sizes / sizes.sum()
            shared = method.aggregate(progress.shared, [answers[n].tensors for n in answered], weights)
            if not all(bool(value.isfinite().all()) for value in shared.values()):
                raise FeddrmError(f"round {number} ends in a model that is not finite: lower lr, choose another run")
            losses = [answers[n].header.get("loss") for n in answered]
            loss = None if None in losses else float(weights @ torch.tensor(losses, dtype=torch.float64))
        entry: dict[str, Any] = {
            "round": number,
            "lr": agenda.plan.rate(number),
            "loss": loss,
            "asked": asked,
            "answered": answered,
            "seconds": time.perf_counter() - began,
            "site_seconds": max((answers[n].header["seconds"] for n in answered), default=0.0),
            "bytes_sent": dict(self.post.sent),
            "bytes_received": dict(self.post.got),
            **_accuracy(answers, "accuracy_before"),
        }
        if brief.privacy is not None:
            privacy = Privacy(**brief.privacy)
            entry["epsilon"] = {n: privacy.epsilon(answers[n].header["uploads"]) for n in answered}
        accepted = {**progress.accepted, **dict.fromkeys(answered, number)}
        return Progress(number, shared, accepted, (*progress.history, entry))

    def _updates(
        self, brief: RunSpec, agenda: RoundSchedule, progress: Progress, letters: Mapping[str, Question]
    ) -> dict[str, Message]:
        number = progress.round + 1
        tuning = agenda.stage(number).tuning
        if tuning not in self._forms:
            self._forms[tuning] = blank_upload(brief, agenda, progress.shared, number)

        def check(name: str, letter: Message) -> Message:
            return check_update(letter, self._forms[tuning], letters[name][1], brief.privacy is not None)

        return self.post.ask(letters, self.settings.deadline, check)

    def _finish(self, brief: RunSpec, method: Method, progress: Progress) -> None:
        """The server writes its own part and the router, every site its own and what is public; last the summary."""
        self.run.publish(progress.shared, {})
        chosen = self._fit(brief, progress) if self.settings.router and brief.privacy is None else None
        files = public_files(self.folder)
        done: dict[str, Message] = {}
        fields = () if brief.privacy is not None else MEASURED
        self._refusals.clear()
        while missing := [name for name in self.names if name not in done]:
            letters = {
                name: (
                    {"kind": "finish", "brief": brief.as_dict(), "after": progress.accepted[name]},
                    {**method.send(progress.shared, self.names.index(name)), **files},
                )
                for name in missing
            }
            done |= self.post.ask(
                letters, self.settings.deadline, lambda _, said: Message(check_header(said.header, *fields), {})
            )
            if len(done) < len(self.names):
                self._wait(progress, missing)
        summary: dict[str, Any] = {
            "rounds": progress.round,
            **_accuracy(done, "average_accuracy"),
            "accepted": dict(progress.accepted),
            "router": chosen,
        }
        if brief.privacy is not None:
            spent = {name: epsilon for entry in progress.history for name, epsilon in entry["epsilon"].items()}
            summary["privacy"] = {**brief.privacy, "epsilon": spent}
        self.run.write_json(self.run.summary_file, summary)
        self.say("finished", {"round": progress.round, "rounds": progress.round})

    def _fit(self, brief: RunSpec, progress: Progress) -> dict[str, Any]:
        place = self.folder / "router"
        if (place / MANIFEST).exists():  # the server ended after the fit
            return dict(read_manifest(place)["notes"]["chosen"])
        with TemporaryDirectory() as folder:
            return self._fit_like(BlankFit(brief, Path(folder)), brief, progress)

    def _fit_like(self, blank: BlankFit, brief: RunSpec, progress: Progress) -> dict[str, Any]:
        settings = self.settings.router_settings
        sizes = dict(zip(brief.names, brief.sizes, strict=True))
        steps = 0
        self._refusals.clear()

        def ask(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[int, Message]:
            nonlocal steps
            steps += 1
            self.say("fitting the router", {"round": progress.round, "step": steps})
            full = {"kind": "fit", "brief": brief.as_dict(), **header}
            letters = dict.fromkeys(self.names, (full, tensors))
            form = blank.answer(header, tensors)

            def check(name: str, letter: Message) -> Message:
                return check_sums(letter, form, sizes[name] * cohort.crops)

            while not (found := self.post.ask(letters, self.settings.deadline, check)):
                self._wait(progress, self.names)
            return {self.names.index(name): letter for name, letter in found.items()}

        cohort = RemoteCohort(ask, brief.facts, brief.crop, settings)
        trunk = Trunk(brief.make_net().requires_grad_(False), progress.shared)
        while True:
            try:
                fitted = fit_cohort(cohort, trunk, settings)
                fitted.save(self.folder / "router", dict(brief.model))
                return dict(fitted.chosen)
            except SiteMissingError:  # the fit begins again when it is back
                self._wait(progress, self.names)


def _accuracy(answers: Mapping[str, Message], name: str) -> dict[str, float]:
    """Right answers of all sites on their own test samples, weighted as the engine weights clients' test sets."""
    tested = sum(a.header.get("tested", 0) for a in answers.values())
    return {name: sum(a.header.get("right", 0) for a in answers.values()) / tested} if tested else {}
