"""The server's checks of replies: the fields of a header, the form of tensors, finite values.

The form of a reply is not written down. The server runs a site's own code on one blank sample and compares names,
shapes and types (docs/decisions/0009-answers-checked-against-a-blank-sample.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feddrm.data import Participant
from feddrm.deploy.site.fit_rows import SiteClient
from feddrm.deploy.site.private_store import PrivateStore
from feddrm.deploy.site.site_dataset import BACK
from feddrm.deploy.site.site_fit import ROWS, SiteFit
from feddrm.deploy.wire.messages import Message
from feddrm.deploy.wire.run_spec import DTYPES, RunSpec
from feddrm.engine import RoundSchedule, first_state, functional, train_client
from feddrm.errors import FeddrmError, SettingError
from feddrm.evaluation.answer_metrics import answer_sums
from feddrm.methods import Tensors
from feddrm.tables.column_sums import ColumnSums
from feddrm.tables.table_schema import TableSchema

LARGEST = 2.0**53  # larger numbers are not exact in a double
HELLO_FIELDS = (
    "samples", "shape", "dtype", "classes", "columns", "schema", "column_sums", "crop", "scale", "version", "privacy",
    "fit_protocol", "share_features", "masks",
)  # fmt: skip
ACCURACY_FIELDS = ("right", "tested")


def _number(value: Any, minimum: float = -LARGEST) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and minimum <= value <= LARGEST


def _integer(value: Any, minimum: int = 0) -> bool:
    return isinstance(value, int) and _number(value, minimum)


def _list(value: Any, each: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(each, value))


def _text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


def _fields(value: Any, types: Mapping[str, type]) -> bool:
    return isinstance(value, dict) and all(type(value.get(name)) is kind for name, kind in types.items())


def _schema(value: Any) -> bool:
    try:
        return isinstance(value, dict) and TableSchema.of(value) is not None
    except SettingError:
        return False


def _column_sums(value: Any) -> bool:
    try:
        return isinstance(value, dict) and all(_text(name) and ColumnSums.load(value[name]) for name in value)
    except FeddrmError:
        return False


FIELDS: dict[str, Callable[[Any], bool]] = {
    "samples": lambda v: _integer(v, 1),
    "shape": lambda v: v != [] and _list(v, lambda n: _integer(n, 1)),
    "dtype": lambda v: isinstance(v, str) and v in DTYPES,
    "classes": lambda v: v != [] and _list(v, _text),
    "columns": lambda v: v is None or _list(v, _text),
    "schema": lambda v: v is None or _schema(v),
    "column_sums": lambda v: v is None or _column_sums(v),
    "crop": lambda v: isinstance(v, bool),
    "scale": lambda v: _list(v, lambda part: _list(part, _number)) and len(v) == 2,
    "version": _text,
    "fit_protocol": lambda v: v is None or _integer(v, 1),
    "share_features": lambda v: v is None or isinstance(v, bool),
    "privacy": lambda v: (
        v is None or (isinstance(v, dict) and set(v) == {"clip", "noise"} and all(map(_number, v.values())))
    ),
    "masks": lambda v: v is None or _fields(v, {"protocol": int, "required": bool, "fewest": int}),
    "mask_key": lambda v: _fields(v, {"key": str, "signature": str}),
    "sent_round": _integer,
    "sent_for": lambda v: _list(v, _text),
    "unmasked": lambda v: isinstance(v, bool),
    "metrics": lambda v: isinstance(v, bool),
    "seconds": lambda v: _number(v, 0),
    "answers": _text,  # the channel has compared it with the digest of the request
    "loss": _number,
    "uploads": lambda v: _number(v, 0),
    "right": _integer,
    "tested": _integer,
}


def check_header(header: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The named fields of a header, each checked. All other fields are dropped."""
    for name in names:
        if not FIELDS[name](header.get(name)):
            raise FeddrmError(f"its '{name}' is {str(header.get(name))[:40]!r}: both ends need the same feddrm")
    if "tested" in names and header["right"] > header["tested"]:
        raise FeddrmError(f"{header['right']} right of {header['tested']} tested: both ends need the same feddrm")
    return {name: header.get(name) for name in names}  # a hello without a table has no schema


def check_tensors(tensors: Tensors, form: Tensors) -> None:
    """Refuse tensors that are not finite, or whose names, shapes or types differ from those of ``form``."""
    for name in sorted(set(tensors) ^ set(form)):
        raise FeddrmError(f"{name!r} {'is missing' if name in form else 'was not asked for'}")
    for name, value in tensors.items():
        if (value.shape, value.dtype) != (form[name].shape, form[name].dtype):
            expected = f"{form[name].dtype} {list(form[name].shape)}"
            raise FeddrmError(f"{name!r} is {value.dtype} {list(value.shape)}, not {expected}")
        if not bool(value.isfinite().all()):
            raise FeddrmError(f"{name!r} is not finite: a lower lr may help")


