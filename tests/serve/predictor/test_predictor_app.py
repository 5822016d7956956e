from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from feddrm.predictor.predictor import Predictor
from feddrm.router import load_router
from feddrm.router.answer_calibration import AnswerCalibration
from feddrm.serve.auth import add_key
from feddrm.serve.oip.codec import write_infer
from feddrm.serve.predictor.predictor_app import build_predictor
from feddrm.serve.settings import PredictorSettings


@pytest.fixture
def predictor(run: Path) -> Predictor:
    return Predictor.load(run / "clients" / "fax")


def ask(predictor: Predictor, method: str, path: str, settings: PredictorSettings | None = None, **options: Any) -> Any:
    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(build_predictor(predictor, settings or PredictorSettings()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.request(method, path, **options)

    return asyncio.run(go())


def infer(predictor: Predictor, name: str, x: torch.Tensor) -> tuple[int, Any]:
    body, headers = write_infer(name, x.numpy())
    response = ask(predictor, "POST", "/v2/models/fax/infer", content=body, headers=headers)
    return response.status_code, response.json()


def test_samples_and_features_are_answered_by_the_model(run: Path, predictor: Predictor, images: torch.Tensor) -> None:
    (expected,) = predictor([("inputs", images.numpy())])
    features = load_router(run / "router").features(images)
    for name, x in (("input", images), ("features", features)):
        status, content = infer(predictor, name, x)
        assert status == 200
        outputs = {output["name"]: output["data"] for output in content["outputs"]}
        assert outputs["probabilities"] == pytest.approx(expected.ravel().tolist(), abs=1e-5)
        assert outputs["label"] == [str(label) for label in expected.argmax(1)]


def test_features_are_declined_where_the_head_needs_the_sample(predictor: Predictor) -> None:
    status, content = infer(replace(predictor, head=replace(predictor.head, takes_features=False)), "features",
                            torch.zeros(1, 16))  # fmt: skip
    assert status == 422
    assert "give the samples themselves" in content["error"]


def test_a_predictor_that_has_not_started_is_not_ready(predictor: Predictor) -> None:
    response = ask(predictor, "GET", "/v2/health/ready")  # this transport does not start the application
    assert (response.status_code, "try again" in response.json()["error"]) == (503, True)


def test_keys_need_the_scope_predict(predictor: Predictor, tmp_path: Path) -> None:
    route, predict = (add_key(tmp_path / "keys.yaml", scope, [scope]) for scope in ("route", "predict"))
    settings = PredictorSettings(keys=tmp_path / "keys.yaml")
    for key, status in (("", 401), (route, 403), (predict, 422)):
        headers = {"X-API-Key": key}
        response = ask(predictor, "POST", "/v2/models/fax/infer", settings, content=b"{}", headers=headers)
        assert response.status_code == status


def test_tokens_need_the_scope_predict(predictor: Predictor, tmp_path: Path) -> None:
    pytest.importorskip("jwt", reason="pip install 'feddrm[oidc]' to run this")
    from issuer import AUDIENCE, ISSUER, Issuer

    issuer, path = Issuer(), tmp_path / "jwks.json"
    path.write_bytes(issuer.jwks())
    settings = PredictorSettings(oidc_issuer=ISSUER, oidc_audience=AUDIENCE, oidc_jwks=str(path))
    for token, status in (("", 401), (issuer.token(scope="route"), 403), (issuer.token(), 422)):
        headers = {"Authorization": f"Bearer {token}"}
        response = ask(predictor, "POST", "/v2/models/fax/infer", settings, content=b"{}", headers=headers)
        assert response.status_code == status


def test_label_sets_are_given_where_a_request_says_how_often_they_may_miss(
    predictor: Predictor, images: torch.Tensor
) -> None:
    def ask_sets(asked: Predictor, miss: Any) -> tuple[int, Any]:
        body, headers = write_infer("input", images.numpy(), {"label_miss": miss})
        response = ask(asked, "POST", "/v2/models/fax/infer", content=body, headers=headers)
        return response.status_code, response.json()

    (probabilities,) = predictor([("inputs", images.numpy())])
    status, content = ask_sets(predictor, 0.1)
    outputs = {output["name"]: output["data"] for output in content["outputs"]}
    assert (status, list(outputs)) == (200, ["probabilities", "label", "p_values", "label_set"])
    assert [json.loads(text) for text in outputs["label_set"]] == predictor.label_sets(probabilities, 0.1)
    assert outputs["p_values"] == pytest.approx(predictor.p_values(probabilities).ravel().tolist(), abs=1e-5)
    assert len(infer(predictor, "input", images)[1]["outputs"]) == 2
    for miss in (0, 1, "often"):
        status, content = ask_sets(predictor, miss)
        assert (status, "label_miss" in content["error"]) == (422, True)
    older = replace(predictor, head=replace(predictor.head, calibration=AnswerCalibration(1.5)))
    status, content = ask_sets(older, 0.1)
    assert status == 409
    assert content["error"].startswith("client 'fax' has no scores for label sets: fit the router again")
    document = ask(predictor, "GET", "/openapi.json").json()
    assert "409" in document["paths"]["/v2/models/{model}/infer"]["post"]["responses"]
