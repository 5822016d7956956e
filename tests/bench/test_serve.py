from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="pip install 'feddrm[serve]' to run this")

from feddrm.bench.serve import bench_feedback, bench_serve, bench_trace
from refusal import refused
from serving import Process


@pytest.fixture
def forked_gateways(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gateways to compare start by fork; ``test_every_workload_is_measured`` starts its own as users do."""
    numbers = itertools.count()

    @contextmanager
    def gateway(run: Path, *options: str) -> Iterator[tuple[int, int]]:
        process = Process(["serve", str(run), "--port", "0", *options], tmp_path / f"{next(numbers)}.log", {})
        try:
            yield int(process.url.rpartition(":")[2]), process.pid
        finally:
            process.stop()

    monkeypatch.setattr("feddrm.bench.serve._gateway", gateway)


@pytest.mark.slow
@pytest.mark.documented
def test_every_workload_is_measured() -> None:
    lines: list[str] = []
    results = bench_serve(callers=[2], seconds=0.2, requests=200, say=lines.append)
    assert set(results["bare"]["images_per_second"]) == set(results["bare"]["embeddings_per_second"]) == {64, 256, 1024}
    assert results["floor"][2]["requests"] >= 2
    assert len(results["http"]) == 4
    for by_callers in results["http"].values():
        figures = by_callers[2]
        assert figures["requests"] >= 2
        assert 0 < figures["p50_ms"] <= figures["p99_ms"]
        assert figures["gateway_cpu_ms_per_request"] >= 0
    assert len(results["memory"]["mib"]) == 10
    assert lines


COSTS = ("fewer_requests_per_second", "standard_error", "more_gateway_cpu")


@pytest.mark.slow
@pytest.mark.documented
@pytest.mark.usefixtures("forked_gateways")
def test_the_cost_of_feedback_is_measured_beside_a_gateway_without() -> None:
    results = bench_feedback(callers=2, seconds=0.2, repeats=1)
    assert list(results["http"]) == list(results["cost"]) == ["/v1/predict", "/v1/route"]
    for path, ways in results["http"].items():
        assert list(ways) == ["without", "without, once more", "use log", "drift", "use log with features, drift"]
        assert all(figures["requests_per_second"] > 0 for figures in ways.values())
        assert results["cost"][path]["without"] == dict.fromkeys(COSTS, 0.0)


@pytest.mark.slow
@pytest.mark.documented
@pytest.mark.usefixtures("forked_gateways")
def test_the_cost_of_traces_is_measured_beside_a_gateway_without() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="pip install 'feddrm[otel]' to run this")
    results = bench_trace(callers=2, seconds=0.2, repeats=1)
    for path in ("/v1/predict", "/v1/route"):
        ways = results["http"][path]
        assert list(ways) == ["without", "traced", "every request traced"]
        ratio = ways["traced"]["requests_per_second"] / ways["without"]["requests_per_second"]
        assert results["traced_to_untraced"][path] == pytest.approx(ratio, abs=1e-3)


def test_traces_cannot_be_measured_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddrm.bench.serve.find_spec", lambda name: None)
    with refused("pip install 'feddrm[otel]'"):
        bench_trace()
