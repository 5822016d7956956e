"""The server of a deployed federation: negotiate the run spec, play the rounds that are left, finish."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from feddrm.deploy.records.audit_trail import AUDIT, AuditTrail
from feddrm.deploy.server.federation_settings import RUN_SPEC, FederationSettings
from feddrm.deploy.server.finish import Finish
from feddrm.deploy.server.negotiation import make_run_spec
from feddrm.deploy.server.reply_validation import HELLO_FIELDS, check_header
from feddrm.deploy.server.training import ServerState, Training, round_record
from feddrm.deploy.server.waiting import Waiting
from feddrm.deploy.wire.channel import Channel
from feddrm.deploy.wire.key_files import fingerprint
from feddrm.deploy.wire.messages import Message
from feddrm.deploy.wire.public_files import describe_run
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.engine import cpu_kernels
from feddrm.engine.rounds import is_untested
from feddrm.io.atomic import write_atomically
from feddrm.io.run_files import CHECKPOINT
from feddrm.io.text import json_bytes, json_line, read_json
from feddrm.runs.folder import RunFolder


class Server:
    """One run of a federation. All state is on disk, so the process may be killed and started again at any time."""

    def __init__(
        self,
        settings: FederationSettings,
        folder: Path,
        channel: Channel,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings, self.folder, self.channel = settings, folder, channel
        self.run = RunFolder(folder)
        self.waiting = Waiting(channel, sleep)
        folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def audit(self) -> AuditTrail:
        return AuditTrail(self.folder / AUDIT)

    @property
    def checkpoint(self) -> Path:
        return self.folder / CHECKPOINT

    def go(self) -> None:
        """Do what is left of the run: rounds, the router, the last message to every site."""
        if self.run.summary_file.exists():
            return
        spec = self.run_spec()
        describe_run(self.folder, spec)
        training = Training(self.settings, spec, self.channel)
        self._begin(spec, self.state(training).round)
        with cpu_kernels(spec.make_net(), training.schedule.plan.batch_size):
            state = self._train(training)
        Finish(self.settings, self.run, self.waiting, spec, state).run(self.audit)

    def _begin(self, spec: RunSpec, done: int) -> None:
        """Tell that the run starts, or continues after the ``done`` rounds, and note it in the audit trail."""
        if self.audit.end.lines:
            self.audit.append("continued", {"after_round": done})
        else:
            keys = {name: fingerprint(key) for name, key in self.channel.site_keys.items()}
            decided = {"spec": spec.as_dict(), "settings": asdict(self.settings), "keys": keys, "after_round": done}
            self.audit.append("run", json.loads(json.dumps(decided)))  # plain values, as a reader gets them
        self.channel.stamp = self.audit.stamp
        begun = {"run": spec.run, "method": spec.method["name"], "sites": list(spec.names)}
        self.channel.on_event("run started", {**begun, "rounds": spec.make_plan().rounds, "after_round": done})

    def run_spec(self) -> RunSpec:
        """The run spec: made once, when every site has said what data it has, and then read from disk."""
        path = self.folder / RUN_SPEC
        self.settings.check_same(self.folder)
        if path.exists():
            return RunSpec.of(read_json(path, "put it back from a copy, or choose another 'run'"))
        spec = make_run_spec(self.settings, {name: hello.header for name, hello in self._hellos().items()})
        self.settings.record(self.folder)
        write_atomically(path, json_bytes(spec.as_dict()))
        return spec

    def _hellos(self) -> dict[str, Message]:
        """Wait until every site has sent a usable hello."""
        hellos: dict[str, Message] = {}
        missing: list[str] = []
        while True:
            for name, reply in self.channel.discover().items():
                usable = self.channel.checked(
                    name, reply, lambda _, reply: Message(check_header(reply.header, *HELLO_FIELDS), {})
                )
                if usable is None:
                    self.channel.nodes.pop(name)  # it gets another hello
                else:
                    hellos[name] = usable
                    self.channel.attendance.heard_from(name)
                    if name in missing:  # else it would be shown as missing until its first round is over
                        self.channel.on_event("site answered", {"site": name, "kind": "hello"})
            members = [name for name in self.settings.clients if name in self.channel.site_keys]
            missing = [name for name in members if name not in hellos]
            if not missing:
                return {name: hellos[name] for name in members}
            for name in missing:
                self.channel.attendance.left_out(name)
                refusal = self.channel.refusals.get(name)
                reason = "not connected" if refusal is None else f"refused: {refusal}"
                self.channel.on_event("site missing", {"site": name, "kind": "hello", "reason": reason})
            shown = {name: self.channel.refusals.get(name, "not connected") for name in missing}
            self.waiting.pause(0, ", ".join(f"{name} ({reason})" for name, reason in shown.items()))

    def state(self, training: Training) -> ServerState:
        """The state after the last finished round."""
        return ServerState.load(self.checkpoint) if self.checkpoint.exists() else training.initial_state()

    def _train(self, training: Training) -> ServerState:
        """Play the rounds that are left."""
        state, rounds = self.state(training), training.schedule.plan.rounds
        while not state.round and is_untested(training.method) and not training.check_method(state):
            self.waiting.pause(0, self.channel.missing(training.spec.names))
        while state.round < rounds:
            played = training.next_round(state)
            if played is None and training.spec.secure_aggregation:  # a sum needs each of its sites
                self.waiting.pause_for_all(state.round, training.sums.missing)
            elif played is None:
                self.waiting.pause(state.round, self.channel.missing(training.spec.names))
            if played is None:
                continue
            self.waiting.refusals.clear()
            state = played
            self.audit.append("round", round_record(state))  # before the checkpoint: no round goes without its line
            state.save(self.checkpoint)
            self.channel.on_event("round finished", {"round": state.round, "rounds": rounds, **state.history[-1]})
            if "epsilon" in state.history[-1]:
                spent = {"round": state.round, "epsilon": state.history[-1]["epsilon"]}
                self.channel.on_event("privacy spent", spent)
            self._write_metrics(state)
        self._write_metrics(state)  # after a crash the last line may be missing
        return state

    def _write_metrics(self, state: ServerState) -> None:
        write_atomically(self.run.metrics_file, b"".join(map(json_line, state.history)))
