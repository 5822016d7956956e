"""The gateway's paths over HTTP, with a gateway and clients in processes of their own."""

from __future__ import annotations

import base64
import json
import math
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from feddrm.data import load
from feddrm.predictor.predictor import Predictor
from feddrm.router import load_router
from feddrm.runs import Run
from feddrm.serve.oip.codec import write_infer
from serving import NAMES, Launch

pytestmark = pytest.mark.slow


def test_all_forms_of_a_sample_give_the_routers_decision(run: Path, http: httpx.Client, images: torch.Tensor) -> None:
    router = load_router(run / "router")
    decision, features = router.route(images), router.features(images)
    ways: list[dict[str, Any]] = [
        {"json": {"inputs": images.tolist()}},
        {"json": {"inputs": router.inputs(images).tolist(), "datatype": "float32"}},
        {"json": {"features": features.tolist()}},
        {"content": features.numpy().tobytes(), "headers": {"Content-Type": "application/octet-stream"}},
        {"content": images.numpy().tobytes(), "params": {"kind": "inputs", "datatype": "uint8"},
         "headers": {"Content-Type": "application/octet-stream"}},
    ]  # fmt: skip
    for way in ways:
        answer = http.post("/v1/route", **way).json()
        assert len(answer["artifact"]) == 12
        assert len(answer["decisions"]) == len(images)
        for i, found in enumerate(answer["decisions"]):
            assert found["client"] == NAMES[int(decision.client[i])]
            assert found["margin"] == pytest.approx(float(decision.margin[i]), abs=1e-5)
            assert found["abstain"] == bool(decision.abstain[i])
            ranked = {one["client"]: one for one in found["ranked"]}
            for number, name in enumerate(NAMES):
                p, r = decision.probabilities[i, number], decision.log_density_ratio[i, number]
                assert ranked[name]["probability"] == pytest.approx(float(p), abs=1e-5)
                assert ranked[name]["log_density_ratio"] == pytest.approx(float(r), abs=1e-3)
            order = [one["probability"] for one in found["ranked"]]
            assert order == sorted(order, reverse=True)


def test_a_request_can_ask_for_the_likeliest_clients_only(http: httpx.Client, images: torch.Tensor) -> None:
    def ask(**options: Any) -> list[dict[str, Any]]:
        query = {"inputs": images[:5].tolist(), "max_away": 1, **options}
        return http.post("/v1/route", json=query).json()["decisions"]

    for whole, short in zip(ask(without=NAMES[:2]), ask(without=NAMES[:2], top=1), strict=True):
        assert (len(whole["ranked"]), len(whole["away"])) == (3, 2)
        first = max(whole["away"], key=lambda one: one["probability"])
        assert short == {**whole, "ranked": whole["ranked"][:1], "away": [first]}
    assert http.post("/v1/route", json={"inputs": images[:1].tolist(), "top": 0}).status_code == 422


def test_a_request_that_leaves_out_all_clients_is_the_callers_mistake(http: httpx.Client, images: torch.Tensor) -> None:
    for options in ({}, {"max_away": 1}, {"abstain": "answer"}):
        query = {"inputs": images[:2].tolist(), "without": list(NAMES), **options}
        answer = http.post("/v1/predict", json=query)
        assert (answer.status_code, "Retry-After" in answer.headers) == (422, False)
        assert answer.json()["error"] == "'without' names all clients: remove one from it"


def test_a_picture_as_file_and_as_base64_gives_the_same_decision(
    http: httpx.Client, images: torch.Tensor, png_file: bytes
) -> None:
    expected = http.post("/v1/route", json={"inputs": images[:1].tolist()}).json()["decisions"]
    by_file = http.post("/v1/route", content=png_file, headers={"Content-Type": "image/png"}).json()["decisions"]
    by_text = http.post("/v1/route", json={"image": base64.b64encode(png_file).decode()}).json()["decisions"]
    for found in (by_file, by_text):
        assert found[0]["client"] == expected[0]["client"]
        assert found[0]["client_probability"] == pytest.approx(expected[0]["client_probability"], abs=1e-6)


