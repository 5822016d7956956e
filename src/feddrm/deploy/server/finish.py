"""The end of a run: fit the router over the channel, send every site its last message, write the summary."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from torch import Tensor

from feddrm.deploy.privacy import Privacy
from feddrm.deploy.records.audit_trail import AuditTrail
from feddrm.deploy.server.federation_settings import FederationSettings
from feddrm.deploy.server.masked_sums import MaskedSums
from feddrm.deploy.server.remote_cohort import NO_ROWS, RemoteCohort, Rows, SiteMissingError
from feddrm.deploy.server.reply_validation import ACCURACY_FIELDS, BlankFit, check_answers, check_sums
from feddrm.deploy.server.training import ServerState, accuracy
from feddrm.deploy.server.waiting import Waiting
from feddrm.deploy.wire.channel import Request
from feddrm.deploy.wire.masks import summed_fields
from feddrm.deploy.wire.messages import Message
from feddrm.deploy.wire.public_files import public_tensors
from feddrm.deploy.wire.run_spec import FIT_PROTOCOL, RunSpec
from feddrm.errors import FeddrmError
from feddrm.evaluation.answer_metrics import answer_sums, metrics_of_sums
from feddrm.io.staging import settle_run
from feddrm.methods import Tensors
from feddrm.router import RouterSettings, load_router
from feddrm.router.artifact import MANIFEST, load_heads, read_manifest
from feddrm.router.fit.cohort import Trunk
from feddrm.router.fit.fit_router import fit_cohort
from feddrm.runs.folder import RunFolder

TRAFFIC = ("messages", "bytes_to_a_site", "bytes_from_a_site")
Fitted = TypeVar("Fitted")


class Finish:
    """What follows the last round. Every step can be repeated after a crash."""

    def __init__(
        self, settings: FederationSettings, folder: RunFolder, waiting: Waiting, spec: RunSpec, state: ServerState
    ) -> None:
        self.settings, self.folder, self.waiting, self.spec, self.state = settings, folder, waiting, spec, state
        self.channel = waiting.channel
        self.sums = MaskedSums(self.channel, spec, settings.deadline)

    def run(self, audit: AuditTrail) -> None:
        """Publish the shared leaves and the router, finish at every site, and write the summary last."""
        settle_run(self.folder)
        self.folder.publish(self.state.shared, (), ())
        chosen = self.fit_router() if self.settings.router and self.spec.privacy is None else None
        if chosen is not None:
            manifest = (self.folder.router / MANIFEST).read_bytes()
            audit.append("router", {"chosen": chosen, "manifest": hashlib.sha256(manifest).hexdigest()})
            fitted = {key: chosen["router"][key] for key in ("recipe", "ridge", "held_out_loss", "held_out_accuracy")}
            self.channel.on_event("router fitted", fitted)
        comparison = self.compare()
        if comparison is not None:
            audit.append("comparison", comparison)
        masked = self._masked_answers() if self.spec.secure_aggregation and self.spec.privacy is None else {}
        replies = self._finish_sites()
        removed = self._removed()
        audit.append("finished", {"rounds": self.state.round, "answered": sorted(replies), "removed": removed})
        summary: dict[str, Any] = {
            "rounds": self.state.round,
            **accuracy((reply.header for reply in replies.values()), "average_accuracy"),
            **(masked if self.spec.secure_aggregation else self._write_metrics(replies)),
            "accepted": dict(self.state.accepted),
            **self._communication(),
            "router": chosen,
            **({"comparison": comparison} if comparison is not None else {}),
            **({"removed": removed} if removed else {}),
            "audit": audit.end.as_dict(),
        }
        if self.spec.privacy is not None:
            spent = {name: epsilon for entry in self.state.history for name, epsilon in entry["epsilon"].items()}
            summary["privacy"] = {**asdict(Privacy(**self.spec.privacy)), "epsilon": spent}
        self.channel.on_event("evaluation", {key: summary.get(key) for key in ("average_accuracy", "without_metrics")})
        self.folder.write_json(self.folder.summary_file, summary)
        self.channel.on_event("finished", {"round": self.state.round, "rounds": self.state.round})

    def _communication(self) -> dict[str, Any]:
        """What the rounds have sent, and how large the messages were, with headers, of the sites that answered."""
        ways = {"message_bytes_down": "bytes_sent", "message_bytes_up": "bytes_received"}
        whole = {name: sum(sum(one[key].values()) for one in self.state.history) for name, key in ways.items()}
        entry = self.state.communication.summary(self.state.round)
        return {key: {**figures, **whole} for key, figures in entry.items()}

    def _write_metrics(self, replies: Mapping[str, Message]) -> dict[str, Any]:
        """Write each site's accuracy and the confusion of classes; returns the metrics, or which sites sent no sums."""
        if self.spec.privacy is not None:
            return {}
        sent = [name for name in self.spec.names if name in replies]
        if silent := [name for name in sent if not replies[name].tensors]:
            return {"without_metrics": silent}
        tested = {name: replies[name].header["tested"] for name in sent}
        if not any(tested.values()):
            return {}
        right = {name: replies[name].header["right"] / count if count else None for name, count in tested.items()}
        rows = [{"name": n, "train": self.sizes[n], "test": tested[n], "own": right[n]} for n in sent]
        sums = [replies[name].tensors for name in sent]
        self._write_detail(rows, torch.stack([one["confusion"] for one in sums]).sum(0))
        return {"metrics": {"own": metrics_of_sums(sums, sent)}}

    def _masked_answers(self) -> dict[str, Any]:
        """The sum of all sites' answers for the summary, with metrics if every site shares them.

        Nothing is known of single sites. Once a site is removed there is no sum over all sites of the run any more.
        """
        method, blank = self.spec.make_method(), torch.zeros(1, len(self.spec.classes)).log_softmax(1)
        form = {
            **summed_fields({"right": 0, "tested": 0}),
            **answer_sums(blank, torch.zeros(1, dtype=torch.int64)),
        }
        header = {"kind": "answers", "brief": self.spec.as_dict()}
        self.waiting.refusals.clear()
        while not self._removed():
            requests: dict[str, Request] = {
                name: ({**header, **self.state.after(name)}, method.send(self.state.shared, number))
                for number, name in enumerate(self.spec.names)
            }
            try:
                headers, total = self._ask_sum(requests, form, ("metrics",))
            except SiteMissingError:
                self.waiting.pause_for_all(self.state.round, self.sums.missing)
                continue
            counts = {key: int(total.pop(f"field/{key}")) for key in ACCURACY_FIELDS}
            out: dict[str, Any] = accuracy([counts], "average_accuracy")
            if silent := [name for name, fields in headers.items() if not fields["metrics"]]:
                return {**out, "without_metrics": silent}
            check_answers(Message(counts, total), len(self.spec.classes))
            self._write_detail([{"name": n, "train": s} for n, s in self.sizes.items()], total["confusion"])
            return {**out, "metrics": {"own": metrics_of_sums([total], [""]) | {"worst_client": None}}} if out else {}
        return {}

    def _ask_sum(
        self, requests: Mapping[str, Request], form: Tensors, fields: Sequence[str] = ()
    ) -> tuple[dict[str, dict[str, Any]], Tensors]:
        """One masked question to all sites of the run."""
        if len(self.sums.ready(self.spec.names, self.state.accepted)) == len(self.spec.names):
            answer = self.sums.ask(requests, form, fields)
            if answer is not None:
                return answer
        raise SiteMissingError(f"a sum over all sites needs {', '.join(self.sums.missing)}: it is asked for again")

    def _write_detail(self, rows: Sequence[Mapping[str, Any]], confusion: Tensor) -> None:
        detail = {"round": self.state.round, "per_client": rows, "class_confusion": {"own": confusion.tolist()}}
        self.folder.write_json(self.folder.evaluation_file, detail)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.spec.names, self.spec.sizes, strict=True))

    def _removed(self) -> list[str]:
        """The sites of this run that are no members any more."""
        return [name for name in self.spec.names if name not in self.channel.site_keys]

    def _finish_sites(self) -> dict[str, Message]:
        """Send the last message until every site has answered it."""
        method, files = self.spec.make_method(), public_tensors(self.folder.path)
        classes = len(self.spec.classes)

        def check(_: str, reply: Message) -> Message:
            silent = self.spec.privacy is not None or self.spec.secure_aggregation
            return Message({}, {}) if silent else check_answers(reply, classes)

        replies: dict[str, Message] = {}
        self.waiting.refusals.clear()
        while missing := [n for n in self.spec.names if n not in replies and n not in self._removed()]:
            requests = {
                name: (
                    {"kind": "finish", "brief": self.spec.as_dict(), **self.state.after(name)},
                    {**method.send(self.state.shared, self.spec.names.index(name)), **files},
                )
                for name in missing
            }
            replies |= self.channel.ask(requests, self.settings.deadline, check)
            if any(name not in replies for name in missing):
                self.waiting.pause_for_all(self.state.round, missing)
        return replies

    def fit_router(self) -> dict[str, Any] | None:
        """Fit and write the router; returns how it was chosen. A whole router that an earlier process fitted is kept.

        Without the samples of a removed site the run's router cannot be fitted: None is returned.
        """
        place = self.folder.router
        if (place / MANIFEST).exists():
            try:
                load_router(place), load_heads(place)
                return dict(read_manifest(place)["notes"]["chosen"])
            except FeddrmError as error:  # the sites would get what cannot be read
                what = str(error).partition(":")[0]
                self.channel.on_event("complaint", {"text": f"{what}: the router is fitted again"})
        with TemporaryDirectory() as folder:
            return self._fit_router(BlankFit(self.spec, Path(folder)))

    def _fit_router(self, blank: BlankFit) -> dict[str, Any] | None:
        settings = self.settings.router_settings
        trunk = Trunk(self.spec.make_net().requires_grad_(False), self.state.shared)
        began, traffic = time.monotonic(), dict.fromkeys(TRAFFIC, 0)
        cohort = self._cohort(settings, blank, "fitting the router", traffic)
        fitted = self._with_all_sites("router", lambda: fit_cohort(cohort, trunk, settings))
        if fitted is None:
            return None
        fitted.save(self.folder.router, dict(self.spec.model))
        self.folder.write_json(self.folder.traffic_file, {**traffic, "seconds": time.monotonic() - began})
        return dict(fitted.chosen)

    def compare(self) -> dict[str, Any] | None:
        """The density ratio model of the sites' populations as plain values, where the settings ask for one."""
        if (wanted := self.settings.comparison) is None:
            return None
        from feddrm.comparison import IncomparableError, fit_populations

        with TemporaryDirectory() as folder:
            blank = BlankFit(self.spec, Path(folder))
            cohort = self._cohort(RouterSettings(), blank, "comparing the sites", dict.fromkeys(TRAFFIC, 0))
            try:
                found = self._with_all_sites("comparison", lambda: fit_populations(cohort, **wanted))
            except IncomparableError as error:  # the training stands all the same
                self.channel.on_event("complaint", {"text": f"no comparison: {error}"})
                return {**wanted, "problem": str(error)}
        return None if found is None else {**wanted, **found.as_dict()}

    def _with_all_sites(self, noun: str, fit: Callable[[], Fitted]) -> Fitted | None:
        """A fit that starts again when a missing site is back; None once a site of the run was removed."""
        self.waiting.refusals.clear()
        while True:
            try:
                return fit()
            except SiteMissingError as error:
                if self._removed():
                    self.channel.on_event("complaint", {"text": f"no {noun} is fitted: {error}: start another 'run'"})
                    return None
                secure = self.spec.secure_aggregation
                self.waiting.pause_for_all(self.state.round, self.sums.missing if secure else self.spec.names)

    def _cohort(self, settings: RouterSettings, blank: BlankFit, event: str, traffic: dict[str, int]) -> RemoteCohort:
        """The sites as a fit sees them. ``traffic`` counts messages and bytes."""
        names, sizes, secure = self.spec.names, self.sizes, self.spec.secure_aggregation

        def ask(header: Mapping[str, Any], tensors: Mapping[str, Tensor], rows: Rows = NO_ROWS) -> dict[int, Message]:
            traffic["messages"] += 1
            self.channel.on_event(
                event, {"round": self.state.round, "step": traffic["messages"], "question": header["step"]}
            )
            whole = {"kind": "fit", "brief": self.spec.as_dict(), "fit_protocol": FIT_PROTOCOL, **header}
            requests: dict[str, Request] = {
                name: (whole, {**tensors, **rows.to_site(number)}) for number, name in enumerate(names)
            }
            form = blank.answer(header, requests[names[0]][1])

            def check(name: str, reply: Message) -> Message:
                return check_sums(reply, form, sizes[name] * cohort.crops, rows.of_site(names.index(name)))

            def added() -> dict[int, Message]:
                total = Message({}, self._ask_sum(requests, form)[1])
                return {0: check_sums(total, form, sum(sizes.values()) * cohort.crops)}

            def separate() -> dict[int, Message]:
                while not (replies := self.channel.ask(requests, self.settings.deadline, check)):
                    self.waiting.pause_for_all(self.state.round, names)
                return {names.index(name): reply for name, reply in replies.items()}

            answers = added() if secure else separate()
            traffic["bytes_to_a_site"] += max(self.channel.bytes_sent.values())
            traffic["bytes_from_a_site"] += max(self.channel.bytes_received.values())
            if removed := self._removed():
                raise SiteMissingError(f"{', '.join(removed)} was removed during the run")
            return answers

        cohort = RemoteCohort(ask, self.spec.facts, self.spec.crop, settings, pooled=secure)
        return cohort
