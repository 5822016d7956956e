from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from feddrm.router import Router
from feddrm.serve.feedback.challenger import Challenger, choices
from feddrm.serve.loaded_router import Decisions, LoadedRouter, RouterQuery, decide
from feddrm.serve.settings import GatewaySettings
from feddrm.serve.telemetry.metrics import Metrics
from serving import until

ALL = (True, True, True)


@pytest.fixture(scope="module")
def loaded(run: Path) -> LoadedRouter:
    return LoadedRouter.load(run / "router", GatewaySettings(), Metrics())


@pytest.fixture
def query(images: torch.Tensor) -> RouterQuery:
    return RouterQuery("inputs", images.numpy(), "density", 1.0, ALL, 0.5)


class Results:
    """A shadow of this router, and its results by name."""

    def __init__(self, loaded: LoadedRouter, router: Router, **settings: object) -> None:
        self.counts: Counter[str] = Counter()
        given = GatewaySettings(**settings)  # type: ignore[arg-type]
        shadow = replace(loaded, router=router)
        self.challenger = Challenger(shadow, given, lambda result, n: self.counts.update({result: n}))


def test_the_canary_takes_its_share_and_the_same_request_always(loaded: LoadedRouter) -> None:
    shares = {}
    for share in (0.1, 0.5):
        canary = Challenger(loaded, GatewaySettings(challenger=Path("x"), challenger_share=share))
        taken = [canary.takes(f"request {i}") for i in range(10_000)]
        assert taken == [canary.takes(f"request {i}") for i in range(10_000)]
        shares[share] = taken
    assert sum(shares[0.1]) == pytest.approx(1000, abs=4 * np.sqrt(900))
    assert all(late or not early for early, late in zip(shares[0.1], shares[0.5], strict=True))  # a larger share adds


def test_the_shadow_counts_decisions_that_would_change(loaded: LoadedRouter, query: RouterQuery) -> None:
    (served,) = decide(loaded.router, [query])
    rolled = {name: getattr(loaded.router, name).roll(1, 0) for name in ("weight", "bias", "log_prior")}
    turned = replace(loaded.router, **rolled)
    for router, expected in ((loaded.router, {"same": len(query.x)}), (turned, {"changed": len(query.x)})):
        results = Results(loaded, router)
        results.challenger.compare(query, loaded, served)
        results.challenger.close()
        assert results.counts == expected
        assert not results.challenger.takes("any")  # a shadow answers nobody


def test_a_shadow_that_fails_or_hangs_breaks_and_delays_nothing(
    loaded: LoadedRouter, query: RouterQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    (served,) = decide(loaded.router, [query])
    rows = len(query.x)
    results = Results(loaded, loaded.router, max_waiting_rows=3 * rows)
    broken = query._replace(kind="features", x=np.zeros((rows, 1), np.float32))
    results.challenger.compare(broken, loaded, served)
    until(lambda: results.counts == {"failed": rows})
    hang = threading.Event()
    monkeypatch.setattr("feddrm.serve.feedback.challenger.decide", lambda *_: hang.wait())
    for _ in range(5):
        results.challenger.compare(query, loaded, served)  # returns while the shadow hangs
    assert results.counts["dropped"] == 2 * rows
    results.challenger.close()
    hang.set()


def test_choices_name_clients(loaded: LoadedRouter) -> None:
    decisions = Decisions(np.array([1, -1]), *[np.zeros(2)] * 6, reason=["", "unsure"])
    assert choices(("a", "b"), decisions) == [("b", False), (None, True)]
