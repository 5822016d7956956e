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
from feddrm.io.run_files import RunFiles
from feddrm.io.shards import shard_bytes
from feddrm.io.tensors import read_tensors, split_slots
from feddrm.predictor import answers
from feddrm.predictor.predictor import Predictor
from feddrm.router.decisions.decision import BROKEN, UNSURE
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


def test_private_parts_in_a_shard_answer_as_those_in_folders(run: Path, images: Tensor, tmp_path: Path) -> None:
    """Large federations have shards; an older fit has left temperatures and heads in the clients' folders."""
    expected = Run.open(run).predict(images)
    files = RunFiles(Path(shutil.copytree(run, tmp_path / "run")))
    private = {name: files.client(name).private_file for name in Run.open(run).router().names}
    files.shard_file(0).write_bytes(
        shard_bytes({name: split_slots(read_tensors(path, "")) for name, path in private.items()})
    )
    for path in private.values():
        path.unlink()
    found = Run.open(files.path).predict(images)
    np.testing.assert_array_equal(found.probabilities, expected.probabilities)
    files.shard_file(0).unlink()
    with refused("has no private part of client"):
        Run.open(files.path).predict(images)


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
    # The others are answered as if they alone had been asked. In a larger batch the last bit may differ, on ARM.
    assert torch.equal(answers.probabilities[~abstain], opened.predict(images[~abstain]).probabilities)
    torch.testing.assert_close(answers.probabilities[~abstain], whole.probabilities[~abstain], rtol=1e-5, atol=1e-7)
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


def test_fractions_of_white_are_refused(run: Path, images: Tensor) -> None:
    for options in ({}, {"client": "fax"}):
        with refused("queries: floats are network inputs", "whole numbers 0..255"):
            Run.open(run).predict(images.float() / 255, **options)


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


def test_plain_values_are_the_elements_of_the_tensors(run: Path, images: Tensor) -> None:
    answers = Run.open(run).predict(images, coverage=0.5)
    assert answers.decision is not None
    for i, entry in enumerate(answers.as_dicts([str(i) for i in range(len(images))])):
        sure = answers.label_probability[i]
        assert entry["label_probability"] == (None if sure.isnan() else float(sure))
        assert entry["client_probability"] == float(answers.client_probability[i])
        assert entry["abstain"] is bool(answers.decision.abstain[i])


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


def test_label_sets_of_unknown_origin_are_those_of_the_clients_weighed(run: Path, images: Tensor) -> None:
    opened = Run.open(run)
    router, answers = opened.router(), opened.predict(images, label_miss=0.2)
    weights = router.route(images).probabilities.double().numpy()
    predictors = {name: Predictor.load(run / "clients" / name) for name in router.names}
    assert answers.label_sets is not None
    assert {len(clients) for clients in answers.answered} >= {1, 2}
    for i, label_set in enumerate(answers.label_sets):
        ranked = np.argsort(-weights[i])
        asked = ranked[: 1 + int((weights[i, ranked].cumsum() < 0.95).sum())]
        assert answers.answered[i] == tuple(router.names[k] for k in asked)
        own_answers = [predictors[router.names[k]]([("inputs", images[i : i + 1].numpy())])[0] for k in asked]
        p_values = [predictors[router.names[k]].p_values(p)[0] for k, p in zip(asked, own_answers, strict=True)]
        joint = [weights[i, k] * p[0] for k, p in zip(asked, own_answers, strict=True)]
        mixed = sum(w * p for w, p in zip(joint, p_values, strict=True)) / sum(joint)
        near = np.abs(mixed - 0.2) < 0.05  # these images are among the scores: float32 rounds to either side of one
        expected = {name for name, p in zip(answers.classes, mixed, strict=True) if p > 0.2}
        assert {name for name in expected ^ set(label_set or ()) if not near[answers.classes.index(name)]} == set()
    entry = answers.as_dicts([str(i) for i in range(len(images))])[0]
    assert entry["label_set"] == list(answers.label_sets[0] or ())
    assert "label_set" not in Run.open(run).predict(images[:1]).as_dicts(["0"])[0]
    header, rows = answers.csv_table([str(i) for i in range(len(images))])
    assert rows[0][header.index("label_set")] == ",".join(entry["label_set"])


def test_one_client_asked_gives_its_own_label_sets(run: Path, images: Tensor) -> None:
    answers, fax = Run.open(run).predict(images, client="fax", label_miss=0.1), Predictor.load(run / "clients" / "fax")
    expected = fax.label_sets(fax([("inputs", images.numpy())])[0], 0.1)
    assert [list(label_set or ()) for label_set in answers.label_sets or ()] == expected


def test_there_is_no_label_set_where_the_router_abstains_or_clients_are_away(run: Path, images: Tensor) -> None:
    opened = Run.open(run)
    router = opened.router()
    strange = opened.predict(images[:2] * 0 + torch.nan, label_miss=0.1)
    assert strange.label_sets == (None, None)
    doubtful = opened.predict(images, label_miss=0.1, coverage=0.5, abstain="answer")
    assert doubtful.decision is not None
    assert [s is None for s in doubtful.label_sets or ()] == doubtful.decision.abstain.tolist()
    assert None not in doubtful.labels
    away = opened.predict(images, label_miss=0.1, available=["flatbed", "negative"], max_away=1)
    there = router.route(images).probabilities[:, [router.names.index(n) for n in ("flatbed", "negative")]].sum(1)
    assert [s is not None for s in away.label_sets or ()] == (there >= 0.95).tolist()
    assert None not in away.labels
    for clients, held in zip(away.answered, there.tolist(), strict=True):
        assert len(clients) == 1 or held >= 0.95  # nobody is asked for a set that is not given


def test_bad_settings_of_label_sets_are_refused(run: Path, images: Tensor) -> None:
    with refused("label_miss=1.5", "between 0 and 1"):
        Run.open(run).predict(images, label_miss=1.5)
    with refused("rule 'competence'", "density or posterior"):
        Run.open(run).predict(images, label_miss=0.1, rule="competence")
