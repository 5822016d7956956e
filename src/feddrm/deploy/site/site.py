"""A site's half: it answers the server's letters from its own samples, and keeps what is private."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save

from feddrm._version import __version__
from feddrm.data import Federation, Participant
from feddrm.deploy.privacy import Account, Demand, Privacy
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.site.site_dataset import BACK, Holdings, read_holdings
from feddrm.deploy.site.site_fit import SiteClient, SiteFit
from feddrm.deploy.wire.messages import (
    ANYBODY,
    Message,
    digest,
    load_private_key,
    load_public_key,
    opened,
    pack,
    seal,
    unpack,
)
from feddrm.deploy.wire.public_files import keep_files, without_files
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.engine import (
    CPU_QUERIES,
    RoundSchedule,
    cpu_kernels,
    first_state,
    functional,
    router_kernels,
    train_client,
)
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.atomic import write_atomically
from feddrm.methods import Forward, Method, Slots, Tensors
from feddrm.models import Net
from feddrm.runs.config import SMALL_SIDE, known_fields, read_config, threads_for

CONFIG, KEY, SERVER_KEY, UPLOADS = "site.yaml", "node.key", "server.pub", "uploads.json"


@dataclass(frozen=True)
class SiteConfig:
    """``site.yaml``: what only this site decides.

    ``resident: false`` leaves messages to Flower's own way: a process for each, which runs the app
    that the run was submitted with. It is there to be compared with. ``privacy`` is the least that this
    site demands, whatever the server's brief says.
    """

    name: str
    server: str
    data: dict[str, Any]
    device: str = "cpu"
    insecure: bool = False
    poll_seconds: float = 0.25
    resident: bool = True
    privacy: dict[str, float] | None = None

    @classmethod
    def read(cls, folder: Path) -> SiteConfig:
        path = folder / CONFIG
        values = read_config(path)
        unknown = [key for key in values if key not in cls.__dataclass_fields__]
        missing = [key for key in ("name", "server", "data") if not values.get(key)]
        if unknown or missing:
            what = f"no setting '{unknown[0]}'" if unknown else f"'{missing[0]}' is missing"
            raise SettingError(f"{path}: {what} (there are: {', '.join(cls.__dataclass_fields__)})")
        if not isinstance(values["data"], dict):
            raise SettingError(f"{path}: data '{values['data']}' must be a setting like 'folder: PATH' (see the file)")
        if not float(values.get("poll_seconds", 1)) > 0:
            raise SettingError(f"{path}: poll_seconds={values['poll_seconds']}: give seconds above zero")
        if values.get("privacy") is not None:
            try:
                Demand(**known_fields(Demand, values["privacy"], "privacy")).check()
            except (TypeError, SettingError) as error:
                raise SettingError(f"{path}: privacy: {error} (as in 'privacy: {{clip: 1, noise: 3}}')") from error
        try:
            torch.empty(0, device=values.get("device", "cpu"))
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise SettingError(
                f"{path}: device '{values['device']}' cannot be used here ({reason}): use cpu"
            ) from error
        return cls(**values)


@dataclass(eq=False)
class _Work:
    """A run on this site, ready to train: made from the server's brief and the site's own samples."""

    brief: RunSpec
    method: Method
    net: Net
    forward: Forward
    federation: Federation
    number: int
    store: PrivateStore
    agenda: RoundSchedule
    own: Path
    fit: SiteFit = field(init=False)

    def __post_init__(self) -> None:
        client = self.federation.clients[self.number]
        site = SiteClient(client, self.number, self.federation.crop, len(self.federation), len(self.federation.classes))
        self.fit = SiteFit(self.net, site, self.store, self.own)

    def kernels(self) -> AbstractContextManager[None]:
        """The engine's own; only photographs get every core, as no second client is here to take the others."""
        shape = self.brief.shape
        small = len(shape) != 3 or min(shape[1:]) < SMALL_SIDE
        threads = threads_for(small, str(self.federation.clients[self.number].train.x.device))
        return cpu_kernels(self.net, self.agenda.plan.batch_size, threads)


