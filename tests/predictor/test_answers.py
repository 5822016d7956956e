"""Answers of a run's clients without a server: whom they come from, how they are mixed, and what is withheld."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from feddrm.data import Federation
from feddrm.predictor import answers
from feddrm.predictor.predictor import Predictor
from feddrm.router.router import BROKEN, UNSURE
from feddrm.runs import Run
from photographs import allow_views
from refusal import refused

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def images(digits: Federation) -> Tensor:
    return torch.cat([client.test.x[:60] for client in digits.clients])


def own(run: Path, name: str, x: Tensor, answer: str = "trained") -> np.ndarray:
    """The answers of one client's predictor."""
    return Predictor.load(run / "clients" / name, answer=answer)([("inputs", x.numpy())])[0]


def test_answers_under_two_routers_are_refused(run: Path, images: Tensor, tmp_path: Path, monkeypatch: Any) -> None:
    """Another process commits a new router while the clients are asked."""
    copy = Path(shutil.copytree(run, tmp_path / "run"))

    def load_and_commit(*arguments: Any) -> Predictor:
        (copy / "router" / ".commit").write_text("0123456789ab")
        return Predictor.load(*arguments)

    monkeypatch.setattr(answers, "_load_predictor", lambda run, name, answer: load_and_commit(run.client(name).path))
    with refused("the router of", "was replaced meanwhile", "ask again"):
        Run.open(copy).predict(images)


def test_every_query_is_answered_by_the_client_that_the_router_names(run: Path, images: Tensor) -> None:
    answers, router = Run.open(run).predict(images), Run.open(run).router()
    decision = router.route(images)
    assert len(set(answers.client)) == 3
    for i, place in enumerate(decision.client.tolist()):
        name = router.names[place]
        assert (answers.client[i], answers.answered[i]) == (name, (name,))
        assert float(answers.client_probability[i]) == pytest.approx(float(decision.probabilities[i, place]))
    for name in router.names:
        mine = [i for i, client in enumerate(answers.client) if client == name]
        expected = own(run, name, images[mine])
        np.testing.assert_allclose(answers.probabilities[mine], expected, rtol=1e-5, atol=1e-7)
        assert [answers.labels[i] for i in mine] == [answers.classes[k] for k in expected.argmax(1)]
        np.testing.assert_allclose(answers.label_probability[mine], expected.max(1), rtol=1e-5)
    assert answers.decision is not None
    assert repr(answers) == f"Answers({len(images)} labels for {len(images)} queries, 10 classes)"


def test_consulted_clients_are_mixed_by_the_routers_weights(run: Path, images: Tensor) -> None:
    answers, router = Run.open(run).predict(images[:20], consult=2, rule="posterior"), Run.open(run).router()
    weights = router.route(images[:20], rule="posterior").probabilities.double().numpy()
    members = np.stack([own(run, name, images[:20]) for name in router.names])
    for i in range(20):
        best = np.argsort(-weights[i])[:2]
        share = weights[i, best] / weights[i, best].sum()
        np.testing.assert_allclose(answers.probabilities[i], share @ members[best, i], rtol=1e-5, atol=1e-7)
        assert answers.answered[i] == tuple(router.names[k] for k in best)
    everyone = Run.open(run).predict(images[:20], consult=3, rule="posterior")
    np.testing.assert_allclose(
        everyone.probabilities, np.einsum("ni,ink->nk", weights, members), rtol=1e-5, atol=1e-7
    )  # fmt: skip


def test_a_named_client_answers_without_the_router(run: Path, images: Tensor) -> None:
    for answer in ("trained", "refit"):
        answers = Run.open(run).predict(images.numpy(), client="fax", answer=answer)
        np.testing.assert_allclose(answers.probabilities, own(run, "fax", images, answer), rtol=1e-5, atol=1e-7)
        assert answers.decision is None
        assert answers.client_probability.isnan().all()
        assert set(answers.answered) == {("fax",)}


def test_where_the_router_abstains_there_is_no_label_unless_it_is_asked_for(run: Path, images: Tensor) -> None:
    opened = Run.open(run)
    answers, whole = opened.predict(images, coverage=0.5), opened.predict(images)
    assert answers.decision is not None
    abstain = answers.decision.abstain
    assert 0 < int(abstain.sum()) < len(images)
    assert [label is None for label in answers.labels] == abstain.tolist()
    assert answers.probabilities[abstain].isnan().all()
    assert answers.label_probability[abstain].isnan().all()
    assert torch.equal(answers.probabilities[~abstain], whole.probabilities[~abstain])
    assert all((answers.answered[i] == ()) == bool(abstain[i]) for i in range(len(images)))
    asked = opened.predict(images, coverage=0.5, abstain="answer")
    assert asked.labels == whole.labels
    assert asked.decision is not None
    assert asked.decision.abstain.tolist() == abstain.tolist()
    assert UNSURE in asked.decision.reason


