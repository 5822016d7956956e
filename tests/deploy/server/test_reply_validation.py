"""Replies that a site has signed and that cannot be used: the site is left out by name, and the server goes on."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from safetensors.torch import save

from deployment import NAMES, QUICK_ROUTING, Deployed, DirectTransport, assert_same, in_one_process
from feddrm.deploy.server.reply_validation import (
    blank_upload,
    check_answers,
    check_sums,
    check_tensors,
    check_update,
)
from feddrm.deploy.server.training import ServerState
from feddrm.deploy.site.site_fit import ROWS
from feddrm.deploy.wire.key_files import load_private_key
from feddrm.deploy.wire.message_bytes import FORMAT
from feddrm.deploy.wire.messages import Message, pack, sign, unpack, verify
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.engine import Plan, RoundSchedule, State, first_state
from feddrm.evaluation.answer_metrics import answer_sums
from feddrm.router import load_router
from refusal import refused

Make = Callable[..., Deployed]
Twist = Callable[[dict[str, Any], dict[str, torch.Tensor]], bytes | None]
HELLO, SECOND_ROUND, FINISH = 1, 3, 4  # the messages of a run of two rounds


@dataclass
class TwistingTransport(DirectTransport):
    """Changes the replies of ``who`` to message ``at``, or the first to that step of a fit, and signs them again."""

    at: int | str = 0
    who: tuple[str, ...] = ("lima",)
    twist: Twist = lambda header, tensors: None

    def ask(self, messages: Mapping[int, bytes], deadline: float, kind: str, on_wait: Any) -> dict[int, bytes]:
        replies = super().ask(messages, deadline, kind, on_wait)
        for name in self.who:
            key, node = load_private_key(self.folder / "sites" / name / "node.key"), NAMES.index(name)
            if node in replies:
                header, tensors = unpack(verify(replies[node], key.public_key(), name))
                if self.at in (self.asked, header.get("step")):
                    self.at = self.asked  # the other replies to this message, and no later one
                    replies[node] = sign(self.twist(header, tensors) or pack(header, tensors), key)
        return replies


@cache
def without_lima_in_the_second_round() -> State:
    return in_one_process("feddrm", Plan(rounds=2, local_steps=4, batch_size=16, lr=0.05), [[0, 1, 2], [0, 2]])


def fields(**changes: Any) -> Twist:
    """Change fields of the header; None removes one."""

    def twist(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        header.update(changes)
        for name in [name for name, value in changes.items() if value is None]:
            del header[name]

    return twist


def last_leaf(change: Callable[[torch.Tensor], torch.Tensor]) -> Twist:
    """Change the last leaf."""

    def twist(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors[list(tensors)[-1]] = change(tensors[list(tensors)[-1]].clone())

    return twist


def without_last_leaf(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    del tensors[list(tensors)[-1]]


def with_one_nan(value: torch.Tensor) -> torch.Tensor:
    value.view(-1)[0] = math.nan
    return value


def deeply_nested(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> bytes:
    return save(tensors, metadata={FORMAT: "[" * 100_000})


UPLOADS: dict[str, tuple[Twist, str]] = {
    "nan": (last_leaf(with_one_nan), "finite"),
    "infinite": (last_leaf(lambda v: v + math.inf), "finite"),
    "shape": (last_leaf(lambda v: v.flatten()[:1]), "float32 [1], not"),
    "type": (last_leaf(lambda v: v.double()), "float64"),
    "leaf missing": (without_last_leaf, "missing"),
    "leaf too many": (lambda header, tensors: tensors.update(more=torch.zeros(1)), "'more' was not asked for"),
    "loss": (fields(loss=math.nan), "'loss' is 'nan'"),
    "too large": (fields(loss=10**400), "'loss'"),
    "more right than tested": (fields(right=7, tested=6), "7 right of 6"),
    "deeply nested": (deeply_nested, "not a message"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", UPLOADS)
def test_an_unusable_upload_is_left_out_of_its_round(case: str, deployed: Make) -> None:
    """The outcome is the same, to the last bit, as if lima had not answered."""
    twist, complaint = UPLOADS[case]
    deployment = deployed(router=False)
    deployment.server(TwistingTransport(deployment.folder, at=SECOND_ROUND, twist=twist)).go()
    assert [entry["answered"] for entry in deployment.server().run.metrics()] == [list(NAMES), ["oslo", "pune"]]
    assert_same(deployment, without_lima_in_the_second_round())
    assert len(deployment.complaints) == 1
    assert deployment.complaints[0].startswith("lima")
    assert complaint in deployment.complaints[0]
    assert "\n" not in deployment.complaints[0]


@pytest.mark.slow
def test_the_upload_count_of_a_private_site_must_be_a_number(deployed: Make) -> None:
    deployment = deployed(privacy={"clip": 1.0, "noise": 3.0})
    twist = fields(uploads="two", loss="x", right="x")
    deployment.server(TwistingTransport(deployment.folder, at=SECOND_ROUND, twist=twist)).go()
    assert deployment.server().run.metrics()[1]["answered"] == ["oslo", "pune"]
    assert "lima is left out, its answer cannot be used: its 'uploads' is 'two'" in deployment.complaints[0]


def test_tensors_have_the_names_shapes_and_types_of_the_form_and_are_finite() -> None:
    form = {"b": torch.zeros(2), "a": torch.tensor(1)}
    good = {"b": torch.tensor([1.0, -1.0]), "a": torch.tensor(7)}
    check_tensors(good, form)
    for change, reason in (
        ({"b": torch.tensor([1.0, math.nan])}, "'b' is not finite"),
        ({"b": torch.zeros(3)}, "'b' is torch.float32 [3], not torch.float32 [2]"),
        ({"b": torch.zeros(2).double()}, "'b' is torch.float64 [2], not torch.float32 [2]"),
        ({"c": torch.zeros(1), "d": torch.zeros(1)}, "'c' was not asked for"),
    ):
        with refused(reason):
            check_tensors(good | change, form)
    with refused("'a' is missing"):
        check_tensors({}, form)


def test_an_update_repeats_what_only_names_its_client() -> None:
    """And a private run's header tells how many uploads there were, not how well the model does."""
    form = {"client": torch.tensor(0), "leaf": torch.zeros(1)}
    header = {"seconds": 1.0, "answers": "a", "loss": 0.5, "right": 1, "tested": 2, "uploads": 3}
    reply = Message(header, {"client": torch.tensor(4), "leaf": torch.ones(1)})
    names = {True: {"seconds", "answers", "uploads"}, False: {"seconds", "answers", "loss", "right", "tested"}}
    for private in (True, False):
        checked = check_update(reply, form, {"client": torch.tensor(4), "leaf": torch.zeros(1)}, private)
        assert (set(checked.header), checked.tensors) == (names[private], reply.tensors)
    with refused("'client' is not what it was sent"):
        check_update(reply, form, {"client": torch.tensor(3)}, private=False)
    with refused("'leaf' is missing"):
        check_update(Message(header, {"client": torch.tensor(4)}), form, form, private=False)


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"samples": 0}, {"crop": 1}])
def test_a_site_with_an_unusable_hello_is_asked_again(change: dict[str, Any], deployed: Make) -> None:
    deployment = deployed(router=False)
    transport = TwistingTransport(deployment.folder, at=HELLO, twist=lambda header, tensors: header.update(change))
    assert deployment.server(transport).run_spec().names == NAMES
    assert len(deployment.complaints) == 1
    assert deployment.complaints[0].startswith(f"lima is left out, its answer cannot be used: its '{list(change)[-1]}'")