def test_options_change_the_decision(run: Path, http: httpx.Client, images: torch.Tensor) -> None:
    router = load_router(run / "router")
    names = [c for c in NAMES if c != "fax"]
    expected = router.route(images, rule="posterior", coverage=0.5, available=names)
    body = {"inputs": images.tolist(), "rule": "posterior", "coverage": 0.5, "without": ["fax"]}
    found = http.post("/v1/route", json=body).json()["decisions"]
    assert [d["client"] for d in found] == [NAMES[i] for i in expected.client.tolist()]
    assert [d["abstain"] for d in found] == expected.abstain.tolist()
    assert [d["reason"] for d in found] == list(expected.reason)
    assert any(d["abstain"] for d in found)
    nobody = http.post("/v1/route", json={**body, "without": list(NAMES)}).json()["decisions"][0]
    assert (nobody["client"], nobody["reason"]) == (None, "no client is available")


def test_competence_is_a_rule_of_every_request(run: Path, http: httpx.Client, images: torch.Tensor) -> None:
    expected = load_router(run / "router").route(images, rule="competence")
    found = http.post("/v1/route", json={"inputs": images.tolist(), "rule": "competence"}).json()["decisions"]
    assert [d["client"] for d in found] == [NAMES[i] for i in expected.client.tolist()]
    assert [d["right_probability"] for d in found] == pytest.approx(expected.right_probability.tolist(), abs=1e-5)
    by_origin = http.post("/v1/route", json={"inputs": images.tolist()}).json()["decisions"]
    assert {d["right_probability"] for d in by_origin} == {None}
    answers = http.post("/v1/predict", json={"inputs": images[:2].tolist(), "rule": "competence"}).json()["answers"]
    assert [answer["client"] for answer in answers] == [d["client"] for d in found[:2]]
    refusal = http.post("/v1/route", json={"inputs": images.tolist(), "rule": "confident"})
    assert (refusal.status_code, "competence" in refusal.json()["error"]) == (422, True)


def test_predictions_are_those_of_the_clients_and_mixtures_are_exact(
    run: Path, http: httpx.Client, images: torch.Tensor
) -> None:
    decision = load_router(run / "router").route(images)
    own = torch.stack(
        [torch.from_numpy(Predictor.load(run / "clients" / name)([("inputs", images.numpy())])[0]) for name in NAMES]
    )
    answers = http.post("/v1/predict", json={"inputs": images.tolist()}).json()["answers"]
    for i, found in enumerate(answers):
        best = int(decision.client[i])
        assert [a["client"] for a in found["answered"]] == [NAMES[best]] == [found["client"]]
        assert list(found["probabilities"].values()) == pytest.approx(own[best, i].tolist(), abs=1e-5)
        assert found["label"] == str(int(own[best, i].argmax()))
    body = {"inputs": images.tolist(), "consult": 2}
    for i, found in enumerate(http.post("/v1/predict", json=body).json()["answers"]):
        top = decision.probabilities[i].topk(2)
        weights = top.values / top.values.sum()
        mixed = (weights[:, None] * own[top.indices, i]).sum(0)
        assert list(found["probabilities"].values()) == pytest.approx(mixed.tolist(), abs=1e-4)
        assert math.fsum(a["weight"] for a in found["answered"]) == pytest.approx(1)


def test_features_give_the_same_prediction_as_the_sample(run: Path, http: httpx.Client, images: torch.Tensor) -> None:
    features = load_router(run / "router").features(images)
    by_features = http.post("/v1/predict", json={"features": features.tolist()}).json()["answers"]
    by_sample = http.post("/v1/predict", json={"inputs": images.tolist()}).json()["answers"]
    for a, b in zip(by_features, by_sample, strict=True):
        assert list(a["probabilities"].values()) == pytest.approx(list(b["probabilities"].values()), abs=1e-4)


