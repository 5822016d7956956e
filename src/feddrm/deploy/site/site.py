"""A site: verifies the server's messages, answers them from its own data, and keeps what is private."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from feddrm._version import __version__
from feddrm.data import DEPLOYED, Client, Federation
from feddrm.deploy.privacy import Privacy, PrivacyDemand, UploadCount
from feddrm.deploy.rotating_log import LOG, log
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.site.site_dataset import BACK, SiteDataset, read_site_dataset
from feddrm.deploy.site.site_fit import ROW_STEPS
from feddrm.deploy.site.site_masks import Masking, SiteMasks
from feddrm.deploy.site.site_run import SiteRun, accuracy_counts
from feddrm.deploy.site.site_settings import SiteSettings
from feddrm.deploy.site.site_status import CONFIG, SiteStatus
from feddrm.deploy.site.without_places import without_places
from feddrm.deploy.wire.key_files import load_private_key, load_public_key
from feddrm.deploy.wire.masks import MASK_PROTOCOL, SUMMED, required_masks, summed_fields
from feddrm.deploy.wire.messages import ANY_SITE, Message, digest, pack, sign, unpack, verify
from feddrm.deploy.wire.public_files import SOURCE, received_artifact, without_public, write_public
from feddrm.deploy.wire.run_spec import FIT_PROTOCOL, RunSpec
from feddrm.errors import FeddrmError, SettingError, UnmaskedError
from feddrm.evaluation.answer_metrics import answer_sums
from feddrm.io.run_files import RunFiles
from feddrm.io.tensors import join_slots, tensor_bytes
from feddrm.io.text import yaml_bytes
from feddrm.methods import Tensors
from feddrm.router.answer_calibration import AnswerCalibration
from feddrm.router.artifact import HEADS
from feddrm.tables.table_schema import TableSchema
from feddrm.threads import router_kernels

KEY, SERVER_KEY, UPLOADS = "node.key", "server.pub", "uploads.json"


class Site:
    """Answers messages. All lasting state is on disk, so the process may be killed at any time."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.settings = SiteSettings.read(self.folder)
        self.name = self.settings.name
        self.key = load_private_key(self.folder / KEY)
        self.server_key = load_public_key(self.folder / SERVER_KEY)
        self.dataset = read_site_dataset(self.name, self.settings.data, self.folder)
        if self.settings.share.features and self.dataset.subjects is not None:
            raise SettingError(
                f"{self.folder / CONFIG}: 'share: {{features: true}}' needs folds that the server knows, and those of "
                "data with subjects are known here alone: remove it, or the subjects"
            )
        self.demand = None if self.settings.privacy is None else PrivacyDemand(**self.settings.privacy)
        self.uploads = UploadCount(self.folder / UPLOADS)
        self.masks = SiteMasks(self.folder, self.name, self.key, self.settings.fewest_sites)
        self.status = SiteStatus(self.folder)
        self._warn()
        self._run: SiteRun | None = None
        self._message = ""  # the digest of the one that is answered
        self._data: tuple[RunSpec, Client, str] | None = None
        self._handlers: dict[str, Callable[[Message], bytes]] = {
            "hello": self._hello,
            "check method": self._check_method,
            "train": self._train,
            "finish": self._finish,
            "fit": self._fit,
            "mask key": self._mask_key,
            "answers": self._answers,
            "waiting": lambda _: pack({}),  # only for the site's status
        }

    def _warn(self) -> None:
        """Tell this site, and nobody else, what its samples should be looked at for."""
        warnings = self.dataset.warnings()
        for warning in warnings:
            log.warning("its samples: %s", warning)
        self.status.samples(warnings)

    def handle(self, signed: bytes) -> bytes:
        """The signed reply to a message of the server. Any other message raises an error and gets no reply."""
        content = verify(signed, self.server_key, "the server")
        request = unpack(content)
        if request.header.get("to") != (ANY_SITE if request.header.get("kind") == "hello" else self.name):
            raise FeddrmError(
                f"a message to '{request.header.get('to')}' reached '{self.name}': check who has which key"
            )
        began, self._message = time.perf_counter(), digest(content)
        self.status.message(request.header)
        try:
            body = self._handlers[request.header["kind"]](request)
        except FeddrmError as error:
            body = pack({"error": without_places(str(error), self.folder)})
            self.status.message(request.header, str(error))
        except Exception as error:  # the server must get a reply whatever happens, or it waits for it
            body = pack({"error": f"{type(error).__name__} at {self.name}: see its log"})
            # In full on the site's own disk only. The server learns that there was one.
            log.exception("a fault while answering a message")
            self.status.message(request.header, f"{type(error).__name__}, see {LOG}")
        header, tensors = unpack(body)
        header |= {"from": self.name, "answers": self._message, "seconds": time.perf_counter() - began}
        answer = sign(pack(header, tensors), self.key)
        self.status.answered(request.header, header, {"bytes_received": len(signed), "bytes_sent": len(answer)})
        return answer

    def _hello(self, request: Message) -> bytes:  # noqa: ARG002
        """What the server must know of a site's data: how many samples, their form, their classes."""
        client, sums, table = self.dataset.client(self.dataset.classes), self.dataset.sums, self.dataset.table
        self.settings.floors.check_client(client, tested=self.demand is None)
        if sums is not None and table is not None:
            self.settings.floors.check_columns(sums, table.rows, self.dataset.counted)
        return pack(
            {
                "samples": len(client.train),
                "shape": list(client.train.x.shape[1:]),
                "dtype": str(client.train.x.dtype).removeprefix("torch."),
                "classes": list(self.dataset.classes),
                "columns": None if self.dataset.columns is None else list(self.dataset.columns),
                "schema": None if self.dataset.schema is None else self.dataset.schema.as_dict(),
                "column_sums": None if sums is None else {name: column.as_dict() for name, column in sums.items()},
                "crop": self.dataset.crop,
                "scale": [list(client.view.mean), list(client.view.std)],
                "version": __version__,
                "fit_protocol": FIT_PROTOCOL,
                "share_features": self.settings.share.features,
                "masks": {
                    "protocol": MASK_PROTOCOL,
                    "required": self.settings.require_secure_aggregation,
                    "fewest": self.settings.fewest_sites,
                },
                "privacy": None if self.demand is None else {"clip": self.demand.clip, "noise": self.demand.noise},
            }
        )

    def _check_method(self, request: Message) -> bytes:
        """Whether a method that is not of the package counts places without a sample: all that leaves is yes or no."""
        run = self._run_of(request)
        try:
            run.check_method()
        except UnmaskedError as error:
            log.warning("the server stops the run: %s", error)
            return pack({"unmasked": True})
        return pack({"unmasked": False})

    def _train(self, request: Message) -> bytes:
        """Train one round, from the private slots that belong to the server's state."""
        run = self._run_of(request)
        self.settings.floors.check_client(run.client, tested=run.spec.privacy is None)
        number, after = int(request.header["round"]), int(request.header["after"])
        if number <= after:  # an earlier round may share what the later ones keep
            raise FeddrmError(f"round {number} is to follow round {after}: rounds go up, nothing is sent")
        self.settings.floors.check_sum(run.subjects_of_round(number), "the batches of a round")
        masking = self._masking(request, run)
        received = {leaf: value.to(run.device) for leaf, value in request.tensors.items()}
        private = run.private_slots(after, request.header.get("after_message"))
        header: dict[str, Any] = {"round": number}
        if run.spec.privacy is None:
            header |= run.accuracy(received, private)
        update = run.train(received, private, number)
        upload = update.upload
        if run.spec.privacy is None:
            header["loss"] = float(update.loss)
        else:
            privacy = Privacy(**run.spec.privacy)
            if upload:
                upload = self._protected(privacy, upload, received)
            header["uploads"] = self.uploads.equivalent(privacy.noise)
            self.status.events.write("privacy spent", {"round": number, "epsilon": privacy.epsilon(header["uploads"])})
        run.store.save(number, update.private, self._message)
        run.store.forget_before(after)
        if masking is None:
            return pack(header, upload)
        plain = {key: value for key, value in header.items() if key not in SUMMED}
        return pack(plain, masking({**upload, **summed_fields(header)}, run.spec.share_of(self.name)))

    def _masking(self, request: Message, run: SiteRun) -> Masking | None:
        """The masks for the reply to a request; None in a run without secure aggregation."""
        if not run.spec.secure_aggregation:
            return None
        masking = self.masks.open(request.header, run.spec, request.tensors)
        if request.header["kind"] == "train":
            self.masks.record_round(run.store, int(request.header["round"]), [self.name, *masking.seeds])
        return masking

    def _mask_key(self, request: Message) -> bytes:
        """This site's mask key, for the server to relay."""
        run = self._run_of(request)
        return pack(self.masks.signed_key(run.spec, run.store))

    def _protected(self, privacy: Privacy, upload: Tensors, received: Tensors) -> Tensors:
        if self.demand is not None:
            self.demand.check_budget(privacy.noise, self.uploads.equivalent(privacy.noise) + 1)
        # Counted before the noise is drawn: after a crash the count can be too high, never too low.
        self.uploads.add(privacy.noise)
        return privacy.protect(upload, received)

    def _finish(self, request: Message) -> bytes:
        """Write what ``feddrm serve-client`` needs to answer queries."""
        run = self._run_of(request)
        self.settings.floors.check_client(run.client, tested=run.spec.privacy is None)
        received = {leaf: value.to(run.device) for leaf, value in without_public(request.tensors).items()}
        private = run.private_slots(int(request.header["after"]), request.header.get("after_message"))
        files = run.client_files
        logits, labels = run.test_logits(received, private), run.client.test.y
        own = {
            files.private_file: tensor_bytes(join_slots(private)),
            # The calibration stays here: it needs no message.
            files.temperature_file: AnswerCalibration.fit(logits, labels, run.client.test.subject).file(),
        }
        artifact = received_artifact(request.tensors)
        head = run.fit.kept_head(artifact.fit) if artifact is not None and HEADS in artifact.files else None
        if head is not None:
            own[files.head_file] = head.file()
        shared = {files.shared_file: tensor_bytes(received), files.path / "brief.yaml": yaml_bytes(run.spec.as_dict())}
        write_public(self.folder, request.tensors, shared, own)
        if head is None:
            files.head_file.unlink(missing_ok=True)  # of an earlier run
        if run.spec.privacy is not None or run.spec.secure_aggregation:
            return pack({})
        sums = answer_sums(logits.double().log_softmax(-1), labels) if self._shares_metrics else {}
        return pack(accuracy_counts(logits, labels), sums)

    @property
    def _shares_metrics(self) -> bool:
        """Most bins of the metrics' sums have a few samples, so a site with floors sends none."""
        return self.settings.share.metrics and not self.settings.floors.is_set

    def _answers(self, request: Message) -> bytes:
        """Masked sums of the final model's answers to the site's test samples, in a run with secure aggregation."""
        run = self._run_of(request)
        masking = self._masking(request, run)
        if run.spec.privacy is not None or masking is None:
            raise FeddrmError("sums of its answers leave it masked, and not in a private run: none are sent")
        self.settings.floors.check_client(run.client, tested=True)
        received = {leaf: value.to(run.device) for leaf, value in request.tensors.items()}
        private = run.private_slots(int(request.header["after"]), request.header.get("after_message"))
        logits, labels = run.test_logits(received, private), run.client.test.y
        sums, shares = answer_sums(logits.double().log_softmax(-1), labels), self._shares_metrics
        sent = sums if shares else {name: torch.zeros_like(value) for name, value in sums.items()}
        return pack({"metrics": shares}, masking({**summed_fields(accuracy_counts(logits, labels)), **sent}))

    def _fit(self, request: Message) -> bytes:
        """One step of the router's fit."""
        run = self._run_of(request)
        if run.spec.privacy is not None:
            raise FeddrmError("its run is private, and sums for a router are not covered: none leave this site")
        if (protocol := request.header.get("fit_protocol", 1)) != FIT_PROTOCOL:
            raise FeddrmError(
                f"the server fits the router by protocol {protocol}, this site by {FIT_PROTOCOL}: "
                "install the same feddrm at both"
            )
        if request.header["step"] in ROW_STEPS and not self.settings.share.features:
            raise FeddrmError("its site.yaml does not say 'share: {features: true}': none leave this site")
        if request.header["step"] in ROW_STEPS and run.spec.secure_aggregation:
            raise FeddrmError("its run has secure aggregation, and rows of samples are no sums: none leave this site")
        masking = self._masking(request, run)
        with router_kernels(sum(run.spec.sizes)):
            reply = run.fit.answer(request)
        return pack({"step": request.header["step"]}, reply if masking is None else masking(reply))

    def _run_of(self, request: Message) -> SiteRun:
        """The run that a message belongs to, made from its run spec when it is new."""
        spec = RunSpec.of(request.header["brief"])
        if self._run is None or self._run.spec != spec:
            if self.name not in spec.names:
                raise FeddrmError(f"'{self.name}' takes no part in run '{spec.run}' ({', '.join(spec.names)})")
            client, checksum = self._data_of(spec)
            if spec.privacy is not None:
                Privacy(**spec.privacy).check(spec.make_method())
            if self.demand is not None:
                self.demand.check_offer(spec.privacy, self.name)
            if spec.secure_aggregation:
                self.masks.check_run(spec)
            elif self.settings.require_secure_aggregation:
                raise FeddrmError(required_masks(self.name))
            store = PrivateStore(self.folder / "runs" / spec.run, spec.training_checksum)
            # If the server has accepted no upload yet, the run starts afresh, even under an old name.
            if not store.check_samples(checksum, restart=request.header.get("after") == 0):
                raise FeddrmError(f"holds other samples than this run began with (their checksum differs): {BACK}")
            files = RunFiles(self.folder).client(self.name)
            self._run = SiteRun(spec, client, store, files, self.settings.floors)
        return self._run

    def _data_of(self, spec: RunSpec) -> tuple[Client, str]:
        """The site's client in a run, and the checksum of its data; computed once, even if the run is then refused."""
        if self._data is None or self._data[0] != spec:
            size = spec.sizes[spec.names.index(self.name)]
            dataset = self._dataset_of(spec)
            client = dataset.client_as_before(spec.classes, size, spec.shape)
            # The checksum is that of a federation in which the other clients are blank, as all versions have stored it.
            clients = tuple(client if name == self.name else spec.blank_client(name) for name in spec.names)
            checksum = Federation(DEPLOYED, clients, spec.classes, SOURCE, columns=dataset.columns).digest()
            self._data = spec, client.to(self.settings.device), checksum
        return self._data[1:]

    def _dataset_of(self, spec: RunSpec) -> SiteDataset:
        """The data as the run encodes them. With ``schema: auto`` the schema comes with the run."""
        own = self.dataset.schema
        if self.dataset.table is not None and spec.schema is not None:
            return self.dataset.with_schema(TableSchema.of(spec.schema))
        if self.dataset.table is not None:
            raise FeddrmError("needs a server that makes schemas ('schema: auto'): install the same feddrm at both")
        if spec.schema is not None and (own is None or own.as_dict() != spec.schema):
            raise FeddrmError(
                f"encodes its rows by the schema {own and own.digest}, run '{spec.run}' by another: {BACK}"
            )
        return self.dataset