@pytest.mark.slow
def test_an_unusable_reply_to_the_last_message_is_asked_for_again(deployed: Make) -> None:
    deployment = deployed(router=False)
    transport = TwistingTransport(deployment.folder, at=FINISH, twist=fields(tested="many"))
    deployment.server(transport).go()
    assert transport.asked == FINISH + 1
    assert "'tested' is 'many'" in deployment.complaints[0]
    assert 0 < deployment.server().run.summary()["average_accuracy"] < 1


def answers(**changes: Callable[[torch.Tensor], torch.Tensor]) -> Message:
    """A reply to the last message of a site with five test samples of three classes, three of them right."""
    labels, predicted = torch.tensor([0, 1, 2, 2, 0]), torch.tensor([0, 1, 2, 1, 1])
    logits = 3.0 * torch.nn.functional.one_hot(predicted, 3)
    sums = answer_sums(logits.log_softmax(1), labels)
    return Message(
        {"right": 3, "tested": 5}, {name: changes.get(name, torch.clone)(value) for name, value in sums.items()}
    )


def test_sums_of_answers_that_belong_together_are_taken() -> None:
    reply = answers()
    checked = check_answers(reply, 3)
    assert (checked.header, checked.tensors) == (reply.header, reply.tensors)
    assert check_answers(Message(reply.header, {}), 3).tensors == {}, "a site of an older version"
    wrong = answer_sums(torch.tensor([[0.0, -math.inf, -math.inf]] * 3), torch.tensor([1, 1, 2]))
    assert wrong["brier"].tolist() == [6.0, 12.0], "each sample's two and four, the most that can be"
    assert check_answers(Message({"right": 0, "tested": 3}, wrong), 3).tensors is wrong
    for place in (0, 1):
        more = {**wrong, "brier": wrong["brier"] * (1 + 1e-6 * torch.eye(2, dtype=torch.float64)[place])}
        with refused("0 right of 3 tested"):
            check_answers(Message({"right": 0, "tested": 3}, more), 3)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"confusion": lambda v: v.flip(0)}, "3 right of 5 tested"),
        ({"confusion": lambda v: v + 1}, "3 right of 5 tested"),
        ({"scores": lambda v: v.flip(0)}, "3 right of 5 tested"),
        ({"scores": lambda v: v - (v == 0).long() + (v == 0).long().flip(2)}, "3 right of 5 tested"),
        (
            {"scores": lambda v: v + torch.eye(v.shape[2]).long()[0] * torch.tensor([1, 0])[:, None, None]},
            "3 right of 5",
        ),
        ({"calibration": lambda v: v.flip(1)}, "3 right of 5 tested"),
        ({"calibration": lambda v: v + 0.5 * (v.diff(dim=2, append=v[:, :, :1]).sign())}, "3 right of 5 tested"),
        ({"calibration": lambda v: v * torch.tensor([1.0, 2.0]).double().view(2, 1, 1)}, "3 right of 5 tested"),
        ({"brier": lambda v: v + 20}, "3 right of 5 tested"),
        ({"brier": lambda v: -v}, "3 right of 5 tested"),
        ({"brier": lambda v: v * math.nan}, "'brier' is not finite"),
        ({"scores": lambda v: v[:, :, :10]}, "'scores' is torch.int64"),
        ({"confusion": lambda v: v.double()}, "'confusion' is torch.float64"),
    ],
)
def test_sums_of_answers_that_cannot_be_are_refused(
    change: dict[str, Callable[[torch.Tensor], torch.Tensor]], why: str
) -> None:
    with refused(why):
        check_answers(answers(**change), 3)


