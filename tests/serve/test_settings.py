from __future__ import annotations

import math
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from feddrm.errors import FeddrmError
from feddrm.serve.settings import GatewaySettings, UpstreamEntry, first_problem, is_loopback, make_settings
from refusal import refused


def test_other_machines_are_served_only_with_keys_or_open() -> None:
    with refused("0.0.0.0", "--keys"):
        make_settings(GatewaySettings, host="0.0.0.0")
    assert make_settings(GatewaySettings, host="0.0.0.0", open=True).host == "0.0.0.0"
    assert make_settings(GatewaySettings, host="::1").host == "::1"


def test_bad_values_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("port"):
        make_settings(GatewaySettings, port=70000)
    with refused("--tls-key"):
        make_settings(GatewaySettings, tls_cert="cert.pem")
    monkeypatch.setenv("FEDDRM_SERVE_CORS", "http://x")
    with refused("cors", """FEDDRM_SERVE_CORS='["https://"""):
        make_settings(GatewaySettings)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    rule: Literal["a", "b"] = "a"
    share: float = Field(0.5, gt=0, le=1)
    number: int = Field(1, ge=1)
    name: str = Field("x", min_length=1, max_length=3, pattern="^[a-z]+$")
    names: tuple[str, ...] = Field((), max_length=2)
    inner: list[dict[str, int]] = Field([[]], min_length=1)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"rul": 1}, "unknown option 'rul'; did you mean 'rule'? (there are: rule, share, number, name, names, inner)"),
        ({"rule": "c"}, "rule is 'c': give 'a' or 'b'"),
        ({"share": 0}, "share is 0: give more than 0"),
        ({"share": 1.5}, "share is 1.5: give at most 1"),
        ({"share": math.inf}, "share is inf: give a finite number"),
        ({"share": "half"}, "share is 'half': give a number"),
        ({"number": 1.5}, "number is 1.5: give a whole number"),
        ({"number": "9" * 5000}, "number is '999999999999...9999999999999': give a smaller number"),
        ({"name": None}, "name is null: give a text"),
        ({"name": ""}, "name is '': give a text of at least 1 characters"),
        ({"name": "long"}, "name is 'long': give a text of at most 3 characters"),
        ({"name": "A"}, "name is 'A': give a text of the form ^[a-z]+$"),
        ({"names": "a"}, "names is 'a': give a list"),
        ({"names": ["a", "b", "c"]}, "names has 3 entries: give at most 2"),
        ({"inner": []}, "inner has 0 entries: give at least 1"),
        ({"inner": [[1]]}, "inner.0 is a list: give an object"),
        ({"inner": [{"a": {}}]}, "inner.0.a is an object: give a whole number"),
        ([], "the body is a list: give an object"),
        (b"{", "the body is no JSON (EOF while parsing an object at line 1 column 1): check it"),
    ],
)
def test_every_kind_of_problem_names_the_value_and_the_remedy(given: Any, text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Body.model_validate_json(given) if isinstance(given, bytes) else _Body.model_validate(given)
    assert first_problem(caught.value.errors(), _Body.model_fields) == text


def test_a_misspelt_name_is_named_before_the_one_that_is_missing() -> None:
    for given, text in (({"urll": "x"}, "unknown option 'urll'; did you mean 'url'?"), (5, "it is 5: give an object")):
        with pytest.raises(ValidationError) as caught:
            UpstreamEntry.model_validate(given)
        assert first_problem(caught.value.errors(), UpstreamEntry.model_fields, secret=True).startswith(text)


def test_a_text_that_may_be_secret_is_not_repeated() -> None:
    with pytest.raises(FeddrmError, match=r"^trace_endpoint: give a text of the form .*$") as caught:
        make_settings(GatewaySettings, trace_endpoint="my password")
    assert "password" not in str(caught.value)
    with refused("port is 70000: give at most 65535"):
        make_settings(GatewaySettings, port=70000)


def test_given_values_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDRM_SERVE_PORT", "8081")
    assert make_settings(GatewaySettings).port == 8081
    assert make_settings(GatewaySettings, port=8082).port == 8082
    assert make_settings(GatewaySettings, port=None).port == 8081


def test_loopback_hosts() -> None:
    assert [host for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "8.8.8.8", "example.org", "")
            if is_loopback(host)] == ["127.0.0.1", "127.9.9.9", "::1", "localhost"]  # fmt: skip