def check_answers(reply: Message, classes: int) -> Message:
    """A reply to the last message: counts of right answers and sums for metrics, which a site may refuse to send."""
    header = check_header(reply.header, *ACCURACY_FIELDS)
    sums = reply.tensors
    if not sums:
        return Message(header, {})
    blank = torch.zeros(1, dtype=torch.int64)
    check_tensors(sums, answer_sums(torch.zeros(1, classes).log_softmax(1), blank))
    right, tested = header["right"], header["tested"]
    confusion, scores, (counts, confidences) = sums["confusion"], sums["scores"], sums["calibration"]
    consistent = (
        all(bool((value >= 0).all()) for value in sums.values())
        and (int(confusion.trace()), int(confusion.sum())) == (right, tested)
        and scores.sum((0, 2)).tolist() == [tested] * classes
        and torch.equal(scores[1].sum(1), confusion.sum(1))
        and torch.equal(counts, counts.round())
        and counts.sum(1).tolist() == [tested - right, right]
        and bool((confidences <= counts * (1 + 1e-9)).all())
        and bool((sums["brier"] <= torch.tensor([2.0, 4.0]) * tested * (1 + 1e-9)).all())
    )
    if not consistent:
        raise FeddrmError(f"the sums of its answers are not of {right} right of {tested} tested: {BACK}")
    return Message(header, sums)


def blank_upload(spec: RunSpec, schedule: RoundSchedule, shared: Tensors, number: int) -> Tensors:
    """An upload of the right form with meaningless values: two steps on one blank sample, enough for two phases."""
    method, net = schedule.method, spec.make_net()
    leaves = {leaf: value.detach() for leaf, value in net.named_parameters()}
    private = first_state(method, leaves, 1).private[0]
    short = replace(schedule, plan=replace(schedule.plan, local_steps=2, batch_size=1))
    participant = Participant(0, spec.blank_client(spec.names[0]), spec.make_crop())
    return train_client(short, functional(net), participant, method.send(shared, 0), private, number).upload


def check_update(reply: Message, form: Tensors, sent: Mapping[str, Tensor], private: bool) -> Message:
    """A site's reply to a round. ``form`` is an upload of the right form, ``sent`` is what the site received."""
    check_tensors(reply.tensors, form)
    for leaf, value in reply.tensors.items():
        if not value.is_floating_point() and not torch.equal(value, sent[leaf]):  # FedPAC's client number
            raise FeddrmError(f"{leaf!r} is not what it was sent")
    names = ("uploads",) if private else ("loss", *ACCURACY_FIELDS)
    return Message(check_header(reply.header, "seconds", "answers", *names), reply.tensors)


class BlankFit:
    """A site with one blank sample. Its answer to a step of the router's fit has the form of a usable reply."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        zeros = spec.blank_client(spec.names[0])
        # A half has a logarithm, which a comparison may ask for; whole numbers stay zeros.
        blank = replace(zeros, train=replace(zeros.train, x=torch.full_like(zeros.train.x, 0.5)))
        client = SiteClient(blank, 0, spec.make_crop(), len(spec.names), len(spec.classes))
        self.site = SiteFit(spec.make_net(), client, PrivateStore(folder))
        self.sizes, self.crops = [1] * len(spec.names), 1

    def answer(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Tensors:
        blank = {**header, "sizes": self.sizes} if "sizes" in header else dict(header)
        self.crops = header.get("crops", self.crops)  # the rows of one sample
        own = {name: value[: self.crops] if name.startswith(ROWS) else value for name, value in tensors.items()}
        return self.site.answer(Message(blank, own))


def check_sums(reply: Message, form: Tensors, samples: int, rows: int = 0) -> Message:
    """A reply to a step of the fit, from a site with this number of samples. ``rows`` is that of ``ROWS`` tensors."""
    per_row = {name: value for name, value in form.items() if name.startswith(ROWS)}
    row_forms = {name: value[:1].expand(rows, *value.shape[1:]) for name, value in per_row.items()}
    check_tensors(reply.tensors, {**form, **row_forms})
    for name, value in reply.tensors.items():
        if name in row_forms:
            continue
        counts = not value.is_floating_point() or name.split("/")[-1] in ("count", "own")
        if counts and not (bool((value >= 0).all()) and float(value.sum()) <= samples):
            raise FeddrmError(f"{name!r} counts other than its {samples} samples: {BACK}")
    return Message({}, reply.tensors)
