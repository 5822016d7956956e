from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from feddrm.data import load
from feddrm.predictor.predictor import Predictor
from feddrm.router import load_router
from feddrm.router.artifact import artifact_version, save_router
from feddrm.runs import Run
from feddrm.serve.feedback.replay import ABSTAINS, replay
from feddrm.serve.feedback.use_log import Outcome, Use, UseLog
from refusal import refused


@pytest.fixture(scope="module")
def new(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The router with two clients interchanged: all decisions for one of them change."""
    router = load_router(run / "router")
    order = [1, 0, 2]
    swapped = {name: getattr(router, name)[order] for name in ("weight", "bias", "log_prior")}
    folder = tmp_path_factory.mktemp("replay") / "new"
    save_router(folder, replace(router, **swapped), model={"name": "mlp", "hidden": [32, 16], "branch": 16}, classes=10)
    return folder


@pytest.fixture
def use_log(run: Path, tmp_path: Path) -> UseLog:
    """Features of test digits that the run's router decided about; outcomes are the true labels."""
    digits, router = load("digits", clients=3, seed=3), load_router(run / "router")
    x, y = (torch.cat([getattr(client.test, part)[:40] for client in digits.clients]) for part in ("x", "y"))
    features, decision = router.features(x).numpy(), router.route(x)
    log = UseLog(tmp_path / "uses.sqlite", retention_days=1, max_rows=1000, feature_rows=1000)
    version = artifact_version(run / "router")
    for i, client in enumerate(decision.client.tolist()):
        name = router.names[client]
        log.add(Use(time.time(), str(i), 0, "predict", version, name, None, None, "", features[i].tobytes()))
    log.close()
    log.add_outcomes([Outcome(str(i), digits.classes[int(label)]) for i, label in enumerate(y) if i % 2])
    return log


def test_changes_and_their_gain_are_those_of_routing_and_asking_again(run: Path, new: Path, use_log: UseLog) -> None:
    digits, old = load("digits", clients=3, seed=3), load_router(run / "router")
    x, y = (torch.cat([getattr(client.test, part)[:40] for client in digits.clients]) for part in ("x", "y"))
    names = [
        [ABSTAINS if reason else router.names[c] for c, reason in zip(d.client.tolist(), d.reason, strict=True)]
        for router in (old, load_router(new))
        for d in [router.route(x)]
    ]
    found = replay(use_log.path, run, new)
    changed = [i for i in range(len(x)) if names[0][i] != names[1][i]]
    assert (found.queries, found.changed) == (len(x), len(changed))
    assert found.changed > 0
    assert sum(found.moves.values()) == found.changed
    assert set(found.moves) == {(names[0][i], names[1][i]) for i in changed}

    def right(i: int, client: str) -> bool:
        if client == ABSTAINS:
            return False
        (p,) = Predictor.load(run / "clients" / client)([("features", old.features(x[i : i + 1]).numpy())])
        return int(p.argmax()) == int(y[i])

    gains = [int(right(i, names[1][i])) - int(right(i, names[0][i])) for i in changed if i % 2]
    assert (found.better, found.worse, found.unknown) == (gains.count(1), gains.count(-1), 0)
    assert found.judged == len(x) // 2
    assert found.gain is not None
    assert found.gain.mean == pytest.approx(sum(gains) / found.judged)
    assert found.gain.interval is not None
    assert found.gain.interval[0] < found.gain.mean < found.gain.interval[1]


def test_the_same_router_changes_nothing(run: Path, use_log: UseLog) -> None:
    found = replay(use_log.path, run, run)
    assert (found.changed, found.moves, found.better, found.worse) == (0, {}, 0, 0)
    assert found.as_dict()["gain"] == {"mean": 0.0, "interval": None}


def test_answers_of_clients_that_are_elsewhere_are_unknown(
    run: Path, new: Path, use_log: UseLog, tmp_path: Path
) -> None:
    shutil.copytree(run / "router", tmp_path / "server" / "router")  # no client's private part
    found = replay(use_log.path, tmp_path / "server", new)
    assert found.unknown > 0
    assert found.better == found.worse == 0


def test_what_cannot_be_compared_is_one_clear_line(run: Path, new: Path, use_log: UseLog, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    Run.open(other).fit_router(load("digits", clients=3, seed=3), features="raw", heads=False)
    with refused("other features (raw)", "embedding", "challenger"):
        replay(use_log.path, run, other)
    with refused("no features of queries to", "--record-features"):
        replay(use_log.path, other, run)
    with refused("no use log", "--use-log FILE"):
        replay(tmp_path / "nothing", run, new)
