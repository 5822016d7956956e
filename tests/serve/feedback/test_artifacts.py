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
def challenger(run: Path, tmp_path: Path) -> Path:
    """The same router under another version."""
    folder = Path(shutil.copytree(run / "router", tmp_path / "challenger"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["notes"]["remark"] = "another"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_a_promotion_lasts_and_can_be_undone(served: Path, challenger: Path) -> None:
    first = artifacts(served, challenger=challenger)
    assert first.challenger is not None
    old, new = first.served.version, first.challenger.loaded.version
    assert asyncio.run(first.promote()).version == new
    with pytest.raises(ApiError, match="--challenger"):
        asyncio.run(first.promote())
    again = artifacts(served, challenger=challenger)  # after a restart
    assert (again.served.version, again.challenger, again.folder) == (new, None, challenger)
    assert asyncio.run(again.rollback()).version == old
    assert artifacts(served).served.version == old


def test_a_challenger_that_was_rolled_back_is_not_tried_again(
    served: Path, challenger: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = artifacts(served, challenger=challenger)
    asyncio.run(first.rollback())
    assert first.challenger is None
    with caplog.at_level(logging.WARNING, "feddrm.serve"):
        assert artifacts(served, challenger=challenger).challenger is None
    assert "the challenger is not used" in caplog.text


def test_a_state_that_cannot_be_written_changes_nothing(
    served: Path, challenger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = artifacts(served, challenger=challenger)
    old = first.served.version

    def full(*_: object) -> None:
        raise FeddrmError("the disk is full")

    monkeypatch.setattr(ServingState, "write", full)
    with refused("the disk is full"):
        asyncio.run(first.promote())
    assert first.served.version == old
    assert first.challenger is not None
    assert not (served / "serving.json").exists()


def test_a_challenger_of_other_classes_is_an_error_at_start(served: Path, challenger: Path) -> None:
    manifest = json.loads((challenger / "manifest.json").read_text())
    manifest["notes"]["classes"] = [f"class {i}" for i in range(10)]
    (challenger / "manifest.json").write_text(json.dumps(manifest))
    with refused("other classes", "class 3"):
        artifacts(served, challenger=challenger)
