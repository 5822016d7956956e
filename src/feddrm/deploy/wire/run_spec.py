"""The run spec: what the server and the sites agree on before the first round.

In headers of messages and in names of files it is called ``brief``: an older name that both ends depend on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import punctuation
from typing import Any

import torch

from feddrm.data import Client, QueryViews, RandomResizedCrop, Split
from feddrm.engine import Plan
from feddrm.errors import FeddrmError, SettingError
from feddrm.io.run_files import check_client_name
from feddrm.methods import Method
from feddrm.models import Model, Net
from feddrm.plugins import require_plugins
from feddrm.registry import known_fields
from feddrm.router.fit.cohort import Facts
from feddrm.tables.table_schema import TableSchema

FIT_PROTOCOL = 6  # of the messages of the router's fit; sites that do not state one speak 1
FORBIDDEN = set(punctuation) - set("-_.")  # in the name of a site
DTYPES = {"uint8": torch.uint8, "float32": torch.float32}


@dataclass(frozen=True)
class RunSpec:
    """Who takes part, what a sample is, and what is trained: plain values, the same for every site.

    A client's number is its position in ``names``. It does not depend on the order in which sites connect.
    """

    run: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    columns: tuple[str, ...] | None
    crop: bool
    scale: tuple[tuple[float, ...], tuple[float, ...]]
    method: Mapping[str, Any]
    model: Mapping[str, Any]
    plan: Mapping[str, Any]
    privacy: Mapping[str, float] | None = None
    plugins: tuple[Mapping[str, str], ...] = ()  # what every site must have loaded by its own choice
    schema: Mapping[str, Any] | None = None  # of tables: what raw rows of every site are encoded by
    secure_aggregation: bool = False

    def as_dict(self) -> dict[str, Any]:
        """As JSON and YAML hold it: lists instead of tuples."""
        return dict(json.loads(json.dumps({name: getattr(self, name) for name in self.__dataclass_fields__})))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RunSpec:
        """The inverse of :meth:`as_dict`."""
        optional = {"privacy", "plugins", "schema", "secure_aggregation"}
        missing = [name for name in cls.__dataclass_fields__ if name not in {*values, *optional}]
        if missing:
            raise FeddrmError(f"the server's run spec lacks '{missing[0]}': both ends need the same feddrm")
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        check_run(known["run"])
        for name in ("names", "sizes", "classes", "shape"):
            known[name] = tuple(known[name])
        known["scale"] = tuple(tuple(part) for part in known["scale"])
        known["plugins"] = tuple(known.get("plugins", ()))
        known["columns"] = None if known["columns"] is None else tuple(known["columns"])
        return cls(**known)

    def make_method(self) -> Method:
        require_plugins(list(self.plugins), f"run '{self.run}'")
        return Method.make(self.method["name"], **_settings(self.method))

    def make_plan(self) -> Plan:
        return Plan(**known_fields(Plan, self.plan, "training"))

    def make_net(self) -> Net:
        """The network with its initial parameters. They are drawn from the seed, so nobody has to send them."""
        clients = len(self.names) if self.make_method().client_branch else None
        model = Model.make(self.model["name"], **_settings(self.model))
        if model.frozen:  # that of an ONNX file would read a path of the server's choice
            raise FeddrmError(f"model={model.name} is frozen: it has no rounds, which sites train in: choose another")
        return model.build(self.shape, len(self.classes), clients, self.make_plan().seed)

    @property
    def training_checksum(self) -> str:
        """The checksum of what decides which leaves are private: method, model and plan."""
        plain = json.dumps([self.method, self.model, self.plan], sort_keys=True)
        return hashlib.sha256(plain.encode()).hexdigest()

    def share_of(self, name: str) -> float:
        """A site's share of all training samples."""
        return self.sizes[self.names.index(name)] / sum(self.sizes)

    def make_crop(self) -> RandomResizedCrop | None:
        return RandomResizedCrop() if self.crop else None

    def blank_client(self, name: str) -> Client:
        """A client with one blank sample of the agreed form, in the place of one whose samples are elsewhere."""
        return blank_client(name, self.shape, self.dtype)

    @property
    def facts(self) -> Facts:
        """What a router's fit needs to know of the clients."""
        schema = None if self.schema is None else TableSchema.of(self.schema)
        return Facts(
            self.names, self.sizes, self.classes, self.shape, self.scale,
            columns=self.columns, schema=schema, query_views=QueryViews(self.crop),  # no site says if mirrors are valid
        )  # fmt: skip


def check_run(name: object) -> None:
    """Refuse a run name that could lead out of a folder: both ends name folders after the run."""
    if not (isinstance(name, str) and name and all(c.isalnum() or c in "-_" for c in name)):
        raise SettingError(f"run {name!r} names folders: use letters, digits, '-' or '_'")


def check_site_name(name: str) -> None:
    """Refuse a site's name that cannot stand in addresses, paths and unit files."""
    check_client_name("name", name)
    # 'server' names a folder and a key already.
    if name.casefold() == "server" or any(c in FORBIDDEN for c in name):
        raise SettingError(f"name: client {name!r} cannot name a site: use letters, digits, '-' or '_', not 'server'")


def blank_client(name: str, shape: Sequence[int], dtype: str) -> Client:
    """A client with one sample of zeros."""
    blank = Split(torch.zeros(1, *shape, dtype=DTYPES[dtype]), torch.zeros(1, dtype=torch.int64))
    return Client(name, blank, blank)


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items() if key != "name"}
