from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="pip install 'feddrm[serve]' to run this")

from feddrm.bench.serve import bench_serve


def test_every_way_is_measured() -> None:
    said: list[str] = []
    found = bench_serve(callers=[2], seconds=0.2, requests=200, say=said.append)
    assert set(found["bare"]["images_per_second"]) == set(found["bare"]["embeddings_per_second"]) == {64, 256, 1024}
    assert found["floor"][2]["requests"] >= 2
    assert len(found["http"]) == 4
    for by_callers in found["http"].values():
        figures = by_callers[2]
        assert figures["requests"] >= 2
        assert 0 < figures["p50_ms"] <= figures["p99_ms"]
        assert figures["gateway_cpu_ms_per_request"] >= 0
    assert len(found["memory"]["mib"]) == 10
    assert said