def test_label_sets_are_those_of_the_run_folder_in_both_protocols(
    run: Path, http: httpx.Client, images: torch.Tensor
) -> None:
    expected = Run.open(run).predict(images, label_miss=0.2)
    assert expected.label_sets is not None
    body = {"inputs": images.tolist(), "label_miss": 0.2}
    answers = http.post("/v1/predict", json=body).json()["answers"]
    for i, answer in enumerate(answers):
        assert answer["label_set"] == list(expected.label_sets[i] or ())
        assert tuple(entry["client"] for entry in answer["answered"]) == expected.answered[i]
    assert any(len(answer["answered"]) > 1 for answer in answers)
    content, headers = write_infer("input", images.numpy(), {"label_miss": 0.2})
    reply = http.post("/v2/models/federation/infer", content=content, headers=headers).json()
    texts = next(output["data"] for output in reply["outputs"] if output["name"] == "label_set")
    assert [json.loads(text) for text in texts] == [answer["label_set"] for answer in answers]
    for options in ({}, {"label_miss": 0.2, "coverage": 0.01, "abstain": "answer"}):
        answers = http.post("/v1/predict", json={"inputs": images.tolist(), **options}).json()["answers"]
        assert {answer["label_set"] for answer in answers if answer["route"]["abstain"] or not options} == {None}
        assert all(answer["label"] is not None for answer in answers)


ANSWER_FIELDS = ("label", "label_probability", "client", "client_probability", "probabilities")


@pytest.mark.parametrize("abstain", [None, "mark"])
def test_no_label_is_given_and_no_client_asked_where_the_router_abstains(
    http: httpx.Client, images: torch.Tensor, abstain: str | None
) -> None:
    body = {"inputs": images.tolist(), "coverage": 0.5} | ({} if abstain is None else {"abstain": abstain})
    answers = http.post("/v1/predict", json=body).json()["answers"]
    for found in answers:
        withheld = {found[name] is None for name in ANSWER_FIELDS}
        assert withheld == {found["route"]["abstain"]}
        assert bool(found["answered"]) != found["route"]["abstain"]
    assert 0 < sum(a["label"] is None for a in answers) < len(answers)
    for image, found in zip(images, answers, strict=True):  # alone, since records of several samples have no label
        http.post("/v1/predict", json={**body, "inputs": image[None].tolist()}).raise_for_status()
        record = http.get("/v1/traffic").json()["decisions"][-1]
        assert (record["label"], record["reason"]) == (found["label"], found["route"]["reason"])


def test_a_label_is_given_all_the_same_if_the_caller_asks(http: httpx.Client, images: torch.Tensor) -> None:
    plain = http.post("/v1/predict", json={"inputs": images.tolist()}).json()["answers"]
    body = {"inputs": images.tolist(), "coverage": 0.5, "abstain": "answer"}
    answers = http.post("/v1/predict", json=body).json()["answers"]
    assert [a["label"] for a in answers] == [a["label"] for a in plain]
    assert {a["route"]["reason"] for a in answers} == {"", "unsure between clients"}


def test_the_two_probabilities_of_an_answer(run: Path, http: httpx.Client, images: torch.Tensor) -> None:
    decision = load_router(run / "router").route(images)
    answers = http.post("/v1/predict", json={"inputs": images.tolist()}).json()["answers"]
    for i, found in enumerate(answers):
        assert found["client_probability"] == pytest.approx(float(decision.client_probability[i]), abs=1e-5)
        assert (
            found["label_probability"] == found["probabilities"][found["label"]] == max(found["probabilities"].values())
        )
        assert found["route"]["client_probability"] == found["client_probability"]
        assert not found["fallback"]


