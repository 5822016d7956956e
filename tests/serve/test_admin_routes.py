from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from feddrm.data import load
from feddrm.runs import Run
from feddrm.serve.auth import SCOPES, add_key
from serving import in_process


@pytest.fixture(scope="module")
def other(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with a router on other features."""
    path = tmp_path_factory.mktemp("other") / "run"
    shutil.copytree(run, path)
    Run.open(path).fit_router(load("digits", clients=3, seed=3), features="raw", heads=False)
    return path


def metric(text: str, name: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith(f"{name}{{")]
    return {labels.removeprefix(name): float(value) for labels, _, value in lines}


def test_outcomes_are_stored_shown_and_refused_with_the_right_status(
    run: Path, images: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with in_process(run, tmp_path, monkeypatch, use_log=tmp_path / "uses.sqlite") as http:
            body = {"inputs": images.tolist(), "abstain": "answer"}
            found = (await http.post("/v1/predict", json=body)).json()
            name, labels = found["request_id"], [answer["label"] for answer in found["answers"]]
            wrong = "1" if labels[1] != "1" else "2"
            reports = [{"request_id": name, "label": labels[0], "place": 0},
                       {"request_id": name, "label": wrong, "place": 1}]  # fmt: skip
            answer = await http.post("/v1/outcomes", json={"outcomes": reports})
            assert (answer.status_code, answer.json()) == (200, {"stored": 2, "known": 0})
            answer = await http.post("/v1/outcomes", json=reports[0])
            assert answer.json() == {"stored": 0, "known": 1}
            table = (await http.get("/v1/outcomes")).json()
            (artifact,) = table["artifacts"]
            assert (artifact["artifact"], artifact["predictions"]) == (found["artifact"], len(images))
            assert (artifact["outcomes"], artifact["accuracy"]) == (2, 0.5)
            metrics = (await http.get("/metrics")).text
            version = found["artifact"]
            assert metric(metrics, "feddrm_outcome_accuracy") == {f'{{artifact="{version}"}}': 0.5}
            assert metric(metrics, "feddrm_outcomes_total") == {
                f'{{artifact="{version}",result="right"}}': 1, f'{{artifact="{version}",result="wrong"}}': 1,
            }  # fmt: skip
            assert "feddrm_outcome_calibration_error{" in metrics
            refused: list[tuple[Any, int, str]] = [
                ({"request_id": "nobody", "label": "1"}, 404, "'nobody' is unknown"),
                ({"request_id": name, "label": "seven", "place": 0}, 422, "unknown label 'seven'"),
                ({"request_id": name, "label": "1"}, 422, "'place'"),
                ({"request_id": name, "label": labels[0], "place": 1}, 409, "already"),
                ({"request_id": name}, 422, "label"),
                ({"outcomes": []}, 422, "outcomes"),
                ([], 422, "no object"),
                ({"request_id": name, "label": True, "place": 0}, 422, "label is true: give a text"),
                ({"outcomes": [{**reports[0], "lable": 1}]}, 422, "unknown option 'lable'; did you mean 'label'?"),
                ({"outcomes": [5] * 2000}, 422, "outcomes.0 is 5: give an object"),
                (dict.fromkeys(map(str, range(10_000)), 0), 422, "unknown option '0'"),
            ]
            for content, status, words in refused:
                answer = await http.post("/v1/outcomes", json=content)
                assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
            answer = await http.post("/v1/outcomes", content=b"{")
            assert (answer.status_code, "no JSON" in answer.json()["error"]) == (422, True)

    asyncio.run(scenario())


def test_a_use_log_that_fails_hides_no_metrics_and_blames_no_caller(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: that is when the metrics of lost records are needed."""

    async def scenario() -> None:
        path = tmp_path / "uses.sqlite"
        async with in_process(run, tmp_path, monkeypatch, use_log=path) as http:
            path.write_bytes(b"no database")
            assert "feddrm_audit_ok 1.0" in (await http.get("/metrics")).text
            report = {"request_id": "a", "label": "1"}
            for answer in (await http.post("/v1/outcomes", json=report), await http.get("/v1/outcomes")):
                assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
                assert str(tmp_path) not in answer.text

    asyncio.run(scenario())


def test_without_a_use_log_nothing_is_kept_and_outcomes_are_refused(
    run: Path, images: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with in_process(run, tmp_path, monkeypatch) as http:
            for answer in (await http.post("/v1/outcomes", json={}), await http.get("/v1/outcomes")):
                assert (answer.status_code, "--use-log" in answer.json()["error"]) == (404, True)

    asyncio.run(scenario())
    assert {path.suffix for path in tmp_path.iterdir()} <= {".yaml", ".sqlite"}
    assert [path.name for path in tmp_path.glob("*.sqlite")] == ["audit.sqlite"]


def test_every_path_of_an_operator_opens_to_its_scope_alone(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {scope: add_key(tmp_path / "keys.yaml", scope, [scope]) for scope in SCOPES}

    async def scenario() -> None:
        settings = {"use_log": tmp_path / "uses.sqlite", "keys": tmp_path / "keys.yaml", "key": keys["admin"]}
        async with in_process(run, tmp_path, monkeypatch, **settings) as http:
            body = {"request_id": "x", "label": "1"}
            assert (await http.post("/v1/outcomes", json=body)).status_code == 401
            for method, path, scopes in (
                ("POST", "/v1/outcomes", {"predict"}),
                ("POST", "/v1/outcomes?caller=lab", {"outcomes"}),
                ("GET", "/v1/outcomes", {"admin"}),
                ("GET", "/v1/clients", {"admin"}),
                ("GET", "/v1/federation", {"admin"}),
                ("GET", "/v1/traffic", {"admin"}),
                ("GET", "/metrics", {"metrics", "admin"}),
                ("POST", "/v1/admin/reload", {"admin"}),
                ("POST", "/v1/admin/promote", {"admin"}),
                ("POST", "/v1/admin/rollback", {"admin"}),
            ):
                for own, key in keys.items():
                    answer = await http.request(method, path, json=body, headers={"X-API-Key": key})
                    assert (answer.status_code == 403) == (own not in scopes), (path, own)

    asyncio.run(scenario())


def test_outcomes_belong_to_the_caller_who_got_the_answer_unless_the_scope_is_for_all(
    run: Path, images: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scopes = ["predict", "admin"]
    lab, ward = ({"X-API-Key": add_key(tmp_path / "keys.yaml", name, scopes)} for name in ("lab", "ward"))
    registry = {"X-API-Key": add_key(tmp_path / "keys.yaml", "registry", ["outcomes"])}
    body = {"inputs": images[:1].tolist(), "abstain": "answer"}

    async def scenario() -> None:
        settings = {"use_log": tmp_path / "uses.sqlite", "keys": tmp_path / "keys.yaml", "key": lab["X-API-Key"]}
        async with in_process(run, tmp_path, monkeypatch, **settings) as http:
            for name, headers in (("visit-1", lab), ("visit-2", lab), ("visit-2", ward), ("visit-3", lab)):
                sent = {**headers, "X-Request-ID": name}
                assert (await http.post("/v1/predict", json=body, headers=sent)).status_code == 200
            for name, headers, label, status in (
                ("visit-1", ward, "7", 404), ("visit-1", lab, "0", 200),
                ("visit-2", ward, "7", 200), ("visit-2", lab, "0", 200), ("visit-2", lab, "7", 409),
            ):  # fmt: skip
                report = {"request_id": name, "label": label}
                assert (await http.post("/v1/outcomes", json=report, headers=headers)).status_code == status

            for asked, headers, status in (
                ("lab", ward, 403), ("lab", registry, 200), ("ward", registry, 404), ("", registry, 404)
            ):  # fmt: skip
                report = {"request_id": "visit-3", "label": "7"}
                answer = await http.post("/v1/outcomes", params={"caller": asked}, json=report, headers=headers)
                assert answer.status_code == status, (asked, answer.text)
            assert (await http.post("/v1/outcomes", json=report, headers=registry)).status_code == 403
        with contextlib.closing(sqlite3.connect(tmp_path / "uses.sqlite")) as database:
            reported = database.execute("SELECT caller, outcome_caller FROM uses WHERE request_id = 'visit-3'")
            assert reported.fetchall() == [("lab", "registry")]

    asyncio.run(scenario())


def test_a_challenger_is_promoted_and_rolled_back_while_serving(
    run: Path, other: Path, images: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Path(shutil.copytree(run, tmp_path / "run"))
    body = {"inputs": images.tolist()}

    async def versions(http: httpx.AsyncClient) -> set[str]:
        answers = [await http.post("/v1/route", json=body, headers={"X-Request-Id": str(i)}) for i in range(20)]
        return {answer.json()["artifact"] for answer in answers}

    async def scenario(promote: bool) -> list[set[str]]:
        found = []
        async with in_process(served, tmp_path, monkeypatch, challenger=other, challenger_share=0.5) as http:
            found.append(await versions(http))
            for path in ("promote",) * promote + ("rollback", "rollback"):
                answer = await http.post(f"/v1/admin/{path}")
                if answer.status_code == 409:
                    assert "nothing to roll back" in answer.json()["error"]
                    break
                found.append(await versions(http))
        return found

    both, new, old = asyncio.run(scenario(promote=True))
    assert len(both) == 2
    assert new | old == both
    assert len(new) == len(old) == 1
    # What was rolled back is not tried again.
    assert asyncio.run(scenario(promote=False)) == [old]
    with contextlib.closing(sqlite3.connect(tmp_path / "audit.sqlite")) as database:
        changes = database.execute("SELECT action, artifact FROM decisions WHERE samples = 0 ORDER BY time").fetchall()
    assert changes == [("promote", *new), ("rollback", *old)]


def test_without_a_challenger_there_is_nothing_to_promote(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with in_process(run, tmp_path, monkeypatch) as http:
            answer = await http.post("/v1/admin/promote")
            assert (answer.status_code, "--challenger" in answer.json()["error"]) == (409, True)

    asyncio.run(scenario())
    assert not (run / "serving.json").exists()
