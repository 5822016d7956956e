"""``feddrm bench deploy`` without its processes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr")

from typer.testing import CliRunner

from feddrm.bench import deploy
from feddrm.cli.app import app
from refusal import refused

pytestmark = pytest.mark.slow

DEPLOYED = {"round_seconds": 1.5, "first_round_seconds": 2.0, "bytes_to_a_site": 10, "bytes_from_a_site": 9}


def test_results_are_kept_after_each_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "_deployed", lambda rounds: dict(DEPLOYED))
    kept: list[dict[str, Any]] = []
    results = deploy.bench_deploy(2, keep=lambda so_far: kept.append(dict(so_far)))
    assert ["resident" in so_far for so_far in kept] == [False, True]
    assert kept[-1] == results
    one = results["one_process"]["round_seconds"]
    assert results["resident"] == {**DEPLOYED, "overhead_seconds": 1.5 - one}


def test_one_round_is_too_few() -> None:
    with refused("rounds=1", "at least 2"):
        deploy.bench_deploy(1)


@pytest.mark.parametrize("words", [[], ["--per-message"], ["--no-per-message"]])
def test_the_old_option_is_accepted_and_has_no_effect(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "_deployed", lambda rounds: dict(DEPLOYED))
    result = CliRunner().invoke(app, ["bench", "deploy", "--rounds", "2", *words], catch_exceptions=False)
    assert result.exit_code == 0
    assert ("no effect" in result.output) == bool(words)
    assert "one process" in result.output
    assert "resident" in result.output
