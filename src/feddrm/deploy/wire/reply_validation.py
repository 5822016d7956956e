"""What the server takes for an answer: in form what the same code answers on one blank sample, and finite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feddrm.data import Participant, RandomResizedCrop
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.site.site_dataset import BACK
from feddrm.deploy.site.site_fit import SiteClient, SiteFit
from feddrm.deploy.wire.messages import Message, unpack
from feddrm.deploy.wire.run_spec import DTYPES, RunSpec
from feddrm.engine import RoundSchedule, first_state, functional, train_client
from feddrm.errors import FeddrmError
from feddrm.methods import Tensors

MOST = 2.0**53
HELLO = ("samples", "shape", "dtype", "classes", "columns", "crop", "scale", "version", "privacy")
MEASURED = ("right", "tested")


def _number(value: Any, least: float = -MOST) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= MOST


def _whole(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and _number(value, least)


def _list(value: Any, each: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(each, value))


def _text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


FIELDS: dict[str, Callable[[Any], bool]] = {
    "samples": lambda v: _whole(v, 1),
    "shape": lambda v: v != [] and _list(v, lambda n: _whole(n, 1)),
    "dtype": lambda v: isinstance(v, str) and v in DTYPES,
    "classes": lambda v: v != [] and _list(v, _text),
    "columns": lambda v: v is None or _list(v, _text),
    "crop": lambda v: isinstance(v, bool),
    "scale": lambda v: _list(v, lambda part: _list(part, _number)) and len(v) == 2,
    "version": _text,
    "privacy": lambda v: (
        v is None or (isinstance(v, dict) and set(v) == {"clip", "noise"} and all(map(_number, v.values())))
    ),
    "seconds": lambda v: _number(v, 0),
    "loss": _number,
    "uploads": lambda v: _number(v, 0),
    "right": _whole,
    "tested": _whole,
}


def check_header(header: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """These fields, each of its kind; the others are not looked at again."""
    for name in names:
        if not FIELDS[name](header.get(name)):
            raise FeddrmError(f"its '{name}' is {str(header.get(name))[:40]!r}: both ends need the same feddrm")
    if header.get("right", 0) > header.get("tested", 0) and "tested" in names:
        raise FeddrmError(f"{header['right']} right of {header['tested']} tested: both ends need the same feddrm")
    return {name: header[name] for name in names}


def check_tensors(found: Tensors, form: Tensors) -> None:
    """The names, shapes and types of ``form``, and finite."""
    for name in sorted(set(found) ^ set(form)):
        raise FeddrmError(f"{name!r} is {'missing' if name in form else 'more than was asked for'}")
    for name, value in found.items():
        if (value.shape, value.dtype) != (form[name].shape, form[name].dtype):
            like = f"{form[name].dtype} {list(form[name].shape)}"
            raise FeddrmError(f"{name!r} is {value.dtype} {list(value.shape)}, not {like}")
        if not bool(value.isfinite().all()):
            raise FeddrmError(f"{name!r} is not finite: a lower lr may help")


def blank_upload(brief: RunSpec, agenda: RoundSchedule, shared: Tensors, number: int) -> Tensors:
    """What a site uploads in a round, but for its values: on one blank sample, with a step for each of two phases."""
    method, net = agenda.method, brief.make_net()
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    private = first_state(method, leaves, 1).private[0]
    short = replace(agenda, plan=replace(agenda.plan, local_steps=2, batch_size=1))
    participant = Participant.of(brief.federation(), 0)
    return train_client(short, functional(net), participant, method.send(shared, 0), private, number).upload


def check_update(letter: Message, form: Tensors, sent: Mapping[str, Tensor], private: bool) -> Message:
    """A round's answer: ``form`` is that of its upload, ``sent`` what the site was sent."""
    check_tensors(letter.tensors, form)
    for leaf, value in letter.tensors.items():
        if not value.is_floating_point() and not torch.equal(value, sent[leaf]):  # FedPAC's client number
            raise FeddrmError(f"{leaf!r} is not what it was sent")
    names = ("uploads",) if private else ("loss", *MEASURED)
    return Message(check_header(letter.header, "seconds", *names), letter.tensors)


class BlankFit:
    """The form of every answer of a router's fit: those of a site that holds one blank sample."""

    def __init__(self, brief: RunSpec, folder: Path) -> None:
        crop = RandomResizedCrop() if brief.crop else None
        client = SiteClient(brief.blank_client(), 0, crop, len(brief.names), len(brief.classes))
        self.site = SiteFit(brief.make_net(), client, PrivateStore(folder), folder)
        self.sizes = [1] * len(brief.names)

    def answer(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Tensors:
        told = {**header, **({"sizes": self.sizes} if "sizes" in header else {})}
        return unpack(self.site.answer(Message(told, dict(tensors)))).tensors


def check_sums(letter: Message, form: Tensors, samples: int) -> Message:
    """An answer to a step of the fit by a site that has said how many samples it has."""
    check_tensors(letter.tensors, form)
    for name, value in letter.tensors.items():
        counts = not value.is_floating_point() or name.split("/")[-1] == "count"
        if counts and not (bool((value >= 0).all()) and float(value.sum()) <= samples):
            raise FeddrmError(f"{name!r} counts other than its {samples} samples: {BACK}")
    return Message({}, letter.tensors)