SUMS: dict[str, tuple[str, Twist, str]] = {
    "moments": ("fold_moments", last_leaf(lambda v: v * math.nan), "finite"),
    "triangle": ("fold_moments", last_leaf(lambda v: v[:-1]), "not torch.float64"),
    "gradient": ("evaluate", without_last_leaf, "missing"),
    "count": (
        "evaluate",
        lambda header, tensors: tensors.update({n: v + 10**6 for n, v in tensors.items() if n.endswith("count")}),
        "counts other",
    ),
    "spread": ("spread", last_leaf(lambda v: v - 1), "counts other"),
}


@pytest.mark.slow
def test_unusable_sums_make_the_fit_begin_again(deployed: Make) -> None:
    deployment = deployed(few=True, routing=QUICK_ROUTING)
    deployment.server().go()
    router = load_router(deployment.run / "router")
    for case, (step, twist, complaint) in SUMS.items():
        (deployment.run / "summary.json").unlink()
        shutil.rmtree(deployment.run / "router")
        deployment.complaints.clear()
        deployment.server(TwistingTransport(deployment.folder, at=step, twist=twist)).go()
        assert len(deployment.complaints) == 1, case
        assert deployment.complaints[0].startswith("lima is left out, its answer cannot be used: "), case
        assert complaint in deployment.complaints[0], case
        assert torch.equal(load_router(deployment.run / "router").weight, router.weight), case


