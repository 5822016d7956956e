"""The settings of a deployed federation: ``federation.yaml`` in the server's folder."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypedDict

from feddrm.checks.ports import FEDERATION
from feddrm.deploy.privacy import Privacy
from feddrm.deploy.server.federation_file import CONFIG, FIRST_RUN, read_federation
from feddrm.deploy.wire.masks import FEWEST_SITES, check_method
from feddrm.deploy.wire.run_spec import check_run, check_site_name
from feddrm.engine import Plan
from feddrm.engine.recipes import check_recipe
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.atomic import write_atomically
from feddrm.io.run_files import check_client_names
from feddrm.io.text import json_bytes, read_json
from feddrm.methods import Method
from feddrm.models import Model
from feddrm.registry import known_fields, name_and_settings, nearest
from feddrm.router import RouterSettings
from feddrm.router.features.base import Raw
from feddrm.router.settings import Holdout
from feddrm.runs.folder import RunFolder
from feddrm.typed_settings import typed

RUN_SPEC = "brief.json"  # in a run's folder: what server and sites have agreed on
RUN_SETTINGS = "settings.json"  # in a run's folder: the settings that decide its outcome, from when it began
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


class TrainingNames(TypedDict):
    """The types of the settings in ``training`` that are no fields of the plan."""

    method: str | Mapping[str, Any]
    model: str | Mapping[str, Any] | None
    recipe: str | None


class ComparisonSettings(TypedDict):
    """The types of the settings in ``comparison``."""

    basis: str
    columns: Sequence[str] | None


class WatchSettings(TypedDict):
    """The types of the settings in ``watch``."""

    port: int


@dataclass(frozen=True)
class FederationSettings:
    """Who takes part, what is trained, and how long a site may take.

    ``training`` holds options of ``feddrm train``: method, model, rounds, lr, seed and so on. Method and model may have
    settings of their own beside their ``name``. ``deadline`` is how many seconds a site has to answer one message.
    ``quorum`` is how many sites must answer for a round to count. A new name for ``run`` starts a new training from the
    beginning. ``watch`` names the ``port`` of the page and the metrics that show the training on the server's own
    machine. With ``secure_aggregation`` the server learns sums over sites only. ``comparison`` has the ``basis`` and
    the ``columns`` of a density ratio model of the sites' populations.
    """

    clients: tuple[str, ...]
    run: str = FIRST_RUN
    training: dict[str, Any] = field(default_factory=dict)
    deadline: float = 600.0
    quorum: int = 1
    router: bool = True
    routing: dict[str, Any] = field(default_factory=dict)
    comparison: dict[str, Any] | None = None
    privacy: dict[str, float] | None = None
    secure_aggregation: bool = False
    host: str = "127.0.0.1"
    port: int = FEDERATION
    insecure: bool = False
    watch: dict[str, int] | None = None

    @property
    def method(self) -> Method:
        """The method with its settings."""
        given = name_and_settings("method", self.training.get("method") or {})
        return Method.make(given.pop("name", "feddrm"), **given)

    @property
    def local(self) -> bool:
        """Whether the server listens on loopback only, because all sites are on its machine."""
        return self.host in ("127.0.0.1", "localhost")

    @property
    def watch_port(self) -> int | None:
        """The port of the page and the metrics, None without them."""
        if self.watch is None:
            return None
        if set(self.watch) != {"port"}:
            raise SettingError(f"watch={self.watch}: write it as 'watch: {{port: 8001}}'")
        return self.watch["port"]

    @property
    def router_settings(self) -> RouterSettings:
        """The settings of the router's fit. Every round is a message to all sites: hence few of them, and no heads.

        For competence the features of single samples travel, so they must not be the samples themselves.
        """
        deployed = RouterSettings(heads=False, joint=False, competence=False, path_rounds=12, few_messages=True)
        given = known_fields(RouterSettings, self.routing, "routing")
        return replace(deployed, **({"features": "multiscale", **given} if given.get("competence") else given))

    @classmethod
    def read(cls, folder: Path) -> FederationSettings:
        values = read_federation(folder)
        try:
            settings = cls(**_typed(known_fields(cls, values, "federation")))
            settings.check()
        except FeddrmError as error:
            raise SettingError(f"{folder / CONFIG}: {error}") from error
        return settings

    def record(self, run: Path) -> None:
        """Write the settings that decide the outcome into the folder of a run that begins."""
        write_atomically(run / RUN_SETTINGS, json_bytes(self._deciding()))

    def check_same(self, run: Path) -> None:
        """Refuse to continue a run, or to show its outcome, with other settings than it began with.

        Sites may be added and removed while a run goes on: new ones take part in the next run.
        """
        path = run / RUN_SETTINGS
        if not path.exists():
            return
        before, now = read_json(path, "put it back from a copy, or choose another 'run'"), self._deciding()
        if not RunFolder(run).summary_file.exists():
            before.pop("clients", None), now.pop("clients")
        for key in [key for key in {**before, **now} if before.get(key) != now.get(key)]:
            raise SettingError(
                f"run '{self.run}' began with {key} {_shown(before, key)}, {run.parent.parent / CONFIG} now says "
                f"{_shown(now, key)}: choose another 'run' there, or put the old value back"
            )

    def _deciding(self) -> dict[str, Any]:
        """The settings that decide the outcome, by dotted names. Deadline, quorum and comparison are not among them."""
        parts = {"training": self.training, "routing": self.routing, "privacy": self.privacy or {}}
        nested = {f"{part}.{key}": value for part, values in parts.items() for key, value in values.items()}
        secure = {"secure_aggregation": True} if self.secure_aggregation else {}
        return dict(json.loads(json.dumps({"clients": self.clients, "router": self.router, **secure, **nested})))

    def check(self) -> None:
        """Refuse impossible settings before anything is started."""
        check_client_names("clients", self.clients)
        for name in self.clients:
            check_site_name(name)
        check_run(self.run)
        if not 0 < self.deadline < math.inf:
            raise SettingError(f"deadline={self.deadline:g}: give seconds above zero")
        if not 1 <= self.quorum <= len(self.clients):
            raise SettingError(f"quorum={self.quorum}: give 1 to {len(self.clients)}, the number of sites")
        check_host(self.host)
        _check_ports({"port": self.port, "watch: port": self.watch_port})
        with _part("training"):
            method, plan = self._check_training()
        with _part("routing"):
            self._check_routing(self.router_settings)
        with _part("comparison"):
            self._check_comparison()
        with _part("privacy"):
            if self.privacy is not None:
                Privacy(**known_fields(Privacy, self.privacy, "privacy")).check(method)
        with _part("secure_aggregation"):
            if self.secure_aggregation:
                self._check_secure_aggregation(method, plan)

    def _check_training(self) -> tuple[Method, Plan]:
        apart = set(TrainingNames.__annotations__)  # the others are fields of the plan
        allowed = {f.name for f in fields(Plan)} | apart
        for key in self.training:
            if key not in allowed:
                known = f"(there are: {', '.join(sorted(allowed))})"
                raise SettingError(f"no training setting '{key}'{nearest(str(key), allowed)} {known}")
        method, given = self.method, name_and_settings("model", self.training.get("model") or {})
        model = Model.make(given.pop("name"), **given) if "name" in given else None  # else the data decide on one
        if method.closed_form or (model is not None and model.frozen):
            name = f"method={method.name}" if method.closed_form or model is None else f"model={model.name}"
            raise SettingError(f"{name}: it has no rounds, which sites train in: use 'feddrm fit', or choose another")
        values = {key: value for key, value in self.training.items() if key not in apart}
        check_recipe(self.training.get("recipe"), values)
        plan = Plan(**values)
        plan.check()
        method.check(plan.rounds)
        return method, plan

    def _check_secure_aggregation(self, method: Method, plan: Plan) -> None:
        """Refuse what needs single replies, and sums of so few sites that they tell what one has sent."""
        check_method(method)
        asked = plan.asked(len(self.clients))
        if asked < FEWEST_SITES:
            raise SettingError(
                f"a sum of {asked} sites, it needs {FEWEST_SITES}: of two, each would know the "
                "other's value; add sites, or give a larger participation"
            )
        if plan.dropout:
            raise SettingError(f"dropout={plan.dropout} is for simulations: leave it out")
        if self.router and self.router_settings.competence:
            raise SettingError("competence needs rows of single samples: leave competence out")

    def _check_comparison(self) -> None:
        if self.comparison is None:
            return
        from feddrm.comparison.federated_fit import check_common_basis

        if not set(self.comparison) <= {"basis", "columns"} or "basis" not in self.comparison:
            raise SettingError(f"{self.comparison}: write it as 'comparison: {{basis: normal, columns: [age]}}'")
        check_common_basis(self.comparison["basis"])
        if self.privacy is not None:
            raise SettingError("its sums are sent without noise: leave comparison or privacy out")

    @staticmethod
    def _check_routing(routing: RouterSettings) -> None:
        if not isinstance(routing.holdout, Holdout | None):  # no file can hold one
            raise SettingError(f"holdout={routing.holdout!r}: the number of samples decides it: leave holdout out")
        routing.check()
        if routing.views != 1:
            raise SettingError(f"views={routing.views}: a deployed router is fitted on crops: leave views out")
        if routing.competence and not routing.heads:
            raise SettingError("competence=true is about the class heads: add heads=true")
        if routing.competence and Raw.name in (routing.features or Raw.name).split("+"):
            raise SettingError(
                f"competence=true with features={routing.features}: raw features are the samples themselves, "
                "and those stay at their sites: leave features out, or give multiscale"
            )


@contextmanager
def _part(name: str) -> Iterator[None]:
    """Name the part of the settings in an error: several parts have a setting ``rounds`` or ``seed``."""
    try:
        yield
    except FeddrmError as error:
        raise SettingError(f"{name}: {error}") from error


def _typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the file with the settings in its parts of their types, too."""
    result = dict(values)
    with _part("training"):
        result["training"] = typed(TrainingNames, typed(Plan, result.get("training", {})))
    for name, kind in (("comparison", ComparisonSettings), ("watch", WatchSettings)):
        if result.get(name) is not None:
            with _part(name):
                result[name] = typed(kind, result[name])
    if result.get("privacy") is not None:
        with _part("privacy"):
            result["privacy"] = known_fields(Privacy, result["privacy"], "privacy")
            if not {"clip", "noise"} <= set(result["privacy"]):
                raise SettingError(f"{result['privacy']}: write it as 'privacy: {{clip: 1.0, noise: 3.0}}'")
    return result


def _check_ports(ports: dict[str, int | None]) -> None:
    given = {name: port for name, port in ports.items() if port is not None}
    for name, port in given.items():
        if not 0 < port < 2**16:
            raise SettingError(f"{name}={port}: give a number from 1 to {2**16 - 1}")
    if len(set(given.values())) < len(given):
        raise SettingError(f"watch: port={ports['port']} is the port that sites use: choose another")


def check_host(host: str) -> None:
    """Refuse what cannot stand in an address and in a certificate."""
    if not HOST.fullmatch(host):
        raise SettingError(f"host '{host}'{_ascii_form(host)}: give a host name in ASCII or an IPv4 address")


def _shown(values: dict[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "not given"


def _ascii_form(host: str) -> str:
    try:
        form = host.encode("idna").decode()
    except UnicodeError:
        return ""
    return f" (in ASCII: {form})" if form != host and HOST.fullmatch(form) else ""