class Site:
    """Answers letters, whoever carries them; the only state is on disk, so it may be killed at any time."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.config = SiteConfig.read(self.folder)
        self.name = self.config.name
        self.key = load_private_key(self.folder / KEY)
        self.server_key = load_public_key(self.folder / SERVER_KEY)
        self.holdings: Holdings = read_holdings(self.name, self.config.data, self.folder)
        self.demand = None if self.config.privacy is None else Demand(**self.config.privacy)
        self.account = Account(self.folder / UPLOADS)
        self._work: _Work | None = None
        self._held: tuple[RunSpec, Federation, str] | None = None
        self._answers: dict[str, Callable[[Message], bytes]] = {
            "hello": self._hello,
            "train": self._train,
            "finish": self._finish,
            "fit": self._fit,
        }

    def handle(self, sealed: bytes) -> bytes:
        """The signed answer to a letter of the server; anything else is refused without an answer."""
        content = opened(sealed, self.server_key, "the server")
        letter = unpack(content)
        if letter.header.get("to") != (ANYBODY if letter.header.get("kind") == "hello" else self.name):
            raise FeddrmError(f"a letter to '{letter.header.get('to')}' reached '{self.name}': check who has which key")
        began = time.perf_counter()
        try:
            body = self._answers[letter.header["kind"]](letter)
        except FeddrmError as error:
            body = pack({"error": str(error)})
        except Exception as error:  # whatever it is, the server must not wait for ever
            body = pack({"error": f"{type(error).__name__} at {self.name}: see its log"})
            _log(self.folder, error)
        told, tensors = unpack(body)
        told |= {"from": self.name, "answers": digest(content), "seconds": time.perf_counter() - began}
        return seal(pack(told, tensors), self.key)

    def _hello(self, letter: Message) -> bytes:  # noqa: ARG002
        """What the server must know of a site's samples: how many, of which form, which classes."""
        own = self.holdings.client(self.holdings.classes)
        return pack(
            {
                "samples": len(own.train),
                "shape": list(own.train.x.shape[1:]),
                "dtype": str(own.train.x.dtype).removeprefix("torch."),
                "classes": list(self.holdings.classes),
                "columns": None if self.holdings.columns is None else list(self.holdings.columns),
                "crop": self.holdings.crop,
                "scale": [list(own.view.mean), list(own.view.std)],
                "version": __version__,
                "privacy": None if self.demand is None else {"clip": self.demand.clip, "noise": self.demand.noise},
            }
        )

    def _train(self, letter: Message) -> bytes:
        """One round, from the private part that the server's state goes with."""
        work = self._ready(letter)
        number, after = int(letter.header["round"]), int(letter.header["after"])
        received = {leaf: value.to(self.config.device) for leaf, value in letter.tensors.items()}
        private = self._private(work, after)
        participant = Participant.of(work.federation, work.number)
        told: dict[str, Any] = {"round": number}
        if work.brief.privacy is None:
            told |= self._measured(work, received, private)
        with work.kernels():
            update = train_client(work.agenda, work.forward, participant, received, private, number)
        upload = update.upload
        if work.brief.privacy is not None:
            privacy = Privacy(**work.brief.privacy)
            if upload:
                if self.demand is not None:
                    self.demand.afford(privacy.noise, self.account.worth(privacy.noise) + 1)
                self.account.add(privacy.noise)  # on disk before the noise is drawn: it can only say too many
                upload = privacy.protect(upload, received)
            told["uploads"] = self.account.worth(privacy.noise)
        else:
            told["loss"] = float(update.loss)
        work.store.save(number, update.private)
        work.store.forget_before(after)
        return pack(told, upload)

    def _finish(self, letter: Message) -> bytes:
        """After the last letter this folder is what the site answers queries with (``feddrm serve-client``)."""
        work = self._ready(letter)
        received = {leaf: value.to(self.config.device) for leaf, value in without_files(letter.tensors).items()}
        private = self._private(work, int(letter.header["after"]))
        work.own.mkdir(parents=True, exist_ok=True)
        flat = {f"{slot}/{leaf}": value for slot, leaves in private.items() for leaf, value in leaves.items()}
        for name, leaves in (("private", flat), ("shared", received)):
            plain = {leaf: value.detach().cpu().contiguous().clone() for leaf, value in leaves.items()}
            write_atomically(work.own / f"{name}.safetensors", save(plain), private=name == "private")
        write_atomically(
            work.own / "brief.yaml", yaml.safe_dump(_plain(work.brief.as_dict()), sort_keys=False).encode()
        )
        keep_files(self.folder, letter.tensors)
        return pack({} if work.brief.privacy is not None else self._measured(work, received, private))

    def _fit(self, letter: Message) -> bytes:
        work = self._ready(letter)
        if work.brief.privacy is not None:
            raise FeddrmError("its run is private, which sums for a router are not: none leave this site")
        with router_kernels(sum(work.brief.sizes)):
            return work.fit.answer(letter)

    def _ready(self, letter: Message) -> _Work:
        """The run that a letter speaks of; made once, from its brief."""
        brief = RunSpec.of(letter.header["brief"])
        if self._work is None or self._work.brief != brief:
            if self.name not in brief.names:
                raise FeddrmError(f"'{self.name}' takes no part in run '{brief.run}' ({', '.join(brief.names)})")
            federation, samples = self._samples(brief)
            method, net = brief.make_method(), brief.make_net().to(self.config.device)
            if brief.privacy is not None:
                Privacy(**brief.privacy).check(method)
            if self.demand is not None:
                self.demand.admit(brief.privacy, self.name)
            store = PrivateStore(self.folder / "runs" / brief.run)
            # Before the server has taken anything from this site the run begins, be it anew under an old name.
            if not store.begun_with(samples, anew=letter.header.get("after") == 0):
                raise FeddrmError(f"holds other samples than this run began with (their checksum differs): {BACK}")
            self._work = _Work(
                brief,
                method,
                net,
                functional(net),
                federation,
                brief.names.index(self.name),
                store,
                RoundSchedule(method, brief.make_plan(), len(brief.names)),
                self.folder / "clients" / self.name,
            )
        return self._work

    def _samples(self, brief: RunSpec) -> tuple[Federation, str]:
        """What this site brings into a run, and its checksum: made once, also where the run's letters are refused."""
        if self._held is None or self._held[0] != brief:
            size = brief.sizes[brief.names.index(self.name)]
            own = self.holdings.client_since(brief.classes, size, brief.shape)
            federation = brief.federation(own)
            checksum = replace(federation, columns=self.holdings.columns).digest()
            self._held = brief, federation.to(self.config.device), checksum
        return self._held[1:]

    def _private(self, work: _Work, after: int) -> Slots:
        if after > 0:
            return work.store.load(after, self.config.device)
        leaves = {leaf: value.detach() for leaf, value in work.net.named_parameters()}
        return first_state(work.method, leaves, 1).private[0]

    def _measured(self, work: _Work, received: Tensors, private: Slots) -> dict[str, Any]:
        """How many of the site's own test samples its own model gets right: two numbers travel."""
        own = work.federation.clients[work.number]
        model = work.method.serve(received, private)
        with torch.no_grad(), work.kernels():
            parts = [
                work.forward(model, own.view(x)).logits.argmax(1) == y
                for x, y in zip(torch.split(own.test.x, CPU_QUERIES), torch.split(own.test.y, CPU_QUERIES), strict=True)
            ]
        return {"right": int(torch.cat(parts).sum()), "tested": len(own.test)}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _log(folder: Path, error: Exception) -> None:
    """A fault of ours, in full, on the site's own disk: the server learns only that there was one."""
    import traceback

    with (folder / "faults.log").open("a") as file:
        file.write(f"{time.strftime('%F %T')} {''.join(traceback.format_exception(error))}\n")
