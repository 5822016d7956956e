from __future__ import annotations

import pytest

from feddrm.serve.settings import GatewaySettings, is_loopback, make_settings
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


def test_given_values_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDRM_SERVE_PORT", "8081")
    assert make_settings(GatewaySettings).port == 8081
    assert make_settings(GatewaySettings, port=8082).port == 8082
    assert make_settings(GatewaySettings, port=None).port == 8081


def test_loopback_hosts() -> None:
    assert [host for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "8.8.8.8", "example.org", "")
            if is_loopback(host)] == ["127.0.0.1", "127.9.9.9", "::1", "localhost"]  # fmt: skip
