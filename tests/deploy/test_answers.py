"""Answers that a site has signed and that cannot be used: it is left out by name, and the server lives on."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from feddrm.deploy.flower import apps
from feddrm.deploy.server.training import Progress, Server
from feddrm.deploy.wire.messages import FORMAT, Message, load_private_key, opened, pack, seal, unpack
from feddrm.deploy.wire.reply_validation import blank_upload, check_update
from feddrm.deploy.wire.run_spec import RunSpec
from feddrm.engine import Plan, RoundSchedule, State, first_state
from feddrm.router import load_router
from refusal import refused

from .conftest import NAMES, Deployed, HandCourier
from .test_parity import assert_same, in_one_process
from .test_server import site_of

Make = Callable[..., Deployed]
Twist = Callable[[dict[str, Any], dict[str, torch.Tensor]], bytes | None]
HELLO, SECOND_ROUND, FINISH = 1, 3, 4  # the letters of a run of two rounds


@dataclass
class Twisting(HandCourier):
    """The answer of ``who`` to letter ``at``, or the first to that step of a fit, is twisted, and signed by them."""

    at: int | str = 0
    who: tuple[str, ...] = ("lima",)
    twist: Twist = lambda header, tensors: None

    def ask(self, letters: Mapping[int, bytes], deadline: float, kind: str) -> dict[int, bytes]:
        found = super().ask(letters, deadline, kind)
        for name in self.who:
            key, node = load_private_key(self.folder / "sites" / name / "node.key"), NAMES.index(name)
            if node in found:
                header, tensors = unpack(opened(found[node], key.public_key(), name))
                if self.at in (self.asked, header.get("step")):
                    self.at = self.asked  # the others of this letter, and no later one
                    found[node] = seal(self.twist(header, tensors) or pack(header, tensors), key)
        return found


@cache
def without_lima_in_the_second() -> State:
    return in_one_process("feddrm", Plan(rounds=2, local_steps=4, batch_size=16, lr=0.05), [[0, 1, 2], [0, 2]])


def told(**changes: Any) -> Twist:
    """Header fields changed, or left out where None."""

    def twist(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        header.update(changes)
        for name in [name for name, value in changes.items() if value is None]:
            del header[name]

    return twist


def leaves(change: Callable[[torch.Tensor], torch.Tensor]) -> Twist:
    """The last leaf changed."""

    def twist(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors[list(tensors)[-1]] = change(tensors[list(tensors)[-1]].clone())

    return twist


def without_last(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    del tensors[list(tensors)[-1]]


def one_is_no_number(value: torch.Tensor) -> torch.Tensor:
    value.view(-1)[0] = math.nan
    return value


def deep(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> bytes:
    return save(tensors, metadata={FORMAT: "[" * 100_000})


UPLOADS: dict[str, tuple[Twist, str]] = {
    "a number that is none": (leaves(one_is_no_number), "finite"),
    "infinite": (leaves(lambda v: v + math.inf), "finite"),
    "shape": (leaves(lambda v: v.flatten()[:1]), "float32 [1], not"),
    "type": (leaves(lambda v: v.double()), "float64"),
    "leaf missing": (without_last, "missing"),
    "leaf too many": (lambda header, tensors: tensors.update(more=torch.zeros(1)), "'more' is more than"),
    "no seconds": (told(seconds=None), "'seconds'"),
    "seconds": (told(seconds=-1.0), "'seconds'"),
    "no loss": (told(loss=None), "'loss'"),
    "text": (told(loss="x"), "'loss' is 'x'"),
    "loss": (told(loss=math.nan), "'loss' is 'nan'"),
    "too large": (told(loss=10**400), "'loss'"),
    "list": (told(right=[1]), "'right'"),
    "half": (told(right=0.5), "'right'"),
    "truth": (told(tested=True), "'tested'"),
    "more right than tested": (told(right=7, tested=6), "7 right of 6"),
    "deep": (deep, "not a letter"),
}


@pytest.mark.parametrize("case", UPLOADS)
def test_an_update_that_cannot_be_used_is_left_out_of_its_round(case: str, deployed: Make) -> None:
    """What comes out is, to the last bit, what comes out when lima does not answer."""
    twist, complaint = UPLOADS[case]
    deployment = deployed(router=False)
    deployment.server(Twisting(deployment.folder, at=SECOND_ROUND, twist=twist)).go()
    assert [entry["answered"] for entry in deployment.server().run.metrics()] == [list(NAMES), ["oslo", "pune"]]
    assert_same(deployment, without_lima_in_the_second())
    assert len(deployment.complaints) == 1
    assert "lima" in deployment.complaints[0] or case == "deep"
    assert complaint in deployment.complaints[0]
    assert "\n" not in deployment.complaints[0]


def test_a_private_sites_count_is_a_number(deployed: Make) -> None:
    deployment = deployed(privacy={"clip": 1.0, "noise": 3.0})
    deployment.server(Twisting(deployment.folder, at=SECOND_ROUND, twist=told(uploads="two", loss="x"))).go()
    assert deployment.server().run.metrics()[1]["answered"] == ["oslo", "pune"]
    assert "lima is left out, its answer cannot be used: its 'uploads' is 'two'" in deployment.complaints[0]


@pytest.mark.parametrize(
    "change",
    [
        {"samples": 0},
        {"shape": [[8]]},
        {"scale": [1, 2]},
        {"classes": {}},
        {"dtype": []},
        {"version": 3},
        {"privacy": {"clip": "1", "noise": 2}},
        {"crop": 1},
    ],
)
def test_a_site_that_says_odd_things_of_itself_is_asked_again(change: dict[str, Any], deployed: Make) -> None:
    deployment = deployed(router=False)
    brief = deployment.server(Twisting(deployment.folder, at=HELLO, twist=lambda h, t: h.update(change)))._brief()
    assert brief.names == NAMES
    assert len(deployment.complaints) == 1
    assert deployment.complaints[0].startswith(f"lima is left out, its answer cannot be used: its '{list(change)[-1]}'")


def test_an_end_that_cannot_be_used_is_asked_for_again(deployed: Make) -> None:
    deployment = deployed(router=False)
    courier = Twisting(deployment.folder, at=FINISH, twist=told(tested="many"))
    deployment.server(courier).go()
    assert courier.asked == FINISH + 1
    assert "'tested' is 'many'" in deployment.complaints[0]
    assert 0 < deployment.server().run.summary()["average_accuracy"] < 1


SUMS: dict[str, tuple[str, Twist, str]] = {
    "features": ("features", leaves(lambda v: v * math.nan), "finite"),
    "moments": ("moments", leaves(lambda v: v[:-1]), "not torch.float64"),
    "gradient": ("gradient", without_last, "missing"),
    "count": (
        "gradient",
        lambda h, t: t.update({n: v + 10**6 for n, v in t.items() if n.endswith("count")}),
        "counts other",
    ),
    "spread": ("spread", leaves(lambda v: v - 1), "counts other"),
}


@pytest.mark.parametrize("case", SUMS)
def test_sums_that_cannot_be_used_make_the_fit_begin_again_or_go_on(case: str, deployed: Make) -> None:
    step, twist, complaint = SUMS[case]
    routing = {"features": "raw", "path_rounds": 1, "rounds": 1}
    deployment = deployed(routing=routing)
    deployment.server().go()
    folder = deployment.folder / "server" / "runs" / "first"
    router = load_router(folder / "router")
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "router")
    courier = Twisting(deployment.folder, at=step, twist=twist)
    deployment.server(courier).go()
    assert len(deployment.complaints) == 1
    assert deployment.complaints[0].startswith("lima is left out, its answer cannot be used: ")
    assert complaint in deployment.complaints[0]
    if case not in ("gradient", "count"):  # of those a fit may miss some
        assert torch.equal(load_router(folder / "router").weight, router.weight)


@pytest.mark.parametrize("method", ["fedpac", "fedas"])
def test_statistics_beside_leaves_have_their_form_too(method: str, deployed: Make) -> None:
    """As first published: class sums, Fisher traces; and a number that must be the site's own."""
    deployment = deployed(router=False)
    brief = RunSpec.of({**deployment.server()._brief().as_dict(), "method": {"name": method, "variant": "original"}})
    chosen = brief.make_method()
    agenda = RoundSchedule(chosen, brief.make_plan(), 3)
    shared = first_state(chosen, {n: v.detach() for n, v in brief.make_net().named_parameters()}, 1).shared
    for number in (1, 2):
        form, uploads = blank_upload(brief, agenda, shared, number), []
        for i, name in enumerate(NAMES):
            sent = chosen.send(shared, i)
            header = {"brief": brief.as_dict(), "round": number, "after": number - 1}
            answer = unpack(site_of(deployment, name)._train(Message(header, sent)))
            answer.header["seconds"] = 0.1
            uploads.append(check_update(answer, form, sent, False).tensors)
            if method == "fedpac":
                with refused("'client' is not what it was sent"):
                    check_update(answer, form, chosen.send(shared, i + 1), False)
        shared = chosen.aggregate(shared, uploads, torch.full((3,), 1 / 3, dtype=torch.float64))


def test_finite_answers_that_make_no_finite_model_stop_the_run_before_it_is_kept(deployed: Make) -> None:
    """ConFREE multiplies changes: two that are finite, opposite and too large for that."""

    def apart(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors[list(tensors)[-1]] += 1e30 if header["from"] == "lima" else -1e30

    deployment = deployed(router=False, training={"method": "confree"})
    courier = Twisting(deployment.folder, at=SECOND_ROUND, who=("oslo", "lima"), twist=apart)
    with refused("round 2 ends in a model that is not finite", "lr"):
        deployment.server(courier).go()
    kept = Progress.load(deployment.server().checkpoint)
    assert kept.round == 1
    assert all(bool(value.isfinite().all()) for value in kept.shared.values())


def test_a_fault_ends_the_run_and_not_the_server(
    deployed: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = deployed(router=False)

    def fault(self: Server) -> None:
        json.loads("{}")["seconds"]

    monkeypatch.setattr(Server, "go", fault)
    with refused("KeyError in the server"):
        apps.serve(Path(deployment.folder / "server"), None)  # type: ignore[arg-type]
    assert "Traceback" in capsys.readouterr().err
