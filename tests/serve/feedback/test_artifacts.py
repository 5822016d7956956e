from __future__ import annotations

import asyncio
import json
import logging
import shutil
from pathlib import Path

import pytest

from feddrm.errors import FeddrmError
from feddrm.serve.feedback.artifacts import Artifacts
from feddrm.serve.feedback.serving_state import ServingState
from feddrm.serve.http.error_responses import ApiError
from feddrm.serve.settings import GatewaySettings
from feddrm.serve.telemetry.metrics import Metrics
from feddrm.serve.upstream.upstreams import Upstreams
from refusal import refused


def artifacts(run: Path, **settings: object) -> Artifacts:
    given = GatewaySettings(**settings)  # type: ignore[arg-type]
    return Artifacts(run, given, Metrics(), Upstreams(), tuple(map(str, range(10))))


@pytest.fixture
def served(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture
def candidate(run: Path, tmp_path: Path) -> Path:
    """The same router under another version."""
    folder = Path(shutil.copytree(run / "router", tmp_path / "candidate"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["notes"]["remark"] = "another"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_a_promotion_lasts_and_can_be_undone(served: Path, candidate: Path) -> None:
    first = artifacts(served, candidate=candidate)
    assert first.candidate is not None
    old, new = first.served.version, first.candidate.loaded.version
    assert asyncio.run(first.promote()).version == new
    with pytest.raises(ApiError, match="--candidate"):
        asyncio.run(first.promote())
    again = artifacts(served, candidate=candidate)  # after a restart
    assert (again.served.version, again.candidate, again.folder) == (new, None, candidate)
    assert asyncio.run(again.rollback()).version == old
    assert artifacts(served).served.version == old


def test_a_candidate_that_was_rolled_back_is_not_tried_again(
    served: Path, candidate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = artifacts(served, candidate=candidate)
    asyncio.run(first.rollback())
    assert first.candidate is None
    with caplog.at_level(logging.WARNING, "feddrm.serve"):
        assert artifacts(served, candidate=candidate).candidate is None
    assert "the candidate is not used" in caplog.text


def test_a_state_that_cannot_be_written_changes_nothing(
    served: Path, candidate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = artifacts(served, candidate=candidate)
    old = first.served.version

    def full(*_: object) -> None:
        raise FeddrmError("the disk is full")

    monkeypatch.setattr(ServingState, "write", full)
    with refused("the disk is full"):
        asyncio.run(first.promote())
    assert first.served.version == old
    assert first.candidate is not None
    assert not (served / "serving.json").exists()


def test_a_candidate_of_other_classes_is_an_error_at_start(served: Path, candidate: Path) -> None:
    manifest = json.loads((candidate / "manifest.json").read_text())
    manifest["notes"]["classes"] = [f"class {i}" for i in range(10)]
    (candidate / "manifest.json").write_text(json.dumps(manifest))
    with refused("other classes", "class 3"):
        artifacts(served, candidate=candidate)