def test_clients_that_a_caller_leaves_out_are_away(http: httpx.Client, images: torch.Tensor) -> None:
    """Their share of the probability is lost all the same; to do without it is another option."""
    body = {"inputs": images.tolist(), "without": ["fax"]}
    everyone = http.post("/v1/route", json={"inputs": images.tolist()}).json()["decisions"]
    decisions = http.post("/v1/route", json=body).json()["decisions"]
    answers = http.post("/v1/predict", json=body).json()["answers"]
    fallback = http.post("/v1/predict", json={**body, "max_away": 1}).json()["answers"]
    away = 0
    for plain, found, answer, other in zip(everyone, decisions, answers, fallback, strict=True):
        probability = {one["client"]: one["probability"] for one in plain["ranked"]}
        assert {one["client"]: one["probability"] for one in found["ranked"]} == pytest.approx(probability, abs=1e-6)
        assert [one["client"] for one in found["ranked"] if not one["available"]] == ["fax"]
        (absent,) = found["away"]
        assert (absent["client"], absent["reason"]) == ("fax", "left out by the caller")
        assert absent["probability"] == pytest.approx(probability["fax"], abs=1e-6)
        lost = probability["fax"] > 0.5
        assert (found["abstain"], found["reason"]) == ((True, "best client away") if lost else (False, ""))
        assert (answer["label"] is None) == (answer["answered"] == []) == lost
        assert other["client"] == other["answered"][0]["client"] == found["client"] != "fax"
        assert other["label"] is not None
        assert other["client_probability"] == pytest.approx(probability[other["client"]], abs=1e-6)
        assert other["fallback"] == other["route"]["fallback"] == (plain["client"] == "fax")
        away += lost
    assert 0 < away < len(images)


def test_the_open_inference_protocol(http: httpx.Client, images: torch.Tensor) -> None:
    plain = http.post("/v1/predict", json={"inputs": images.tolist()}).json()["answers"]
    tensor = {"name": "input", "datatype": "UINT8", "shape": list(images.shape), "data": images.flatten().tolist()}
    for model, outputs in (
        ("router", {"log_density_ratio", "margin"}),
        ("federation", {"label", "label_probability", "label_set"}),
    ):
        outputs |= {"probabilities", "client", "client_probability", "abstain", "reason", "fallback", "flags"}
        about = http.get(f"/v2/models/{model}").json()
        assert {out["name"] for out in about["outputs"]} == outputs
        answer = http.post(f"/v2/models/{model}/infer", json={"id": "7", "inputs": [tensor]}).json()
        assert (answer["id"], answer["model_name"]) == ("7", model)
        found = {out["name"]: out for out in answer["outputs"]}
        assert set(found) == outputs
        assert found["client"]["data"] == [a["client"] for a in plain]
        assert len(found["probabilities"]["data"]) == math.prod(found["probabilities"]["shape"])
        body, headers = write_infer("input", images.numpy())
        again = http.post(f"/v2/models/{model}/infer", content=body, headers=headers).json()
        assert again["outputs"][0]["data"] == pytest.approx(found["probabilities"]["data"], abs=1e-5)
        assert http.get(f"/v2/models/{model}/ready").status_code == 200
    whole = {
        out["name"]: out for out in http.post("/v2/models/router/infer", json={"inputs": [tensor]}).json()["outputs"]
    }
    wanted = [{"name": "margin", "parameters": {"binary_data": True}}, {"name": "client"}]
    answer = http.post("/v2/models/router/infer", json={"inputs": [tensor], "outputs": wanted})
    length = int(answer.headers["inference-header-content-length"])
    margin, client = json.loads(answer.content[:length])["outputs"]
    assert client == whole["client"]
    assert margin == {"name": "margin", "datatype": "FP32", "shape": [len(images)],
                      "parameters": {"binary_data_size": 4 * len(images)}}  # fmt: skip
    assert np.frombuffer(answer.content[length:], "<f4") == pytest.approx(whole["margin"]["data"])
    body = {"inputs": [tensor], "parameters": {"coverage": 0.5, "binary_data_output": False}}
    for model in ("router", "federation"):
        answer = http.post(f"/v2/models/{model}/infer", json=body).json()
        found = {out["name"]: out["data"] for out in answer["outputs"]}
        assert 0 < sum(found["abstain"]) < len(images)
        assert found["reason"] == ["unsure between clients" if abstain else "" for abstain in found["abstain"]]
    withheld = [found[name] for name in ("label", "client", "label_probability", "client_probability")]
    rows = np.array(found["probabilities"], dtype=float).reshape(len(images), -1)
    for abstain, label, client, *probabilities, row in zip(found["abstain"], *withheld, rows, strict=True):
        assert (label == "") == (client == "") == (probabilities == [None, None]) == np.isnan(row).all() == abstain
    shown = http.post(
        "/v2/models/federation/infer", json={**body, "parameters": {"coverage": 0.5, "abstain": "answer"}}
    )
    assert next(out["data"] for out in shown.json()["outputs"] if out["name"] == "label") == [a["label"] for a in plain]
    refusal = http.post("/v2/models/federation/infer", json={**body, "parameters": {"max_away": 2}})
    assert (refusal.status_code, "max_away" in refusal.json()["error"]) == (422, True)
    refusal = http.post("/v2/models/router/infer", json={"inputs": [tensor], "outputs": [{"name": "x"}]})
    assert (refusal.status_code, "no output 'x'" in refusal.json()["error"]) == (422, True)
    assert http.get("/v2/models/other").status_code == 404
    assert http.post("/v2/models/other/infer", json={"inputs": [tensor]}).status_code == 404


