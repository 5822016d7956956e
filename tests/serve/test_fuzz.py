"""Requests that a property-based fuzzer makes from the OpenAPI page: valid, almost valid and absurd."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from serving import Launch

pytest.importorskip("schemathesis", reason="pip install 'feddrm[dev]' to run this")


def fuzz(url: str, examples: int, folder: Path) -> int:
    """How many requests were made; no answer may be a server's error, nor differ from what the page says."""
    checks = "not_a_server_error,status_code_conformance,response_schema_conformance,content_type_conformance"
    words = [f"{url}/openapi.json", "--phases", "coverage,fuzzing", "--max-examples", str(examples), "--checks", checks,
             "--seed", "1", "--no-shrink", "--continue-on-failure", "--generation-database", "none",
             "--exclude-path", "/v1/admin/reload", "--warnings", "off"]  # fmt: skip
    script = "from schemathesis.cli import schemathesis; schemathesis()"
    done = subprocess.run(
        [sys.executable, "-c", script, "run", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    numbers = re.findall(r"(\d+) generated", done.stdout)
    assert numbers, done.stdout[-3000:]
    return int(numbers[-1])


def rss(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def test_a_few_hundred_requests(demo: str, tmp_path: Path) -> None:
    assert fuzz(demo, 5, tmp_path) > 100
    assert 'status="500"' not in httpx.get(f"{demo}/metrics").text


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("FEDDRM_LONG"), reason="set FEDDRM_LONG=1: it takes minutes")
def test_ten_thousand_requests_leave_memory_flat(run: Path, launch: Launch, tmp_path: Path) -> None:
    process = launch("serve", run, "--demo", "--port", 0, "--audit", tmp_path / "a.sqlite", "--log-level", "error")
    url = process.wait_ready()
    made = fuzz(url, 50, tmp_path)
    before = rss(process.process.pid)
    while made < 10_000:
        made += fuzz(url, 300, tmp_path)
    after = rss(process.process.pid)
    print(f"{made} requests, {before:.1f} MiB then {after:.1f} MiB")
    assert after < 1.1 * before
    assert 'status="500"' not in httpx.get(f"{url}/metrics").text
    assert "Traceback" not in process.log.read_text()
