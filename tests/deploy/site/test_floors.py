"""The floors of a site: no message of any kind carries a sum over fewer samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deployment import NAMES, QUICK_ROUTING, Deployed, DirectTransport
from feddrm.data import Client, Split
from feddrm.data.sources.table_rows import RawRows
from feddrm.deploy.server.reply_validation import HELLO_FIELDS
from feddrm.deploy.server.training import ServerState, Training
from feddrm.deploy.site.floors import Floors
from feddrm.deploy.site.site_fit import ROW_STEPS
from feddrm.deploy.wire.messages import Message, pack, sign, unpack, verify
from feddrm.router.policy import subject_shares
from feddrm.tables.column_sums import table_sums
from refusal import refused

Make = Callable[..., Deployed]


def client(train: list[int], test: int, whose: list[int] | None = None) -> Client:
    """Its training samples may be of subjects; its test samples are of two at most then."""
    splits = (torch.tensor(train), torch.zeros(test, dtype=torch.int64))
    subjects = (None, None) if whose is None else (torch.tensor(whose), torch.arange(test) % 2)
    return Client("oslo", *(Split(torch.zeros(len(y), 2), y, own) for y, own in zip(splits, subjects, strict=True)))


def test_a_client_with_enough_samples_passes_and_each_floor_refuses() -> None:
    floors = Floors(per_class=2, per_sum=4)
    floors.check_client(client([0, 0, 2, 2], 4), tested=True)
    floors.check_client(client([0, 0, 2, 2], 0), tested=True)
    floors.check_client(client([0, 0, 2, 2], 3), tested=False)
    text = "the training samples: fewer samples (a subject counts once) than the floor per_sum=4 of its site.yaml"
    with refused(text, "lower the floor"):
        floors.check_client(client([0, 0, 2], 4), tested=True)
    with refused("a class of the training samples", "per_class=2"):
        floors.check_client(client([0, 0, 0, 2], 4), tested=True)
    with refused("the test samples", "per_sum=4"):
        floors.check_client(client([0, 0, 2, 2], 3), tested=True)


def test_samples_of_one_subject_count_once() -> None:
    """A sum over ten visits of one patient tells of that patient."""
    visits = client([0, 0, 0, 1, 1, 1], 6, whose=[7, 7, 3, 3, 3, 5])
    Floors(per_class=2, per_sum=3).check_client(visits, tested=False)
    Floors(per_class=2, per_sum=2).check_client(visits, tested=True)
    for floors, what in (
        (Floors(per_sum=4), "the training samples"),
        (Floors(per_class=3), "a class of the training samples"),
        (Floors(per_sum=3), "the test samples"),
    ):
        with refused(what, "a subject counts once"):
            floors.check_client(visits, tested=True)


def test_numbers_of_samples_stay_in_the_sites_log(caplog: pytest.LogCaptureFixture) -> None:
    with refused("per_sum=90") as caught:
        Floors(per_sum=90).check_sum(37, "a fold")
    assert "37" not in str(caught.value)
    assert "37" in caplog.text


def test_columns_with_few_numbers_or_rare_texts_are_refused() -> None:
    cells = [["1", "f"], ["2", "f"], ["", "m"], ["4", "m"], ["5", "m"]]
    sums, every = table_sums(["age", "sex"], cells, [True] * 5, ()), [True] * 5
    Floors(per_class=2, per_sum=4).check_columns(sums, RawRows(cells), every)
    with refused("column 'age'", "per_sum=5"):
        Floors(per_sum=5).check_columns(sums, RawRows(cells), every)
    with refused("a text of column 'sex'", "per_class=3"):
        Floors(per_class=3).check_columns(sums, RawRows(cells), every)


@pytest.mark.parametrize(("whose", "ages", "f", "m"), [("aabbb", 2, 1, 1), ("abcde", 4, 2, 3), ("acbaa", 2, 2, 2)])
def test_rows_of_one_subject_count_once_in_a_column(whose: str, ages: int, f: int, m: int) -> None:
    cells = [["1", "f"], ["2", "f"], ["", "m"], ["4", "m"], ["5", "m"]]
    sums, rows, every = (
        table_sums(["age", "sex"], cells, [True] * 5, ()),
        RawRows(cells, subjects=list(whose)),
        [True] * 5,
    )
    Floors(per_class=min(f, m), per_sum=ages).check_columns(sums, rows, every)
    with refused("column 'age'"):
        Floors(per_sum=ages + 1).check_columns(sums, rows, every)
    with refused("a text of column 'sex'"):
        Floors(per_class=min(f, m) + 1).check_columns(sums, rows, every)


@given(st.lists(st.tuples(st.sampled_from(["1", "2.5", "", "?", "-3"]), st.booleans()), min_size=1, max_size=9))
def test_numbers_of_a_column_are_counted_as_its_sums_count_them(rows: list[tuple[str, bool]]) -> None:
    cells, counted = [[cell] for cell, _ in rows], [used for _, used in rows]
    sums = table_sums(["age"], cells, counted, ())
    count = sums["age"].count
    Floors(per_sum=max(count, 1)).check_columns(sums, RawRows(cells), counted)
    if count:
        with refused("column 'age'"):
            Floors(per_sum=count + 1).check_columns(sums, RawRows(cells), counted)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), min_size=1, max_size=60), st.integers(1, 6))
def test_pooled_bins_have_enough_subjects_and_no_sample_moves_up(rows: list[tuple[int, int]], floor: int) -> None:
    place, subject = (torch.tensor(part) for part in zip(*rows, strict=True))
    before = torch.bincount(place, minlength=21)
    each = torch.ones_like(place)
    after = Floors(per_sum=floor).pooled(place, subject, each, 21)
    assert after.sum() == before.sum()
    assert bool((after.cumsum(0) >= before.cumsum(0)).all()), "a threshold may only err towards larger sets"
    if len(torch.unique(subject)) >= floor:
        rising, ends = place.sort(), after.cumsum(0)  # every bin has the next samples in the order of their places
        for low, high in zip([0, *ends.tolist()], ends.tolist(), strict=False):
            assert low == high or len(torch.unique(subject[rising.indices[low:high]])) >= floor
    assert torch.equal(Floors().pooled(place, subject, each, 21), before)


def test_bins_are_joined_until_they_have_enough_subjects() -> None:
    place, visits = torch.tensor([9, 9, 7, 5, 5, 2]), torch.tensor([1, 1, 1, 2, 3, 3])
    floors, each = Floors(per_sum=2), torch.ones_like(place)
    assert floors.pooled(place, torch.arange(6), each, 10).tolist() == [0, 0, 4, 0, 0, 0, 0, 0, 0, 2]
    assert floors.pooled(place[:5], visits[:5], each[:5], 10).tolist() == [0, 0, 0, 0, 0, 5, 0, 0, 0, 0]
    place, visits = torch.tensor([9, 9, 7, 7, 2, 2]), torch.tensor([1, 1, 2, 3, 3, 4])
    assert floors.pooled(place, visits, subject_shares(visits), 10).tolist() == [0, 0, 1.5, 0, 0, 0, 0, 2.5, 0, 0]


def refusals(deployment: Deployed, header: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None) -> Message:
    """The reply of oslo to a message that the server has signed."""
    server = deployment.server()
    content = pack({"to": "*" if header["kind"] == "hello" else "oslo", **header}, tensors)
    reply = deployment.site("oslo").handle(sign(content, server.channel.key))
    return unpack(verify(reply, server.channel.site_keys["oslo"], "oslo"))


@pytest.mark.slow
@pytest.mark.parametrize("floor", ["per_sum", "per_class"])
@pytest.mark.parametrize("kind", ["hello", "train", "finish"])
def test_a_message_that_would_carry_a_sum_below_a_floor_is_refused(kind: str, floor: str, deployed: Make) -> None:
    deployment = deployed(router=False)
    server = deployment.server()
    spec = server.run_spec()
    shared = Training(server.settings, spec, server.channel).initial_state().shared
    deployment.change_site("oslo", floors={floor: 5000})
    reply = refusals(deployment, {"kind": kind, "brief": spec.as_dict(), "round": 1, "after": 0}, shared)
    assert f"the floor {floor}=5000 of its site.yaml" in reply.header["error"]
    assert not reply.tensors
    assert not set(reply.header) & {*HELLO_FIELDS, "loss", "right", "tested"}


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "local_steps", "too_few"), [(1, 1, True), (4, 4, True), (4, 5, False)])
def test_a_round_whose_batches_have_fewer_samples_than_the_floor_is_refused(
    batch_size: int, local_steps: int, too_few: bool, deployed: Make
) -> None:
    """The upload of one step on one sample is its gradient, from which the sample can be computed."""
    training = {"method": "fedavg", "batch_size": batch_size, "local_steps": local_steps}
    deployment = deployed(few=True, router=False, training=training)
    deployment.change_site("oslo", floors={"per_sum": 20})
    server = deployment.server()
    shared = Training(server.settings, server.run_spec(), server.channel).initial_state().shared
    header = {"kind": "train", "brief": server.run_spec().as_dict(), "round": 1, "after": 0}
    reply = refusals(deployment, header, shared)
    assert (not reply.tensors) == too_few
    assert ("the batches of a round: fewer samples" in reply.header.get("error", "")) == too_few


@pytest.mark.slow
def test_a_run_waits_for_a_site_below_its_floor_with_the_reason(deployed: Make) -> None:
    """Before the first round: nothing of the site has left."""
    deployment = deployed(router=False)
    deployment.change_site("lima", floors={"per_sum": 5000})
    server = deployment.server()
    waited: list[str] = []

    def pause(number: int, missing: str) -> None:
        waited.append(missing)
        if len(waited) > 1:
            deployment.change_site("lima", floors={"per_sum": 1})

    server.waiting.pause = pause  # type: ignore[method-assign]
    server.go()
    assert waited[0].startswith(
        "lima (the training samples: fewer samples (a subject counts once) than the floor per_sum=5000"
    )
    assert server.run.summary()["rounds"] == 2


@pytest.mark.slow
def test_every_step_of_a_fit_is_covered(deployed: Make) -> None:
    """All messages of a whole fit with heads are sent again to a site with a floor above its folds."""
    routing = {"features": "raw", "path_rounds": 1, "rounds": 1, "heads": True, "joint": True}
    deployment = deployed(few=True, routing=routing)
    transport = DirectTransport(deployment.folder)
    deployment.server(transport).go()
    requests = {}
    for way, name, signed in transport.messages:
        message = unpack(signed[2 + int.from_bytes(signed[:2], "big") :])
        if (way, name, message.header.get("kind")) == ("to", "oslo", "fit"):
            folds = [fold for _, _, fold in message.header.get("fits", {"": (0, 0, 0)}).values()]
            requests[message.header["step"], set(folds) == {None}] = message
    for (step, whole), message in list(requests.items()):  # a comparison's last question is of the same form
        if step in ("evaluate", "gradient"):
            requests["score_scatter", whole] = Message({**message.header, "step": "score_scatter"}, message.tensors)
    assert ("score_scatter", True) in requests
    run = deployment.site("oslo")._run_of(next(iter(requests.values())))
    assert {step for step, _ in requests} == set(run.fit._steps) - set(ROW_STEPS)
    assert len(run.client.train) > 60, "all training samples pass, their folds do not"
    for floor in (60, 5000):
        deployment.change_site("oslo", floors={"per_sum": floor})
        for (step, whole), message in requests.items():
            reply = refusals(deployment, message.header, message.tensors)
            if step == "keep":  # it answers with nothing
                assert not reply.tensors
            elif floor == 5000 or not whole:
                text = f"samples: fewer samples (a subject counts once) than the floor per_sum={floor}"
                assert text in reply.header["error"], step
                assert not reply.tensors
            else:
                assert reply.tensors


@pytest.mark.slow
def test_a_fit_of_classes_needs_the_floor_of_every_class(deployed: Make) -> None:
    """Gradients at zero show the sums of every class."""
    routing = {"features": "raw", "path_rounds": 1, "rounds": 1, "heads": True, "joint": False}
    deployment = deployed(few=True, routing=routing)
    transport = DirectTransport(deployment.folder)
    deployment.server(transport).go()
    messages = [unpack(content[2 + int.from_bytes(content[:2], "big") :]) for _, _, content in transport.messages]
    asked = next(m for m in messages if "class" in {target for _, target, _ in m.header.get("fits", {}).values()})
    client = deployment.site("oslo").dataset.client(deployment.server().run_spec().classes)
    most = int(torch.bincount(client.train.y).max())
    deployment.change_site("oslo", floors={"per_class": most})
    reply = refusals(deployment, {**asked.header, "to": "oslo"}, asked.tensors)
    text = f"a class of the samples of a fit: fewer samples (a subject counts once) than the floor per_class={most}"
    assert text in reply.header["error"]
    assert not reply.tensors


@pytest.mark.slow
def test_a_run_above_all_floors_ends_with_a_router_and_without_metrics(deployed: Make) -> None:
    deployment = deployed(routing=QUICK_ROUTING)
    for name in NAMES:
        deployment.change_site(name, floors={"per_sum": 20})
    transport = DirectTransport(deployment.folder)
    deployment.server(transport).go()
    summary = deployment.server().run.summary()
    assert summary["router"] is not None
    assert summary["without_metrics"] == list(NAMES)
    assert summary["average_accuracy"] > 0
    for way, _, signed in transport.messages:
        tensors = unpack(signed[2 + int.from_bytes(signed[:2], "big") :]).tensors
        for name in [name for name in tensors if way == "from" and name.endswith(("/top", "/own"))]:
            assert all(count == 0 or count >= 20 for count in tensors[name].tolist())
    assert ServerState.load(deployment.run / "checkpoint.safetensors").round == 2