@pytest.mark.parametrize(
    ("path", "given", "status", "part"),
    [
        ("/v1/route", {"json": {"inputs": [[1]]}}, 422, "[n, 1, 8, 8]"),
        ("/v1/route", {"json": {"features": [[1e30] * 16]}}, 200, ""),
        ("/v1/route", {"json": {"features": [[3e38] * 16]}}, 422, "too large"),
        ("/v1/route", {"content": b"{", "headers": {"Content-Type": "application/json"}}, 422, "JSON"),
        ("/v1/route", {"content": b"x", "headers": {"Content-Type": "text/plain"}}, 415, "text/plain"),
        ("/v1/route", {"content": bytes(9 * 2**20), "headers": {"Content-Type": "image/png"}}, 413, "bytes"),
        ("/v1/route", {"content": b"GIF89a", "headers": {"Content-Type": "image/gif"}}, 422, "cannot be read"),
        ("/v1/predict", {"json": {"inputs": [], "consult": 0}}, 422, "consult"),
        ("/v1/predict", {"json": {"features": [[0] * 16], "label_miss": 1}}, 422, "label_miss"),
        ("/v1/predict", {"json": {"features": [[0] * 16], "label_miss": 0.1, "rule": "competence"}}, 422, "density or"),
        ("/v1/predict", {"json": {"features": [[0] * 16], "without": ["rio"]}}, 422, "unknown client 'rio'"),
        ("/v2/models/router/infer", {"json": {"inputs": []}}, 422, "inputs"),
        ("/v1/route?rule=density", {"json": {"features": [[0] * 16]}}, 422, "'rule' is in the query string"),
        ("/v1/route?rul=density", {"json": {}}, 422, "unknown option 'rul'; did you mean 'rule'?"),
        ("/v2/models/router/infer?rule=density", {"json": {}}, 422, "unknown option 'rule': there are none"),
        ("/v1/outcomes?caler=lab", {"json": {}}, 422, "unknown option 'caler'; did you mean 'caller'?"),
        ("/nowhere", {}, 404, "no path '/nowhere': GET /openapi.json lists all"),
        ("/metrics", {}, 405, "POST is no method of '/metrics': send GET"),
    ],
)
def test_errors_are_one_line(http: httpx.Client, path: str, given: dict[str, Any], status: int, part: str) -> None:
    answer = http.post(path, **given)
    assert answer.status_code == status, answer.text
    if status != 200:
        found = answer.json()
        assert part in found["error"]
        assert "\n" not in found["error"]
        assert found["request_id"] == answer.headers["x-request-id"]


ROW: dict[str, Any] = {"age": 68, "sex": "female", "cp": None, "chol": "240"}


