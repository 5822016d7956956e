"""The server's half: rounds asked of sites by letter, a checkpoint after each, the router at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from feddrm.deploy.brief import Brief, stand_in
from feddrm.deploy.holdings import in_order
from feddrm.deploy.letters import ANYBODY, Letter, digest, opened, pack, seal, unpack
from feddrm.deploy.privacy import Privacy
from feddrm.deploy.routing import RoutingSettings, fit_over
from feddrm.deploy.settings import ServerSettings
from feddrm.engine import Agenda, Plan, first_state
from feddrm.errors import FeddrmError
from feddrm.files import write_atomically
from feddrm.methods import Method, Tensors
from feddrm.runs.config import resolve
from feddrm.runs.folder import RunFolder
from feddrm.runs.run import cpu_kernels

HELLO_SECONDS = 60.0
AGAIN_SECONDS = 2.0


class Courier(Protocol):
    """Whoever carries letters to nodes and brings back answers: Flower, or a test."""

    def nodes(self) -> set[int]:
        """Who can be reached now."""

    def ask(self, letters: Mapping[int, bytes], deadline: float, kind: str) -> dict[int, bytes]:
        """Answers of those who gave one within ``deadline`` seconds."""


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


@dataclass
class Server:
    """Plays the rounds of one run that are left, whatever happened before."""

    settings: ServerSettings
    folder: Path
    courier: Courier
    key: ec.EllipticCurvePrivateKey
    site_keys: Mapping[str, ec.EllipticCurvePublicKey]
    say: Callable[[str, Mapping[str, Any]], None] = field(default=lambda what, more: None)  # noqa: ARG005
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self.names = self.settings.clients
        self.at: dict[str, int] = {}  # the node of every site that has said its name
        self.strangers: set[int] = set()
        self.run = RunFolder(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.sent: dict[str, int] = {}
        self.got: dict[str, int] = {}

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def go(self) -> None:
        """To the end: rounds, the sites' own parts, the router."""
        if self.run.summary_file.exists():
            return
        brief = self._brief()
        method, plan = brief.make_method(), brief.make_plan()
        progress = self._progress(brief, method)
        with cpu_kernels(brief.make_net(), plan.batch_size):
            progress = self._train(brief, method, plan, progress)
        self._finish(brief, method, progress)

    def _train(self, brief: Brief, method: Method, plan: Plan, progress: Progress) -> Progress:
        """The rounds that are left."""
        agenda = Agenda(method, plan, len(self.names))
        while progress.round < plan.rounds:
            played = self._round(brief, method, agenda, progress)
            if played is None:
                self.say("waiting", {"round": progress.round, "for": "sites"})
                self.sleep(AGAIN_SECONDS)
                continue
            progress = played
            progress.save(self.checkpoint)
            self.say("training", {"round": progress.round, "rounds": plan.rounds, **progress.history[-1]})
            self._write_metrics(progress)
        self._write_metrics(progress)  # the last line may be missing after a crash
        return progress

    def _write_metrics(self, progress: Progress) -> None:
        lines = b"".join(json.dumps(entry).encode() + b"\n" for entry in progress.history)
        write_atomically(self.run.metrics_file, lines)

    def _brief(self) -> Brief:
        """What all agree on: made once, when every site has said what it holds, and kept."""
        path = self.folder / "brief.json"
        if path.exists():
            return Brief.of(json.loads(path.read_text()))
        told: dict[str, Letter] = {}
        while len(told) < len(self.names):
            told |= self._meet()
            missing = [name for name in self.names if name not in told]
            if missing:
                self.say("waiting", {"round": 0, "for": ", ".join(missing)})
                self.sleep(AGAIN_SECONDS)
        brief = make_brief(self.settings, {name: told[name].header for name in self.names})
        write_atomically(path, json.dumps(brief.as_dict(), indent=2).encode())
        return brief

    def _progress(self, brief: Brief, method: Method) -> Progress:
        if self.checkpoint.exists():
            return Progress.load(self.checkpoint)
        leaves = {leaf: value.detach() for leaf, value in brief.make_net().named_parameters()}
        return Progress(0, first_state(method, leaves, 1).shared, dict.fromkeys(self.names, 0))

    def _round(self, brief: Brief, method: Method, agenda: Agenda, progress: Progress) -> Progress | None:
        """One round with whoever can be reached and answers in time; None where there are too few."""
        number = progress.round + 1
        began = time.perf_counter()
        self.sent, self.got = {}, {}
        asked = [self.names[i] for i in agenda.answering(number)]
        letters = {
            name: (
                {"kind": "train", "brief": brief.as_dict(), "round": number, "after": progress.accepted[name]},
                method.send(progress.shared, self.names.index(name)),
            )
            for name in asked
        }
        answers = self._ask(letters, self.settings.deadline) if asked else {}
        if asked and len(answers) < min(self.settings.quorum, len(asked)):
            return None
        answered = [name for name in self.names if name in answers]  # in the order of their numbers
        shared, loss = progress.shared, None
        if answered:
            sizes = torch.tensor([brief.sizes[self.names.index(n)] for n in answered]).double()
            weights = sizes / sizes.sum()
            shared = method.aggregate(progress.shared, [answers[n].tensors for n in answered], weights)
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
            "bytes_sent": dict(self.sent),
            "bytes_received": dict(self.got),
            **_accuracy(answers, "accuracy_before"),
        }
        if brief.privacy is not None:
            privacy = Privacy(**brief.privacy)
            entry["epsilon"] = {n: privacy.epsilon(answers[n].header["uploads"]) for n in answered}
        accepted = {**progress.accepted, **dict.fromkeys(answered, number)}
        return Progress(number, shared, accepted, (*progress.history, entry))

    def _finish(self, brief: Brief, method: Method, progress: Progress) -> None:
        """Every site writes down its own part; the server its own, the router, and last of all the summary."""
        done: dict[str, Letter] = {}
        while len(done) < len(self.names):
            letters = {
                name: (
                    {"kind": "finish", "brief": brief.as_dict(), "after": progress.accepted[name]},
                    method.send(progress.shared, i),
                )
                for i, name in enumerate(self.names)
                if name not in done
            }
            done |= self._ask(letters, self.settings.deadline)
            if len(done) < len(self.names):
                self.say("waiting", {"round": progress.round, "for": ", ".join(n for n in self.names if n not in done)})
                self.sleep(AGAIN_SECONDS)
        self.run.publish(progress.shared, {})
        chosen = None
        if self.settings.router and brief.privacy is None:
            chosen = self._fit(brief, progress)
        summary: dict[str, Any] = {
            "rounds": progress.round,
            **_accuracy(done, "average_accuracy"),
            "accepted": dict(progress.accepted),
            "router": chosen,
        }
        if brief.privacy is not None:
            summary["privacy"] = {**brief.privacy, "epsilon": progress.history[-1].get("epsilon")}
        self.run.write_json("summary.json", summary)
        self.say("finished", {"round": progress.round, "rounds": progress.round})

    def _fit(self, brief: Brief, progress: Progress) -> dict[str, Any]:
        settings = RoutingSettings(**self.settings.routing)
        steps = 0

        def ask(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[int, Letter]:
            nonlocal steps
            steps += 1
            self.say("fitting the router", {"round": progress.round, "step": steps})
            full = {"kind": "fit", "brief": brief.as_dict(), **header}
            found: dict[str, Letter] = {}
            while not found:
                found = self._ask(dict.fromkeys(self.names, (full, tensors)), self.settings.deadline)
            return {self.names.index(name): letter for name, letter in found.items()}

        while True:
            try:
                return fit_over(ask, brief, progress.shared, settings, self.folder / "router")
            except FeddrmError as error:
                if "did not answer" not in str(error):
                    raise
                self.say("waiting", {"round": progress.round, "for": str(error)})
                self.sleep(AGAIN_SECONDS)

    def _ask(
        self, letters: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Tensor]]], deadline: float
    ) -> dict[str, Letter]:
        """Answers by name, of those who can be reached, answered in time, and had nothing to complain of."""
        self._meet()
        packed = {n: pack({**header, "to": n}, tensors) for n, (header, tensors) in letters.items() if n in self.at}
        kind = "train" if any(header["kind"] == "train" for header, _ in letters.values()) else "query"
        found: dict[str, Letter] = {}
        for node, content in self._carry({self.at[n]: packed[n] for n in packed}, deadline, kind).items():
            name = next(n for n in packed if self.at[n] == node)
            letter = self._believe(content, packed[name], name)
            if letter is not None:
                found[name] = letter
                self.sent[name], self.got[name] = len(packed[name]), len(content)
        return found

    def _meet(self) -> dict[str, Letter]:
        """Learn which of the reachable nodes are which sites; what new ones say of what they hold, by name.

        Whoever cannot sign as one of the names is a stranger, whatever he says.
        """
        here = self.courier.nodes()
        self.at = {name: node for name, node in self.at.items() if node in here}
        self.strangers &= here
        unknown = here - set(self.at.values()) - self.strangers
        hello = pack({"kind": "hello", "to": ANYBODY})
        found: dict[str, Letter] = {}
        for node, content in self._carry(dict.fromkeys(unknown, hello), HELLO_SECONDS, "query").items():
            for name in self.names:
                letter = self._believe(content, hello, name, quiet=True)
                if letter is not None:
                    found[name], self.at[name] = letter, node
                    break
            else:
                self.strangers.add(node)
                self.say("complaint", {"text": f"node {node} has none of this federation's keys: it is ignored"})
        return found

    def _carry(self, letters: Mapping[int, bytes], deadline: float, kind: str) -> dict[int, bytes]:
        if not letters:
            return {}
        return self.courier.ask({node: seal(letter, self.key) for node, letter in letters.items()}, deadline, kind)

    def _believe(self, sealed: bytes, question: bytes, name: str, quiet: bool = False) -> Letter | None:
        """The answer, if ``name`` signed it, it answers this very question, and it is no complaint."""
        try:
            letter = unpack(opened(sealed, self.site_keys[name], name))
            if letter.header.get("answers") != digest(question):
                raise FeddrmError(f"{name} answered another letter: it is left out")
            if "error" in letter.header:
                raise FeddrmError(f"{name}: {letter.header['error']}")
        except FeddrmError as error:
            if not quiet:
                self.say("complaint", {"text": str(error)})
            return None
        return letter


