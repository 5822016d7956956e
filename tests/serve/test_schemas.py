from __future__ import annotations

import httpx
import pytest
import torch
from pydantic import ValidationError

from feddrm.serve.schemas import ErrorAnswer, Options, PredictAnswer, PredictOptions, RouteAnswer


@pytest.mark.slow
def test_answers_have_exactly_the_documented_fields(http: httpx.Client, images: torch.Tensor) -> None:
    body = {"inputs": images.tolist(), "coverage": 0.5}
    for path, model, options in (
        ("/v1/route", RouteAnswer, {}),
        ("/v1/predict", PredictAnswer, {"consult": 2}),
        ("/v1/predict", PredictAnswer, {"abstain": "answer"}),
        ("/v1/predict", PredictAnswer, {"abstain": "mark", "without": ["fax"]}),
    ):
        content = http.post(path, json={**body, **options}).json()
        assert model.model_validate(content, strict=True).model_dump() == content
    content = http.post("/v1/route", json={**body, "why": True}).json()
    assert RouteAnswer.model_validate(content, strict=True).model_dump(exclude_unset=True) == content
    content = http.post("/v1/route", json={}).json()
    assert ErrorAnswer.model_validate(content, strict=True).model_dump(exclude_unset=True) == content


@pytest.mark.parametrize(
    "options",
    [{"rule": "x"}, {"coverage": 0}, {"coverage": 1.1}, {"max_away": -0.1}, {"max_away": 1.1},
     {"consult": 0}, {"consult": 1025}, {"abstain": "x"}, {"x": 1}, {"top": 0},
     {"without": ["a"] * 1025}],
)  # fmt: skip
def test_options_out_of_range_and_unknown_ones_are_errors(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PredictOptions.model_validate(options)


def test_options_have_defaults() -> None:
    nothing = dict.fromkeys(("rule", "coverage", "max_away", "over", "top"))
    assert Options().model_dump() == {**nothing, "without": (), "why": False}
    assert (PredictOptions().consult, PredictOptions().abstain) == (1, "mark")