def test_rows_are_taken_by_raw_columns_or_as_inputs(table_run: Path, tables: httpx.Client) -> None:
    router = load_router(table_run / "router")
    assert router.schema is not None
    inputs = router.schema.encode_named([ROW])
    encoded = dict(zip(router.schema.encoded, inputs[0].tolist(), strict=True))
    probabilities = router.route(inputs).probabilities[0].tolist()
    for body in ({"rows": [ROW]}, {"rows": [encoded]}, {"inputs": inputs.tolist()}):
        (decision,) = tables.post("/v1/route", json=body).json()["decisions"]
        assert decision["client"] == "oslo"
        assert decision["flags"] == []
        assert decision["ranked"][0]["probability"] == pytest.approx(max(probabilities), abs=1e-5)


def test_the_schema_is_told_to_whoever_may_ask(table_run: Path, tables: httpx.Client, http: httpx.Client) -> None:
    about = tables.get("/v1/schema").json()
    assert [column["name"] for column in about["schema"]["columns"]] == ["age", "sex", "cp", "chol"]
    assert about["inputs"] == json.loads((table_run / "router" / "manifest.json").read_text())["notes"]["columns"]
    assert tables.post("/v1/route", json={"rows": about["examples"]}).status_code == 200
    assert http.get("/v1/schema").json() | {"artifact": ""} == {
        "artifact": "", "schema": None, "inputs": None, "examples": [],
    }  # fmt: skip


def test_an_error_names_every_field_that_is_wrong(tables: httpx.Client) -> None:
    answer = tables.post("/v1/route", json={"rows": [ROW, {**ROW, "age": "old", "sex": 7}]})
    assert answer.status_code == 422
    body = answer.json()
    assert body["error"] == "row 1: column 'age' is 'old': give a number (0..120 years) (and 1 more)"
    assert body["fields"] == [
        {"row": 1, "column": "age", "value": "old", "problem": "give a number (0..120 years)"},
        {"row": 1, "column": "sex", "value": 7, "problem": "give one of 0 (female), 1 (male)"},
    ]
    unknown = tables.post("/v1/route", json={"rows": [{**ROW, "id": 1}]}).json()["fields"]
    assert [(field["column"], field["problem"].partition(":")[0]) for field in unknown] == [("id", "no such column")]


def test_values_that_cannot_be_are_flagged_in_both_protocols(tables: httpx.Client) -> None:
    expected = [{"column": "age", "value": 300, "problem": "outside 0..120 years"}]
    good, bad = tables.post("/v1/route", json={"rows": [ROW, {**ROW, "age": 300}]}).json()["decisions"]
    assert (good["flags"], good["abstain"]) == ([], False)
    assert (bad["flags"], bad["abstain"], bad["reason"]) == (expected, True, "a value cannot be")
    inputs = [0.0, -1.0, 1, 1, 0, 0, 0, 0]  # two kinds of pain at once
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, len(inputs)], "data": inputs}
    outputs = tables.post("/v2/models/router/infer", json={"inputs": [tensor]}).json()["outputs"]
    found = {output["name"]: output["data"] for output in outputs}
    assert found["abstain"] == [True]
    assert json.loads(found["flags"][0]) == [
        {"column": "cp", "value": "typical and atypical", "problem": "several categories at once"}
    ]


def test_clients_from_before_label_sets_name_the_remedy(run: Path, launch: Launch, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    for file in copy.glob("clients/*/temperature.json"):
        file.write_text(json.dumps({"temperature": json.loads(file.read_text())["temperature"]}))
    url = launch("serve", copy, "--demo", "--port", 0, "--audit", tmp_path / "a.sqlite").wait_ready()
    images = load("digits", clients=3, seed=3).clients[0].test.x[:8]
    answer = httpx.post(f"{url}/v1/predict", json={"inputs": images.tolist(), "label_miss": 0.1})
    assert answer.status_code == 422
    assert "no scores for label sets: fit the router again ('feddrm fit-router RUN')" in answer.json()["error"]