def make_brief(settings: ServerSettings, told: Mapping[str, Mapping[str, Any]]) -> Brief:
    """From what the sites hold and what the consortium has settled on."""
    first_name, first = next(iter(told.items()))
    for name, other in told.items():
        for key in ("shape", "dtype", "columns", "crop", "version"):
            if other[key] != first[key]:
                raise FeddrmError(
                    f"{name} has {key} {other[key]}, {first_name} {first[key]}: bring all sites to one form"
                )
    shared_names = all(other["classes"] == first["classes"] for other in told.values())
    union = {label for other in told.values() for label in other["classes"]}
    classes = tuple(first["classes"]) if shared_names else in_order(union)
    if len(classes) < 2:
        raise FeddrmError(f"all sites together have one class ({', '.join(classes)}): there is nothing to tell apart")
    names = tuple(told)
    config = resolve(
        stand_in(names, classes, first["shape"], first["dtype"]), **{**settings.training, "device": "cpu", "data": {}}
    )
    if settings.privacy is not None:
        Privacy(**settings.privacy).check(config.method)
    values = config.as_dict()
    return Brief.of(
        {
            "run": settings.run,
            "names": names,
            "sizes": [other["samples"] for other in told.values()],
            "classes": classes,
            "shape": first["shape"],
            "dtype": first["dtype"],
            "columns": first["columns"],
            "crop": first["crop"],
            "scale": first["scale"],
            "method": values["method"],
            "model": values["model"],
            "plan": {key: values[key] for key in Plan.__dataclass_fields__},
            "privacy": None if settings.privacy is None else dict(settings.privacy),
        }
    )


def _accuracy(answers: Mapping[str, Letter], name: str) -> dict[str, float]:
    """Right answers of all sites on their own test samples, weighted as the engine weights clients' test sets."""
    tested = sum(a.header.get("tested", 0) for a in answers.values())
    return {name: sum(a.header.get("right", 0) for a in answers.values()) / tested} if tested else {}
