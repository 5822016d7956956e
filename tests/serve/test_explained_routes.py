"""``why=true`` of a gateway and ``feddrm query --why``: the terms that made a client likelier than the next."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import torch

from cli.conftest import assert_one_line, call
from feddrm.router import load_router
from feddrm.serve.oip.codec import write_infer
from serving import NAMES

pytestmark = pytest.mark.slow


def test_why_adds_the_terms_of_every_decision(table_run: Path, tables: httpx.Client) -> None:
    router = load_router(table_run / "router")
    patients = [{"age": 70, "sex": "male", "cp": None, "chol": 200}, {"age": 25, "sex": "0", "cp": "2", "chol": 280}]
    (first, second) = tables.post("/v1/route", json={"rows": patients, "why": True}).json()["decisions"]
    plain = tables.post("/v1/route", json={"rows": patients}).json()["decisions"]
    assert plain == [{**first, "why": None}, {**second, "why": None}]
    assert router.schema is not None
    expected = router.explain(router.schema.encode_named(patients)).as_dicts(10)
    for found, entry in zip((first["why"], second["why"]), expected, strict=True):
        assert entry is not None
        assert found.keys() == entry.keys()
        assert [(term["name"], term.get("value")) for term in found["terms"]] == [
            (term["name"], term.get("value")) for term in entry["terms"]
        ]
        parts = sum(term["log_odds"] for term in found["terms"]) + found["rest"] + found["baseline"] + found["sizes"]
        assert parts == pytest.approx(found["log_odds"], abs=1e-9)
        assert parts == pytest.approx(entry["log_odds"], abs=1e-5)
        assert len(found["terms"]) <= 10
    ratios = {one["client"]: one["log_density_ratio"] for one in first["ranked"]}
    difference = ratios[first["why"]["client"]] - ratios[first["why"]["over"]]
    assert first["why"]["log_odds"] == pytest.approx(difference, abs=1e-4)


def test_why_is_an_option_of_the_json_paths_alone(http: httpx.Client, images: torch.Tensor) -> None:
    query = {"inputs": images[:2].tolist(), "why": True}
    by_route = http.post("/v1/route", json=query).json()["decisions"]
    by_predict = [answer["route"] for answer in http.post("/v1/predict", json=query).json()["answers"]]
    assert [found["why"] for found in by_route] == [found["why"] for found in by_predict]
    assert [term["name"] for term in by_route[0]["why"]["terms"]] == ["embedding"]
    raw = {"content": images[:2].numpy().tobytes(), "headers": {"Content-Type": "application/octet-stream"}}
    params = {"kind": "inputs", "datatype": "uint8", "why": "true"}
    assert http.post("/v1/route", params=params, **raw).json()["decisions"] == by_route
    refused_rule = http.post("/v1/route", json={**query, "rule": "competence"})
    assert refused_rule.status_code == 422
    assert "choose rule density or posterior" in refused_rule.json()["error"]
    content, headers = write_infer("input", images.numpy(), {"why": True})
    for model in ("router", "federation"):
        reply = http.post(f"/v2/models/{model}/infer", content=content, headers=headers)
        assert (reply.status_code, reply.json()["error"][:8]) == (422, "why=true")
    nobody = http.post("/v1/route", json={**query, "without": list(NAMES)}).json()["decisions"]
    assert [found["why"] for found in nobody] == [None, None]


def test_over_names_the_client_to_compare_with(http: httpx.Client, images: torch.Tensor) -> None:
    query = {"inputs": images[:2].tolist(), "why": True}
    (first, second) = http.post("/v1/route", json=query).json()["decisions"]
    (third,) = {*NAMES} - {first["why"]["client"], first["why"]["over"]}
    named = http.post("/v1/route", json={**query, "over": third}).json()["decisions"][0]
    assert (named["client"], named["why"]["over"]) == (first["client"], third)
    ratios = {one["client"]: one["log_density_ratio"] for one in named["ranked"]}
    assert named["why"]["log_odds"] == pytest.approx(ratios[named["client"]] - ratios[third], abs=1e-4)
    chosen = http.post("/v1/route", json={**query, "over": second["client"]}).json()["decisions"][1]
    assert chosen["why"] == second["why"], "the chosen client is compared with the runner-up"
    unknown = http.post("/v1/route", json={**query, "over": "nobody"})
    assert (unknown.status_code, unknown.json()["error"][:23]) == (422, "unknown client 'nobody'")
    alone = http.post("/v1/route", json={**query, "why": False, "over": third})
    assert (alone.status_code, alone.json()["error"][:4]) == (422, "over")


def test_query_prints_the_sentences_that_route_prints(
    table_run: Path, tables: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "patients.csv"
    file.write_text("age,sex,cp,chol\n70,male,,200\n25,0,2,280\n")
    url = str(tables.base_url)
    code, printed, _ = call(capsys, "query", url, str(file), "--why")
    sentences = printed.splitlines()[-2:]
    assert code == 0
    assert sentences == call(capsys, "route", str(table_run), str(file), "--why")[1].splitlines()[-2:]
    assert sentences[0].startswith(f"{file}, row 2: oslo over lima +")
    whys = [answer["why"] for answer in json.loads(call(capsys, "query", url, str(file), "--why", "--json")[1])]
    assert [(why["client"], why["over"]) for why in whys] == [("oslo", "lima"), ("lima", "oslo")]
    named = call(capsys, "query", url, str(file), "--why", "--over", "lima")[1]
    assert named.splitlines()[-2:] == sentences
    unknown = call(capsys, "query", url, str(file), "--why", "--over", "pune")
    assert_one_line(unknown, 1, "unknown client 'pune'")
    assert_one_line(call(capsys, "query", url, str(file), "--over", "lima"), 2, "give --why, too")
    assert_one_line(call(capsys, "query", url, str(file), "--why", "--csv"), 2, "give --json")
    refused_rule = call(capsys, "query", url, str(file), "--why", "--rule", "competence")
    assert_one_line(refused_rule, 1, "choose rule density or posterior")
