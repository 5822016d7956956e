"""Asking clients: the order, the fallback, and the check that a client's classes are the gateway's."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import numpy as np
import pytest

from feddrm.serve.settings import UpstreamEntry
from feddrm.serve.upstream.dispatch import Question, SampleAnswers, ask_clients
from feddrm.serve.upstream.upstreams import Upstream

CLASSES = ("benign", "malignant", "normal")


class FakeClient:
    """A client whose health and answers a test can set; ``upstream`` is the gateway's view of it."""

    def __init__(self, classes: tuple[str, ...] = CLASSES, status: int = 200) -> None:
        self.health: Any = {"ready": True}
        self.outputs: dict[str, Any] = {}
        self.status, self.requests = status, 0
        http = httpx.AsyncClient(base_url="http://oslo", transport=httpx.MockTransport(self._reply))
        self.upstream = Upstream("oslo", UpstreamEntry(url="http://oslo"), 100, 0.05, http, classes)

    def _reply(self, request: httpx.Request) -> httpx.Response:
        content = self.health
        if request.method == "POST":
            self.requests += 1
            content = {"outputs": [{"name": name, "data": data} for name, data in self.outputs.items()]}

        async def parts() -> AsyncIterator[bytes]:
            yield json.dumps(content).encode()

        return httpx.Response(self.status, content=parts())

    def check(self) -> str | None:
        """Why it cannot be asked after a health check."""
        asyncio.run(self.upstream.check())
        return self.upstream.unavailable_because

    def ask(self, *rows: list[float], labels: Any = None) -> str | None:
        """Why it failed when it answers with these probabilities and labels."""
        self.outputs = {"probabilities": list(rows)} | ({} if labels is None else {"label": labels})
        return ask([[0]] * len(rows), [self])[0].failed.get(0)


def ask(
    rankings: Sequence[Sequence[int]],
    clients: Sequence[FakeClient | None],
    k: int = 1,
    probabilities: Sequence[float] = (0.2, 0.5, 0.3),
    may_lose: float = math.inf,
) -> list[SampleAnswers]:
    x = np.zeros((len(rankings), 2), np.float32)
    upstreams = [None if client is None else client.upstream for client in clients]
    questions = [Question(ranking, probabilities, may_lose) for ranking in rankings]
    return asyncio.run(ask_clients("inputs", x, questions, upstreams, classes=3, k=k, deadline=10))


def answering(*probabilities: float) -> FakeClient:
    client = FakeClient()
    client.outputs = {"probabilities": [list(probabilities)]}
    return client


def test_the_best_client_is_asked_first_and_the_next_one_where_it_fails() -> None:
    first, broken, last = answering(1, 0, 0), FakeClient(status=500), answering(0, 0, 1)
    (answers,) = ask([[1, 2, 0]], [first, broken, last])
    assert answers.failed == {1: "refused (500)"}
    assert list(answers.probabilities) == [2]
    assert (first.requests, broken.requests, last.requests) == (0, 1, 1)


def test_nobody_else_is_asked_once_too_much_of_the_probability_is_lost() -> None:
    """A sample would travel to another client for an answer that is withheld."""
    for may_lose, asked in ((0.6, 1), (0.5, 1), (0.4, 0)):
        first, broken, last = answering(1, 0, 0), FakeClient(status=500), answering(0, 0, 1)
        (answers,) = ask([[1, 2, 0]], [first, broken, last], may_lose=may_lose)
        assert answers.lost((0.2, 0.5, 0.3)) == 0.5
        assert (broken.requests, last.requests, len(answers.probabilities)) == (1, asked, asked)


def test_a_client_that_does_not_know_the_gateways_key_is_named_as_such() -> None:
    (answers,) = ask([[0]], [FakeClient(status=401)])
    assert "API key" in answers.failed[0]
    assert "clients.yaml" in answers.failed[0]


def test_several_clients_are_consulted_and_excluded_ones_are_not_asked() -> None:
    clients = [answering(1, 0, 0), None, answering(0, 0, 1)]
    (answers,) = ask([[1, 2, 0]], clients, k=3)
    assert sorted(answers.probabilities) == [0, 2]
    mixed, weights = answers.mixture([1, 2, 0], [0.1, 0.6, 0.3]) or ([], {})
    assert list(weights) == [2, 0]
    assert list(weights.values()) == pytest.approx([0.75, 0.25])
    assert list(mixed) == pytest.approx([0.25, 0, 0.75])
    assert SampleAnswers().mixture([0], [1.0]) is None


def test_fallbacks_without_any_weight_are_mixed_equally() -> None:
    (answers,) = ask([[0, 1]], [answering(1, 0, 0), answering(0, 0, 1)], k=2)
    mixed, _ = answers.mixture([0, 1], [0.0, 0.0]) or ([], {})
    assert list(mixed) == pytest.approx([0.5, 0, 0.5])


def test_a_client_with_a_head_of_another_fit_is_not_asked() -> None:
    client = FakeClient()
    client.upstream.fit = "a1"
    client.health = {"ready": True, "classes": list(CLASSES), "fit": "b2"}
    assert client.check() == "has a head of another fit"
    about = client.upstream.as_dict()
    assert (about["healthy"], about["available"]) == (False, False)
    assert about["reason"].startswith("has a head of another fit than the gateway's router: start 'serve-client' again")
    client.upstream.fit = "b2"  # the gateway has loaded the router of this fit
    assert client.check() is None
    assert client.upstream.reason == ""
    client.upstream.fit = None  # or one of an older version
    assert client.upstream.unavailable_because == "has a head of another fit"
    client.health = {"ready": True, "classes": list(CLASSES)}  # a trained model
    assert client.check() is None


