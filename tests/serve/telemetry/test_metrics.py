from __future__ import annotations

import httpx
import pytest
import torch

from feddrm.serve.telemetry.metrics import Metrics


def test_decisions_are_counted_by_client_and_by_reason() -> None:
    metrics = Metrics()
    metrics.observe_decisions("v1", ["oslo", "lima"], [0, 0, -1], ["", "unsure", "unsure"])
    page = metrics.render().decode()
    assert 'feddrm_decisions_total{client="oslo"} 2.0' in page
    assert 'feddrm_decisions_total{client="nobody"} 1.0' in page
    assert 'feddrm_abstentions_total{reason="unsure"} 2.0' in page
    assert 'feddrm_artifact_decisions_total{artifact="v1",result="abstained"} 2.0' in page
    assert "lima" not in page


@pytest.mark.slow
def test_a_gateway_publishes_its_metrics(http: httpx.Client, images: torch.Tensor) -> None:
    def value(name: str) -> float:
        page = http.get("/metrics").text
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name + "{"))

    before = value("feddrm_decisions_total")
    http.post("/v1/route", json={"inputs": images.tolist()})
    assert value("feddrm_decisions_total") == before + len(images)
    assert value("feddrm_client_available") == 3
    assert "feddrm_audit_ok 1.0" in http.get("/metrics").text