def test_a_query_that_cannot_be_is_never_answered(run: Path, images: Tensor) -> None:
    inputs = Run.open(run).router().inputs(images[:3]).clone()
    inputs[1] = float("nan")
    answers = Run.open(run).predict(inputs, abstain="answer")
    assert [label is None for label in answers.labels] == [False, True, False]
    assert answers.client[1] is None
    assert answers.decision is not None
    assert answers.decision.reason[1] == BROKEN


def test_unavailable_clients_are_not_asked(run: Path, images: Tensor, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "clients" / "fax")  # as on a machine that must not hold it
    opened = Run.open(tmp_path / "run")
    with refused("no private part of client 'fax'", "feddrm query"):
        opened.predict(images)
    answers = opened.predict(images, available=["flatbed", "negative"], consult=3, abstain="answer")
    assert {name for names in answers.answered for name in names} == {"flatbed", "negative"}
    assert all(len(names) == 2 for names in answers.answered)
    assert opened.predict(images[:2], client="negative").answered == (("negative",), ("negative",))


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"client": "faxx"}, ["unknown client 'faxx'", "did you mean 'fax'"]),
        ({"client": "fax", "consult": 2, "rule": "density"}, ["leave out consult and rule"]),
        ({"consult": 0}, ["consult 0 of 3 clients", "give 1 to 3"]),
        ({"consult": 4}, ["consult 4 of 3 clients"]),
        ({"abstain": "refuse"}, ["unknown abstain 'refuse'", "mark, answer"]),
        ({"answer": "guess"}, ["answer 'guess'", "trained or refit"]),
        ({"available": ["quito"]}, ["unknown client 'quito'"]),
        ({"rule": "competence", "costs": {"quito": 0.1}}, ["unknown client 'quito'"]),
        ({"costs": {"fax": 0.1}}, ["only rule 'competence' weighs costs"]),
    ],
)
def test_wrong_options_are_one_line(run: Path, images: Tensor, options: dict[str, Any], parts: list[str]) -> None:
    with refused(*parts):
        Run.open(run).predict(images[:2], **options)


def test_answers_as_plain_values_and_as_a_table(run: Path, images: Tensor) -> None:
    names = [f"q{i}" for i in range(len(images))]
    answers = Run.open(run).predict(images, coverage=0.5, consult=2)
    assert answers.decision is not None
    entries, (header, rows) = answers.as_dicts(names), answers.csv_table(names)
    held, given = (answers.decision.abstain.tolist().index(value) for value in (True, False))
    assert entries[held] | {"client_probability": 0} == {
        "query": f"q{held}", "label": None, "label_probability": None, "client": answers.client[held],
        "client_probability": 0, "answered": [], "abstain": True, "reason": UNSURE, "flags": [],
        "probabilities": None,
    }  # fmt: skip
    assert sum(entries[given]["probabilities"].values()) == pytest.approx(1)
    assert header == [
        *("query", "label", "label_probability", "client", "client_probability", "answered", "abstain", "reason"),
        *(f"probability of {k}" for k in range(10)),
    ]  # fmt: skip
    assert rows[held][-10:] == [None] * 10
    assert rows[given][5] == ",".join(answers.answered[given])
    assert rows[given][-10:] == answers.probabilities[given].tolist()


def test_views_are_averaged_by_router_and_clients(run: Path, images: Tensor, tmp_path: Path) -> None:
    copy = allow_views(run, tmp_path / "run")
    answers, router = Run.open(copy).predict(images, views=4, abstain="answer"), Run.open(copy).router()
    decision = router.route(images, views=4)
    assert answers.client == tuple(router.names[i] for i in decision.client.tolist())
    for name in router.names:
        mine = [i for i, client in enumerate(answers.client) if client == name]
        (expected,) = Predictor.load(copy / "clients" / name, views=4)([("inputs", images[mine].numpy())])
        np.testing.assert_allclose(answers.probabilities[mine], expected, rtol=1e-5, atol=1e-7)
    alone = Run.open(copy).predict(images, client="fax", views=4).probabilities
    assert not np.allclose(alone, Run.open(copy).predict(images, client="fax").probabilities)


def test_the_client_that_is_likeliest_right_answers(run: Path, images: Tensor) -> None:
    router, costs = Run.open(run).router(), {"flatbed": 1.0, "negative": 0.02}
    decision = router.route(images, rule="competence", costs=costs)
    answers = Run.open(run).predict(images, rule="competence", costs=costs)
    assert [name for (name,) in answers.answered] == [router.names[i] for i in decision.client.tolist()]
    assert "flatbed" not in answers.client
    assert "flatbed" in Run.open(run).predict(images, rule="competence").client
    names = [f"q{i}" for i in range(len(images))]
    entry, (header, rows) = answers.as_dicts(names)[0], answers.csv_table(names)
    assert entry["right_probability"] == pytest.approx(float(decision.right_probability[0]))
    assert rows[0][header.index("right_probability")] == entry["right_probability"]