@pytest.mark.parametrize(
    "stated", [["benign", "healthy", "malignant"], ["malignant", "benign", "normal"], [], "benign"]
)
def test_a_client_with_other_classes_is_not_asked_until_it_states_ours(stated: Any) -> None:
    client = FakeClient()
    client.health = {"ready": True, "classes": stated}
    assert client.check() == "has other classes"
    about = client.upstream.as_dict()
    assert (about["healthy"], about["available"]) == (False, False)
    assert about["reason"] == "has other classes than the gateway: serve it from the gateway's run"
    with client.upstream.request():  # a request that was running during the check
        pass
    assert client.upstream.unavailable_because == "has other classes"
    assert client.ask([1, 0, 0]) == "has other classes"
    client.health = {"ready": True, "classes": list(CLASSES)}
    assert client.check() is None
    assert (client.upstream.as_dict()["healthy"], client.upstream.reason) == (True, "")
    assert client.ask([1, 0, 0], labels=["benign"]) is None


@pytest.mark.parametrize("health", [{"ready": True}, {"classes": None}, ["classes"], 3])
def test_a_client_that_states_no_classes_is_asked(health: Any) -> None:
    client = FakeClient()
    client.health = health
    assert client.check() is None


def test_a_gateway_without_class_names_compares_nothing() -> None:
    client = FakeClient(())
    client.health = {"classes": ["benign", "healthy", "malignant"]}
    assert client.check() is None
    assert client.ask([1, 0, 0], labels=["anything"]) is None


def test_labels_are_compared_with_the_likeliest_class() -> None:
    client, other = FakeClient(), "answered by other classes"
    assert client.ask([0.1, 0.7, 0.2], labels=["malignant"]) is None
    assert client.ask([0.1, 0.7, 0.2], labels=["healthy"]) == other
    assert client.ask([0.1, 0.7, 0.2], labels=["benign"]) == other
    assert client.ask([0.1, 0.7, 0.2], [0.8, 0.1, 0.1], labels=["malignant", "malignant"]) == other
    assert client.ask([0.1, 0.7, 0.2], labels=["malignant", "malignant"]) == other
    assert client.ask([0.1, 0.7, 0.2], labels="malignant") == other
    assert client.ask([0.1, 0.7, 0.2], labels=[["malignant"]]) == other


def test_labels_that_cannot_be_compared_are_accepted() -> None:
    """Two equally likely classes; a client without class names; a client without labels."""
    client = FakeClient()
    for label, reason in (("benign", None), ("malignant", None), ("normal", "answered by other classes")):
        assert client.ask([0.45, 0.45 + 1e-8, 0.1], labels=[label]) == reason
    assert client.ask([0.1, 0.7, 0.2], labels=["1"]) is None
    assert client.ask([0.1, 0.7, 0.2], labels=["0"]) == "answered by other classes"
    assert client.ask([0.1, 0.7, 0.2]) is None


def with_p_values(probabilities: list[float], p_values: Any, classes: tuple[str, ...] = CLASSES) -> FakeClient:
    client = FakeClient(classes)
    client.outputs = {"probabilities": [probabilities], "p_values": p_values}
    return client


def ask_for_set(clients: Sequence[FakeClient | None], probabilities: Sequence[float]) -> SampleAnswers:
    ranking = sorted(range(len(clients)), key=lambda c: -probabilities[c])
    upstreams = [None if client is None else client.upstream for client in clients]
    questions = [Question(ranking, probabilities, label_miss=0.1)]
    return asyncio.run(
        ask_clients("inputs", np.zeros((1, 2), np.float32), questions, upstreams, classes=3, deadline=10)
    )[0]


def test_a_label_set_asks_as_many_clients_as_hold_the_probability() -> None:
    def clients() -> list[FakeClient]:
        return [with_p_values([0.8, 0.2, 0], [[0.5, 0.3, 0.01]]), with_p_values([0, 0.5, 0.5], [[0.1, 0.2, 0.4]])]

    first, second = clients()
    answers = ask_for_set([first, second], [0.96, 0.04])
    assert (first.requests, second.requests) == (1, 0)
    mixed = answers.mixed_p_values([0.96, 0.04])
    assert mixed is not None
    assert mixed[0].tolist() == pytest.approx([0.5, 0.3, 0.01])
    first, second = clients()
    answers = ask_for_set([first, second], [0.7, 0.3])
    assert (first.requests, second.requests) == (1, 1)
    mixed = answers.mixed_p_values([0.7, 0.3])
    assert mixed is not None
    expected = [0.5, (0.7 * 0.2 * 0.3 + 0.3 * 0.5 * 0.2) / (0.7 * 0.2 + 0.3 * 0.5), 0.4]
    assert mixed[0].tolist() == pytest.approx(expected)
    assert ask_for_set([None, clients()[1]], [0.7, 0.3]).mixed_p_values([0.7, 0.3]) is None


@pytest.mark.parametrize("p_values", [[[0.5, 0.3, 2.0]], [[0.5, 0.3, -0.1]], [[0.5, 0.3, None]], [[0.5, 0.3]], "no"])
def test_numbers_that_are_no_p_values_are_a_failure(p_values: Any) -> None:
    answers = ask_for_set([with_p_values([0.8, 0.2, 0], p_values)], [1.0])
    assert answers.failed[0].startswith("answered ")


def test_a_client_without_p_values_is_named_as_such() -> None:
    refusing = FakeClient(status=409)
    for client in (answering(1, 0, 0), refusing):
        assert ask_for_set([client], [1.0]).failed == {0: "has no scores for label sets"}
        assert client.upstream.unavailable_because is None  # it works