@pytest.mark.slow
def test_a_gram_matrix_that_cannot_be_one_stops_the_run_with_the_sites_name(deployed: Make) -> None:
    deployment = deployed(few=True, routing=QUICK_ROUTING)
    twist = last_leaf(lambda v: -1 - v.abs())
    with refused("lima: moments with a negative count or square", "send them again"):
        deployment.server(TwistingTransport(deployment.folder, at="fold_moments", twist=twist)).go()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedpac", "fedas"])
def test_statistics_beside_the_leaves_are_checked_too(method: str, deployed: Make) -> None:
    """As first published, these methods send class sums, Fisher traces, and a number that must be the site's own."""
    deployment = deployed(router=False)
    agreed = deployment.server().run_spec().as_dict()
    spec = RunSpec.of({**agreed, "method": {"name": method, "variant": "original"}})
    chosen = spec.make_method()
    schedule = RoundSchedule(chosen, spec.make_plan(), 3)
    shared = first_state(chosen, {n: v.detach() for n, v in spec.make_net().named_parameters()}, 1).shared
    for number in (1, 2):
        form, uploads = blank_upload(spec, schedule, shared, number), []
        for i, name in enumerate(NAMES):
            sent = chosen.send(shared, i)
            header = {"brief": spec.as_dict(), "round": number, "after": number - 1}
            reply = unpack(deployment.site(name)._train(Message(header, sent)))
            reply.header.update(seconds=0.1, answers="abc")
            uploads.append(check_update(reply, form, sent, False).tensors)
            if method == "fedpac":
                with refused("'client' is not what it was sent"):
                    check_update(reply, form, chosen.send(shared, i + 1), False)
        shared = chosen.aggregate(shared, uploads, torch.full((3,), 1 / 3, dtype=torch.float64))


@pytest.mark.slow
def test_finite_uploads_that_aggregate_to_infinite_leaves_stop_the_run(deployed: Make) -> None:
    """ConFREE multiplies changes. These two are finite, opposite, and too large for that."""

    def apart(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors[list(tensors)[-1]] += 1e30 if header["from"] == "lima" else -1e30

    deployment = deployed(router=False, training={"method": "confree"})
    transport = TwistingTransport(deployment.folder, at=SECOND_ROUND, who=("oslo", "lima"), twist=apart)
    with refused("round 2 ends in a model that is not finite", "lr"):
        deployment.server(transport).go()
    saved = ServerState.load(deployment.server().checkpoint)
    assert saved.round == 1
    assert all(bool(value.isfinite().all()) for value in saved.shared.values())


def test_rows_of_single_samples_are_as_many_as_the_server_knows_of() -> None:
    form = {f"{ROWS}x": torch.zeros(1, 2), "count": torch.zeros(1, dtype=torch.int64)}
    answer = {f"{ROWS}x": torch.ones(4, 2), "count": torch.tensor([7])}
    assert check_sums(Message({}, answer), form, 10, rows=4).tensors is answer
    with refused("'rows/x' is torch.float32 [4, 2], not torch.float32 [5, 2]"):
        check_sums(Message({}, answer), form, 10, rows=5)
    with refused("'count' counts other than its 6 samples"):
        check_sums(Message({}, answer), form, 6, rows=4)
    with refused("'rows/x' is torch.float32 [4, 2], not torch.float32 [0, 2]"):
        check_sums(Message({}, answer), form, 10)


@pytest.mark.parametrize("name", ["spread", "fold/count", "density/own"])
def test_counts_are_of_the_samples_of_a_site(name: str) -> None:
    """Whole numbers are counts, and so are floats of these names; other floats are sums of anything."""
    dtype = torch.int64 if name == "spread" else torch.float64
    form = {name: torch.zeros(2, dtype=dtype), "count/sum": torch.zeros(1)}
    for counts in ([7, 0], [3, 4]):
        check_sums(Message({}, {name: torch.tensor(counts, dtype=dtype), "count/sum": -torch.ones(1)}), form, 7)
    for counts in ([8, 0], [8, -1], [-1, -1]):
        with refused(f"'{name}' counts other than its 7 samples"):
            check_sums(Message({}, {name: torch.tensor(counts, dtype=dtype), "count/sum": torch.ones(1)}), form, 7)
